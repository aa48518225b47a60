"""Counts of what a worker did, by mode, and the read-out that ``/server_info`` shows."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from specswitch.control.controller import Controller
from specswitch.control.decision import Mode, Reason, Switch
from specswitch.control.load import LoadSample
from specswitch.engine.acceptance import WINDOW as ACCEPTANCE_WINDOW
from specswitch.engine.acceptance import Acceptance
from specswitch.engine.step_clock import StepClock

__all__ = ["ACCEPTANCE_WINDOW", "RECENT_SWITCHES", "StepStats", "describe_switch"]

#: Switches kept for the read-out.
RECENT_SWITCHES = 64
#: Results that are added up at a time. A step's own code is cold each time it runs, so on the
#: critical path of a step a result is only noted.
_BATCH = 64


class StepStats:
    """Counters of one worker. All are totals since start-up.

    Attributes:
        steps: decode steps by mode.
        tokens: tokens emitted by decode steps, by mode; counted when the result reaches the host,
            one step after ``steps``.
        request_steps: as ``tokens``, but one for each request of each step.
        switches: total number of switches.
        switches_by_cause: the same by (mode before, mode after, reason).
        recent_switches: the last ``RECENT_SWITCHES``, oldest first.
        acceptance: acceptance lengths.
        clock: time of decode steps.
    """

    def __init__(self) -> None:
        self.steps: dict[Mode, int] = dict.fromkeys(Mode, 0)
        self._tokens: dict[Mode, int] = dict.fromkeys(Mode, 0)
        self._request_steps: dict[Mode, int] = dict.fromkeys(Mode, 0)
        self._noted: list[tuple[Mode, int, int]] = []
        self.switches = 0
        self.switches_by_cause: Counter[tuple[Mode, Mode, Reason]] = Counter()
        self.recent_switches: deque[Switch] = deque(maxlen=RECENT_SWITCHES)
        self._acceptance = Acceptance()
        self.clock = StepClock()

    def count_step(self, mode: Mode) -> None:
        """A decode step is about to be launched."""
        self.steps[mode] += 1
        self.clock.launch(mode)

    def count_result(self, mode: Mode, tokens: int, requests: int) -> None:
        """A step's tokens reached the host: ``tokens`` in all, for ``requests`` requests."""
        self._noted.append((mode, tokens, requests))
        if len(self._noted) == _BATCH:
            self._add_up()

    def _add_up(self) -> None:
        for mode, tokens, requests in self._noted:
            self._tokens[mode] += tokens
            self._request_steps[mode] += requests
            self._acceptance.add(mode, tokens, requests)
        self._noted.clear()

    @property
    def tokens(self) -> dict[Mode, int]:
        self._add_up()
        return self._tokens

    @property
    def request_steps(self) -> dict[Mode, int]:
        self._add_up()
        return self._request_steps

    @property
    def acceptance(self) -> Acceptance:
        self._add_up()
        return self._acceptance

    def count_switch(self, switch: Switch) -> None:
        """Listener of the controller."""
        self.switches += 1
        self.switches_by_cause[switch.source, switch.target, switch.reason] += 1
        self.recent_switches.append(switch)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a request and speculative step, bonus included, over the last speculative steps.

        None before the first one.
        """
        return self.acceptance.recent

    def snapshot(self, controller: Controller, load: LoadSample | None) -> dict[str, Any]:
        """JSON-ready state: mode, reason, last load, counters and recent switches."""
        last = controller.last
        return {
            "mode": str(last.mode),
            "reason": str(last.reason),
            "step": last.step,
            "waiting": load.waiting if load else 0,
            "running": load.running if load else 0,
            "kv_use": load.kv_use if load else 0.0,
            "steps": {str(mode): count for mode, count in self.steps.items()},
            "tokens": {str(mode): count for mode, count in self.tokens.items()},
            "request_steps": {str(mode): count for mode, count in self.request_steps.items()},
            "seconds": {str(mode): round(time, 6) for mode, time in self.clock.seconds.items()},
            "switches": {
                "total": self.switches,
                "recent": [describe_switch(switch) for switch in self.recent_switches],
            },
            "acceptance_length": self.acceptance_length,
            "acceptance_at_switch": {
                "before": self.acceptance.before,
                "after": self.acceptance.after,
            },
        }


def describe_switch(switch: Switch) -> dict[str, Any]:
    """A switch as plain values, with the load that was decided on."""
    return {
        "step": switch.step,
        "from": str(switch.source),
        "to": str(switch.target),
        "reason": str(switch.reason),
        "waiting": switch.sample.waiting,
        "running": switch.sample.running,
        "kv_use": switch.sample.kv_use,
    }
