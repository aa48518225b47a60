"""Log-probabilities: one per token whatever the mode, with the values of plain decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness import Request, Result
from runs import (
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    fixed,
    periodic,
    run,
    run_plain,
)
from workloads import workload

from specswitch.control.decision import Mode

TOP = 3
POLICIES = {
    "speculate": fixed(Mode.SPECULATE),
    "target_only": fixed(Mode.TARGET_ONLY),
    **{f"every {period}": periodic(period) for period in (1, 2, 3, 5)},
}


def asking(every: int) -> list[Request]:
    """The staggered requests, of which every n-th asks for log-probabilities."""
    return [
        replace(request, logprobs=True, top_logprobs=TOP) if number % every == 0 else request
        for number, request in enumerate(workload("staggered", "EAGLE3"))
    ]


def assert_same_logprobs(mine: Result, theirs: Result) -> None:
    assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert len(mine.top_logprobs) == len(theirs.top_logprobs)
    for ours, plain in zip(mine.top_logprobs, theirs.top_logprobs, strict=True):
        assert [token for _, token in ours] == [token for _, token in plain]
        assert [value for value, _ in ours] == pytest.approx(
            [value for value, _ in plain], abs=1e-4
        )


@pytest.mark.parametrize("every", [1, 3], ids=["all ask", "some ask"])
@pytest.mark.parametrize("policy", POLICIES)
def test_logprobs_are_those_of_plain_decoding(policy: str, every: int) -> None:
    requests = asking(every)
    outcome = run(requests, "EAGLE3", POLICIES[policy])
    plain = run_plain(requests, "EAGLE3")
    assert_same_answers(outcome, plain.results)
    assert_settled(outcome)
    assert_books_balance(outcome)
    for request, mine, theirs in zip(requests, outcome.results, plain.results, strict=True):
        if request.logprobs:
            assert len(mine.logprobs) == len(mine.top_logprobs) == len(mine.output_ids)
            assert_same_logprobs(mine, theirs)
        else:
            assert not mine.logprobs
