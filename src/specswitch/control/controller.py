"""The controller: a load sample in, a decision out.

It holds the current mode and fixes the order in which policies are asked, so that no
way of building one can lose the batch limit or slip past the cap.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specswitch.control.decision import Decision, Mode, Reason, Switch
from specswitch.control.guard import CAP_WINDOW_STEPS, Dwell, SwitchCap, Votes
from specswitch.control.load import LoadSample
from specswitch.control.overrule import (
    BatchLimit,
    ExactnessRule,
    OperatorOverride,
    RequestOptOut,
)
from specswitch.control.policy import (
    FixedPolicy,
    Marks,
    PeriodicPolicy,
    Policy,
    Proposal,
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
        policy_errors: exceptions raised by the policy or a guard, of which each put the
            safe mode in their place.
    """

    steps: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    reasons: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))
    switches: int = 0
    listener_errors: int = 0
    policy_errors: int = 0


class Controller:
    """Decides the mode of each decode step.

    Asked in this order, outermost first:

    1. the cap on switches, which may delay resuming, whoever wants to resume;
    2. the batch limit: above it a step is target_only, at once;
    3. requests of the batch that speculation would answer otherwise: target_only, at once;
    4. requests of the batch that opted out of speculation: target_only, at once;
    5. the operator's override;
    6. `policy`, with the guards that it is wrapped in.

    So limit, requests and override go past dwell and votes, and all count as
    switches. An override to target_only takes effect at the next step. An override to
    speculate waits while the batch is above the limit (reason `batch_limit`) or holds such
    a request (`exactness`, `request_opt_out`), and while the cap has no room (`switch_cap`);
    it is kept and takes effect as soon as it can. The cap therefore holds for every sequence
    of samples and overrides.

    Deterministic: the same samples and overrides give the same decisions. Not
    thread-safe: for the scheduler's thread only.

    Args:
        policy: what the load asks for, guards round it included.
        max_speculative_batch: largest decode batch, in requests, that may speculate.
        switch_cap: switches allowed in any 1000 consecutive steps; None for no cap.
        start: mode before the first decision.
        safe_mode: mode that stands in for a policy or guard that raises an exception, until
            `replace_rules` is called; limit, override and cap stay in force. None: the
            exception reaches the caller of `decide`, which then has changed nothing.

    Attributes:
        counters: what has been decided so far; read only.
        failure: the exception that put the safe mode in place; None while all is well.

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
        safe_mode: Mode | None = None,
    ) -> None:
        self._last = Decision(step=-1, mode=start, reason=Reason.START, switched=False)
        # As many as the largest cap that can ever be in the way has to know of.
        self._switch_steps: deque[int] = deque(maxlen=CAP_WINDOW_STEPS - 1)
        self._overridden: Mode | None = None
        self._safe_mode = safe_mode
        self.failure: Exception | None = None
        self._put_in_place(policy, max_speculative_batch, switch_cap)
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
        return self._overridden

    @property
    def max_speculative_batch(self) -> int:
        """Largest decode batch, in requests, that may speculate."""
        return self._limit

    def override(self, mode: Mode | None) -> None:
        """Put the operator's mode in place of the policy's, from the next step on.

        On several ranks, call it between the same two steps on each of them.

        Args:
            mode: the mode to use; None hands the choice back to the policy.

        Raises:
            ValueError: `mode` is neither None nor a mode or its name.
        """
        self._overridden = None if mode is None else Mode(mode)
        self._override.mode = self._overridden

    def replace_rules(
        self,
        policy: Policy,
        *,
        max_speculative_batch: int,
        switch_cap: int | None = None,
        safe_mode: Mode | None = None,
    ) -> None:
        """Decide by other rules from the next step on; also the way out of the safe mode.

        Mode, override, counters and listeners stay. The new rules are told of the switches
        before them, so that neither a dwell nor the cap starts afresh: no window of 1000
        steps has more switches than the largest cap in force in it. Votes start again.
        On several ranks, call it between the same two steps on each of them.

        Args: as for the controller itself.

        Raises:
            ValueError: as for the controller itself; the old rules stay.
        """
        self._put_in_place(policy, max_speculative_batch, switch_cap)
        self._safe_mode = safe_mode
        self.failure = None

    def holds(self) -> dict[str, int]:
        """For read-outs: what stands between the next step and a change of mode.

        Returns:
            `switches_in_window`: switches in the 1000 steps that end with the last one; and
            what the guards in place say of themselves (`Policy.holds`).
        """
        begin = self._last.step - CAP_WINDOW_STEPS
        recent = sum(step > begin for step in self._switch_steps)
        return {**self._policy.holds(self._last.step + 1), "switches_in_window": recent}

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
        mode, reason = self._propose(sample, last.mode)
        switched = mode is not last.mode
        decision = Decision(sample.step, mode, reason, switched)
        self._last = decision
        counters = self.counters
        counters.steps[mode] += 1
        counters.reasons[reason] += 1
        if switched:
            counters.switches += 1
            self._tell_of_switch(sample.step)
            self._notify(Switch(sample.step, last.mode, mode, reason, sample))
        return decision

    def _put_in_place(self, policy: Policy, limit: int, switch_cap: int | None) -> None:
        override = OperatorOverride(policy)
        override.mode = self._overridden
        rules: Policy = BatchLimit(ExactnessRule(RequestOptOut(override)), limit)
        if switch_cap is not None:
            rules = SwitchCap(rules, switch_cap)
        for step in self._switch_steps:
            rules.on_switch(step)
        self._override, self._policy = override, rules
        self._limit, self._cap = limit, switch_cap

    def _propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        try:
            return self._policy.propose(sample, mode)
        except Exception as error:
            self._fall_back(error, sample.step)
            return self._policy.propose(sample, mode)

    def _tell_of_switch(self, step: int) -> None:
        self._switch_steps.append(step)
        try:
            self._policy.on_switch(step)
        except Exception as error:
            self._fall_back(error, step)

    def _fall_back(self, error: Exception, step: int) -> None:
        """Put the safe mode in place of a policy and guards that raised `error`.

        Ranks decide by equal inputs, so they get here at the same step.
        """
        if self._safe_mode is None:
            raise error
        self.counters.policy_errors += 1
        self.failure = error
        logger.error(
            "the controller failed at step %d; mode %s stands in for it until it is reset",
            step,
            self._safe_mode,
            exc_info=error,
        )
        self._put_in_place(FixedPolicy(self._safe_mode, Reason.SAFE_MODE), self._limit, self._cap)

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
    """The controller that `config` describes."""
    chosen = config.policy
    return Controller(
        _policy(config),
        max_speculative_batch=config.max_speculative_batch,
        switch_cap=_switch_cap(config),
        start=chosen.mode if chosen.kind == "fixed" else Mode.SPECULATE,
        safe_mode=config.safe_mode,
    )


def reconfigure(controller: Controller, config: Config) -> None:
    """Let `controller` decide as `config` describes from the next step on.

    See `Controller.replace_rules` for what stays.
    """
    controller.replace_rules(
        _policy(config),
        max_speculative_batch=config.max_speculative_batch,
        switch_cap=_switch_cap(config),
        safe_mode=config.safe_mode,
    )


def _policy(config: Config) -> Policy:
    """The policy with its guards.

    A periodic policy goes without guards: it is there to switch at exact steps.
    """
    chosen, guard = config.policy, config.guard
    if chosen.kind == "periodic":
        return PeriodicPolicy(chosen.period)
    policy: Policy
    if chosen.kind == "fixed":
        policy = FixedPolicy(chosen.mode)
    else:
        running, kv_use = chosen.running, chosen.kv_use
        policy = QueueDepthPolicy(
            waiting=Marks(chosen.waiting.enter, chosen.waiting.resume),
            running=Marks(running.enter, running.resume) if running else None,
            kv_use=Marks(kv_use.enter, kv_use.resume) if kv_use else None,
        )
    return Dwell(Votes(policy, guard.votes), guard.dwell_steps)


def _switch_cap(config: Config) -> int | None:
    return None if config.policy.kind == "periodic" else config.guard.max_switches_per_1000_steps
