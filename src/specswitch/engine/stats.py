"""Counts of what a worker did, by mode, and the read-out that ``/server_info`` shows."""

from __future__ import annotations

from collections import deque
from typing import Any

from specswitch.control.controller import Controller
from specswitch.control.decision import Mode, Switch
from specswitch.control.load import LoadSample

#: Speculative steps over which the acceptance length is averaged.
ACCEPTANCE_WINDOW = 64
#: Switches kept for the read-out.
RECENT_SWITCHES = 64


class StepStats:
    """Counters of one worker. All are totals since start-up.

    Attributes:
        steps: decode steps by mode.
        tokens: tokens emitted by decode steps, by mode; counted when the result reaches the host,
            one step after ``steps``.
        switches: total number of switches.
        recent_switches: the last ``RECENT_SWITCHES``, oldest first.
    """

    def __init__(self) -> None:
        self.steps: dict[Mode, int] = dict.fromkeys(Mode, 0)
        self.tokens: dict[Mode, int] = dict.fromkeys(Mode, 0)
        self.switches = 0
        self.recent_switches: deque[Switch] = deque(maxlen=RECENT_SWITCHES)
        self._accepted: deque[tuple[int, int]] = deque(maxlen=ACCEPTANCE_WINDOW)

    def count_step(self, mode: Mode) -> None:
        """A decode step was launched."""
        self.steps[mode] += 1

    def count_result(self, mode: Mode, tokens: int, requests: int) -> None:
        """A step's tokens reached the host: ``tokens`` in all, for ``requests`` requests."""
        self.tokens[mode] += tokens
        if mode is Mode.SPECULATE and requests:
            self._accepted.append((tokens, requests))

    def count_switch(self, switch: Switch) -> None:
        """Listener of the controller."""
        self.switches += 1
        self.recent_switches.append(switch)

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a request and speculative step, bonus included, over the last speculative steps.

        None before the first one.
        """
        requests = sum(count for _, count in self._accepted)
        return sum(tokens for tokens, _ in self._accepted) / requests if requests else None

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
            "switches": {
                "total": self.switches,
                "recent": [_describe(switch) for switch in self.recent_switches],
            },
            "acceptance_length": self.acceptance_length,
        }


def _describe(switch: Switch) -> dict[str, Any]:
    return {
        "step": switch.step,
        "from": str(switch.source),
        "to": str(switch.target),
        "reason": str(switch.reason),
        "waiting": switch.sample.waiting,
        "running": switch.sample.running,
        "kv_use": switch.sample.kv_use,
    }
