"""Policies: which mode the load asks for.

A policy only proposes. What may hold a proposal back is in `guard`, what overrules
it in `overrule`; both wrap a policy and are policies themselves, so each of them can
be read, tested and left out alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from specswitch.control.decision import Mode, Reason
from specswitch.control.load import LoadSample


class Proposal(NamedTuple):
    """A mode and the reason for it. Policies return ready-made ones: no allocation per step."""

    mode: Mode
    reason: Reason


class Policy(Protocol):
    """Proposes a mode for each step.

    Proposals must be a function of the calls received so far, and of nothing else:
    ranks that are told the same must propose the same.
    """

    @abstractmethod
    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        """The mode for this step.

        Args:
            sample: load at this step.
            mode: the mode of the step before.

        Returns:
            `mode` itself with the reason to keep it, or the other one with the cause.
        """
        ...

    def on_switch(self, step: int) -> None:
        """The mode changed at `step`, whoever caused it. Most policies need not know."""
        return None

    def on_passed_over(self) -> None:
        """This step was decided without asking for a proposal. Most policies need not know."""
        return None

    def holds(self, step: int) -> dict[str, int]:
        """For read-outs: what stands between a proposal at `step` and a change of mode.

        Only guards have something to say: numbers by name, see there.
        """
        return {}


class PolicyDecorator(Policy):
    """A policy round another one, which hears of everything that the outer one hears of."""

    def __init__(self, inner: Policy) -> None:
        self._inner = inner

    def on_switch(self, step: int) -> None:
        self._inner.on_switch(step)

    def on_passed_over(self) -> None:
        self._inner.on_passed_over()

    def holds(self, step: int) -> dict[str, int]:
        return self._inner.holds(step)


@dataclass(frozen=True, slots=True)
class Marks:
    """Two marks of one quantity, apart from each other so that a load between them changes nothing.

    Attributes:
        enter: at or above this, target_only is asked for.
        resume: at or below this, the quantity no longer speaks against speculating.

    Raises:
        ValueError: `resume` is not below `enter`.
    """

    enter: float
    resume: float

    def __post_init__(self) -> None:
        if not self.resume < self.enter:
            raise ValueError(f"resume ({self.resume}) must be below enter ({self.enter})")


# Never reached by a load, and never in the way of resuming.
_NO_ENTER = _NO_RESUME = math.inf


class QueueDepthPolicy(Policy):
    """Target-only while the server is busy, with separate marks to enter and to resume.

    Any one quantity at its enter mark asks for target_only; all of them at or below
    their resume marks ask for speculate. A quantity without marks is not looked at.
    A `kv_use` of NaN reaches no mark, so it never resumes.

    Args:
        waiting: marks for requests in the waiting queue.
        running: marks for requests in the decode batch.
        kv_use: marks for the fraction of the KV pool in use.
    """

    _KEEP_SPECULATE = Proposal(Mode.SPECULATE, Reason.STEADY)
    _KEEP_TARGET_ONLY = Proposal(Mode.TARGET_ONLY, Reason.STEADY)
    _WAITING_HIGH = Proposal(Mode.TARGET_ONLY, Reason.WAITING_HIGH)
    _RUNNING_HIGH = Proposal(Mode.TARGET_ONLY, Reason.RUNNING_HIGH)
    _KV_HIGH = Proposal(Mode.TARGET_ONLY, Reason.KV_HIGH)
    _LOAD_LOW = Proposal(Mode.SPECULATE, Reason.LOAD_LOW)

    def __init__(
        self, waiting: Marks, running: Marks | None = None, kv_use: Marks | None = None
    ) -> None:
        self._waiting_enter, self._waiting_resume = waiting.enter, waiting.resume
        self._running_enter = running.enter if running else _NO_ENTER
        self._running_resume = running.resume if running else _NO_RESUME
        self._kv_enter = kv_use.enter if kv_use else _NO_ENTER
        self._kv_resume = kv_use.resume if kv_use else _NO_RESUME

    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        if mode is Mode.SPECULATE:
            if sample.waiting >= self._waiting_enter:
                return self._WAITING_HIGH
            if sample.running >= self._running_enter:
                return self._RUNNING_HIGH
            if sample.kv_use >= self._kv_enter:
                return self._KV_HIGH
            return self._KEEP_SPECULATE
        if (
            sample.waiting <= self._waiting_resume
            and sample.running <= self._running_resume
            and sample.kv_use <= self._kv_resume
        ):
            return self._LOAD_LOW
        return self._KEEP_TARGET_ONLY


class FixedPolicy(Policy):
    """Always one mode: baseline arms, tests, and what stands in for a policy that failed."""

    def __init__(self, mode: Mode, reason: Reason = Reason.FIXED) -> None:
        self._proposal = Proposal(mode, reason)

    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        return self._proposal


class PeriodicPolicy(Policy):
    """Alternates every `period` steps whatever the load: tests and benchmarks of switching itself.

    Starts with speculate, and counts from the first step it is asked about.

    Args:
        period: steps per stretch, at least 1.

    Raises:
        ValueError: `period` is below 1.
    """

    _SPECULATE = Proposal(Mode.SPECULATE, Reason.PERIODIC)
    _TARGET_ONLY = Proposal(Mode.TARGET_ONLY, Reason.PERIODIC)

    def __init__(self, period: int) -> None:
        if period < 1:
            raise ValueError(f"period must be at least 1, got {period}")
        self._period = period
        self._first_step: int | None = None

    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        if self._first_step is None:
            self._first_step = sample.step
        stretch = (sample.step - self._first_step) // self._period
        return self._TARGET_ONLY if stretch % 2 else self._SPECULATE
