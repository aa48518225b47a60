"""What overrules a policy: the batch limit, requests in the batch, and the operator.

Unlike a guard, which can only keep the mode, these put their own mode in place of the
proposal, and pass the dwell and the votes inside them by.
"""

from __future__ import annotations

from abc import abstractmethod

from specswitch.control.decision import Mode, Reason
from specswitch.control.load import LoadSample
from specswitch.control.policy import Policy, PolicyDecorator, Proposal


class Overrule(PolicyDecorator):
    """Puts its own proposal in place of the inner policy's wherever it has one."""

    @abstractmethod
    def overruling(self, sample: LoadSample) -> Proposal | None:
        """What is to be done, whatever the inner policy wants; None leaves it to that one."""

    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        proposal = self.overruling(sample)
        if proposal is None:
            return self._inner.propose(sample, mode)
        self._inner.on_passed_over()
        return proposal


class OperatorOverride(Overrule):
    """The mode the operator chose at run time, if any, in place of the policy's."""

    def __init__(self, inner: Policy) -> None:
        super().__init__(inner)
        self._chosen: Proposal | None = None

    @property
    def mode(self) -> Mode | None:
        """The operator's mode; None leaves the choice to the policy."""
        return self._chosen.mode if self._chosen else None

    @mode.setter
    def mode(self, mode: Mode | None) -> None:
        self._chosen = None if mode is None else Proposal(mode, Reason.OVERRIDE)

    def overruling(self, sample: LoadSample) -> Proposal | None:
        return self._chosen


class RequestOptOut(Overrule):
    """A decode batch with a request that opted out of speculation is target_only.

    All requests of a batch share its steps, so one is enough.
    """

    _OPTED_OUT = Proposal(Mode.TARGET_ONLY, Reason.REQUEST_OPT_OUT)

    def overruling(self, sample: LoadSample) -> Proposal | None:
        return self._OPTED_OUT if sample.opt_outs else None


class ExactnessRule(Overrule):
    """A decode batch with a request that speculation would answer otherwise is target_only.

    Whatever the policy or the operator wants: an answer must not depend on load.
    """

    _INEXACT = Proposal(Mode.TARGET_ONLY, Reason.EXACTNESS)

    def overruling(self, sample: LoadSample) -> Proposal | None:
        return self._INEXACT if sample.inexact else None


class BatchLimit(Overrule):
    """A decode batch above the limit is target_only, whatever the policy or the operator wants.

    Speculative graphs exist only up to the limit, so this is a matter of what can run.

    Args:
        inner: asked about every batch within the limit.
        max_speculative_batch: largest batch, in requests, that may speculate; at least 1.

    Raises:
        ValueError: `max_speculative_batch` is below 1.
    """

    _OVER = Proposal(Mode.TARGET_ONLY, Reason.BATCH_LIMIT)

    def __init__(self, inner: Policy, max_speculative_batch: int) -> None:
        if max_speculative_batch < 1:
            raise ValueError(
                f"max_speculative_batch must be at least 1, got {max_speculative_batch}"
            )
        super().__init__(inner)
        self._limit = max_speculative_batch

    def overruling(self, sample: LoadSample) -> Proposal | None:
        return self._OVER if sample.running > self._limit else None
