"""Guards: decorators that hold back a change of mode.

A switch is cheap but not free (draft sync, colder drafts), and load is noisy. Each
guard has one rule; the mode of the step before stands while the rule is not met.
"""

from __future__ import annotations

from collections import deque

from specswitch.control.decision import Mode, Reason
from specswitch.control.load import LoadSample
from specswitch.control.policy import Policy, PolicyDecorator, Proposal

CAP_WINDOW_STEPS = 1000
"""Length of the window, in steps, in which `SwitchCap` counts switches."""


def _holds(reason: Reason) -> dict[Mode, Proposal]:
    return {mode: Proposal(mode, reason) for mode in Mode}


class Votes(PolicyDecorator):
    """A change must be asked for `votes` steps in a row.

    A step that keeps the mode, one that was decided without asking, and a switch by
    anyone start the count again.

    Args:
        inner: the policy that votes.
        votes: steps in a row, at least 1 (1 lets every change through).

    Raises:
        ValueError: `votes` is below 1.
    """

    _HOLD = _holds(Reason.VOTES)

    def __init__(self, inner: Policy, votes: int) -> None:
        if votes < 1:
            raise ValueError(f"votes must be at least 1, got {votes}")
        super().__init__(inner)
        self._needed = votes
        self._votes = 0

    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        proposal = self._inner.propose(sample, mode)
        if proposal.mode is mode:
            self._votes = 0
            return proposal
        self._votes += 1
        return proposal if self._votes >= self._needed else self._HOLD[mode]

    def on_switch(self, step: int) -> None:
        self._votes = 0
        super().on_switch(step)

    def on_passed_over(self) -> None:
        self._votes = 0
        super().on_passed_over()

    def holds(self, step: int) -> dict[str, int]:
        """`votes` cast in a row so far, and `votes_needed`."""
        return {**super().holds(step), "votes": self._votes, "votes_needed": self._needed}


class Dwell(PolicyDecorator):
    """A change must come at least `dwell_steps` after the last switch, whoever caused that one.

    The first change needs no dwell. The wrapped policy is asked during the dwell too,
    so votes that were cast meanwhile count when it ends.

    Args:
        inner: the policy whose changes are held back.
        dwell_steps: least number of steps in a mode, at least 0 (0 lets every change through).

    Raises:
        ValueError: `dwell_steps` is negative.
    """

    _HOLD = _holds(Reason.DWELL)

    def __init__(self, inner: Policy, dwell_steps: int) -> None:
        if dwell_steps < 0:
            raise ValueError(f"dwell_steps must be at least 0, got {dwell_steps}")
        super().__init__(inner)
        self._dwell_steps = dwell_steps
        self._last_switch: int | None = None

    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        proposal = self._inner.propose(sample, mode)
        if proposal.mode is mode or self._last_switch is None:
            return proposal
        if sample.step - self._last_switch >= self._dwell_steps:
            return proposal
        return self._HOLD[mode]

    def on_switch(self, step: int) -> None:
        self._last_switch = step
        super().on_switch(step)

    def holds(self, step: int) -> dict[str, int]:
        """`dwell_left`: steps from `step` on at which a change would still be held back."""
        end = step if self._last_switch is None else self._last_switch + self._dwell_steps
        return {**super().holds(step), "dwell_left": max(0, end - step)}


class SwitchCap(PolicyDecorator):
    """No more than `cap` switches in any 1000 consecutive steps, whoever asks for them.

    Leaving speculation can never be put off: a batch above the limit has no graphs to
    speculate with. So room for it is kept: *resuming* needs room for two switches, the
    resume itself and the way back. Then a step in speculate always has room for one, and
    this guard only ever delays resuming. It has to be the outermost decorator, so that
    it sees every change.

    Args:
        inner: the policy whose resumes are held back.
        cap: switches per 1000 steps, at least 2 (with 1, nothing could ever resume).

    Raises:
        ValueError: `cap` is below 2.
    """

    _HOLD = Proposal(Mode.TARGET_ONLY, Reason.SWITCH_CAP)

    def __init__(self, inner: Policy, cap: int) -> None:
        if cap < 2:
            raise ValueError(f"cap must be at least 2, got {cap}")
        super().__init__(inner)
        # Room for two is left unless the last `cap - 1` switches are all in the window,
        # which the oldest of them tells.
        self._recent: deque[int] = deque(maxlen=cap - 1)
        self._cap = cap

    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        proposal = self._inner.propose(sample, mode)
        if proposal.mode is mode or mode is Mode.SPECULATE:
            return proposal
        recent = self._recent
        if len(recent) == recent.maxlen and sample.step - recent[0] < CAP_WINDOW_STEPS:
            return self._HOLD
        return proposal

    def on_switch(self, step: int) -> None:
        self._recent.append(step)
        super().on_switch(step)

    def holds(self, step: int) -> dict[str, int]:
        """`switch_cap`: switches allowed in 1000 steps."""
        return {**super().holds(step), "switch_cap": self._cap}
