"""The controller: a load sample in, a decision out.

It holds the current mode and fixes the order in which policies are asked, so that no
way of building one can lose the batch limit or slip past the cap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specswitch.control.decision import Decision, Mode, Reason, Switch
from specswitch.control.guard import Dwell, SwitchCap, Votes
from specswitch.control.load import LoadSample
from specswitch.control.overrule import BatchLimit, OperatorOverride
from specswitch.control.policy import (
    FixedPolicy,
    Marks,
    PeriodicPolicy,
    Policy,
    QueueDepthPolicy,
)

if TYPE_CHECKING:
    # Config imports Mode from here; and a controller can be built without pydantic.
    from specswitch.config import Config

logger = logging.getLogger(__name__)

Listener = Callable[[Switch], None]


@dataclass(slots=True)
class Counters:
    """What a controller has done so far.

    Attributes:
        steps: decisions by mode.
        reasons: decisions by reason.
        switches: changes of mode.
        listener_errors: exceptions raised by listeners.
    """

    steps: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    reasons: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))
    switches: int = 0
    listener_errors: int = 0


class Controller:
    """Decides the mode of each decode step.

    Asked in this order, outermost first:

    1. the cap on switches, which may delay resuming, whoever wants to resume;
    2. the batch limit: above it a step is target_only, at once;
    3. the operator's override;
    4. `policy`, with the guards that it is wrapped in.

    So the batch limit and the override go past dwell and votes, and both count as
    switches. An override to target_only takes effect at the next step. An override to
    speculate waits while the batch is above the limit (reason `batch_limit`) and while
    the cap has no room (reason `switch_cap`); it is kept and takes effect as soon as it
    can. The cap therefore holds for every sequence of samples and overrides.

    Deterministic: the same samples and overrides give the same decisions. Not
    thread-safe: for the scheduler's thread only.

    Args:
        policy: what the load asks for, guards round it included.
        max_speculative_batch: largest decode batch, in requests, that may speculate.
        switch_cap: switches allowed in any 1000 consecutive steps; None for no cap.
        start: mode before the first decision.

    Attributes:
        counters: what has been decided so far; read only.

    Raises:
        ValueError: `max_speculative_batch` is below 1, or `switch_cap` below 2.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        max_speculative_batch: int,
        switch_cap: int | None = None,
        start: Mode = Mode.SPECULATE,
    ) -> None:
        self._override = OperatorOverride(policy)
        limited = BatchLimit(self._override, max_speculative_batch)
        self._policy: Policy = limited if switch_cap is None else SwitchCap(limited, switch_cap)
        self._last = Decision(step=-1, mode=start, reason=Reason.START, switched=False)
        self._listeners: tuple[Listener, ...] = ()
        self._failed_listeners: list[Listener] = []
        self.counters = Counters()

    @property
    def mode(self) -> Mode:
        """Mode of the last decision, or the starting mode."""
        return self._last.mode

    @property
    def last(self) -> Decision:
        """The last decision; before the first, step -1 with reason `start`."""
        return self._last

    @property
    def overridden(self) -> Mode | None:
        """The operator's mode, in effect or waiting; None when the policy decides."""
        return self._override.mode

    def override(self, mode: Mode | None) -> None:
        """Put the operator's mode in place of the policy's, from the next step on.

        On several ranks, call it between the same two steps on each of them.

        Args:
            mode: the mode to use; None hands the choice back to the policy.

        Raises:
            ValueError: `mode` is neither None nor a mode or its name.
        """
        self._override.mode = None if mode is None else Mode(mode)

    def add_listener(self, listener: Listener) -> None:
        """Call `listener` on every switch, within `decide`, after the new mode is in place.

        A listener only watches, and one that fails on a single rank must not part that
        rank from the others. So an exception does not reach the caller of `decide`: it is
        counted in `counters.listener_errors`, and the first of each listener is logged.
        """
        self._listeners = (*self._listeners, listener)

    def decide(self, sample: LoadSample) -> Decision:
        """The mode of this step. Call it once per decode step.

        Raises:
            ValueError: `sample.step` does not follow the step decided on before.
        """
        last = self._last
        if sample.step <= last.step:
            raise ValueError(
                f"decode steps must be numbered upwards from 0: got {sample.step} after {last.step}"
            )
        mode, reason = self._policy.propose(sample, last.mode)
        switched = mode is not last.mode
        decision = Decision(sample.step, mode, reason, switched)
        self._last = decision
        counters = self.counters
        counters.steps[mode] += 1
        counters.reasons[reason] += 1
        if switched:
            counters.switches += 1
            self._policy.on_switch(sample.step)
            self._notify(Switch(sample.step, last.mode, mode, reason, sample))
        return decision

    def _notify(self, switch: Switch) -> None:
        for listener in self._listeners:
            try:
                listener(switch)
            except Exception:
                self.counters.listener_errors += 1
                if listener not in self._failed_listeners:
                    self._failed_listeners.append(listener)
                    logger.exception(
                        "switch listener %r failed at step %d; its further failures are "
                        "only counted",
                        listener,
                        switch.step,
                    )


def build_controller(config: Config) -> Controller:
    """The controller that `config` describes.

    A periodic policy goes without guards: it is there to switch at exact steps.
    """
    chosen, guard = config.policy, config.guard
    if chosen.kind == "periodic":
        return Controller(
            PeriodicPolicy(chosen.period), max_speculative_batch=config.max_speculative_batch
        )
    policy: Policy
    if chosen.kind == "fixed":
        policy, start = FixedPolicy(chosen.mode), chosen.mode
    else:
        running, kv_use = chosen.running, chosen.kv_use
        policy = QueueDepthPolicy(
            waiting=Marks(chosen.waiting.enter, chosen.waiting.resume),
            running=Marks(running.enter, running.resume) if running else None,
            kv_use=Marks(kv_use.enter, kv_use.resume) if kv_use else None,
        )
        start = Mode.SPECULATE
    return Controller(
        Dwell(Votes(policy, guard.votes), guard.dwell_steps),
        max_speculative_batch=config.max_speculative_batch,
        switch_cap=guard.max_switches_per_1000_steps,
        start=start,
    )
