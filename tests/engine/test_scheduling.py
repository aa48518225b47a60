"""What the scheduler does to a batch between two steps, under flips: little room, little memory."""

from __future__ import annotations

import pytest
from runs import (
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    flip_pattern,
    periodic,
    reference,
    run,
)

from specswitch.control.decision import Mode


@pytest.mark.parametrize("period", [1, 2, 5])
@pytest.mark.parametrize("max_running", [2, 3, 4])
def test_many_requests_pass_through_a_small_batch(max_running: int, period: int) -> None:
    outcome = run("crowd", "EAGLE3", periodic(period), max_running_requests=max_running)
    assert_same_answers(outcome, reference("crowd", "EAGLE3"))
    assert_settled(outcome)
    assert_books_balance(outcome)
    assert outcome.modes == flip_pattern(period, len(outcome.modes))
    assert max(len(step.kept) for step in outcome.steps) == max_running


@pytest.mark.parametrize("disable_radix_cache", [False, True], ids=["radix", "no-radix"])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("period", [1, 3, 4])
def test_requests_that_are_retracted_and_come_back_get_the_same_answers(
    period: int, page_size: int, disable_radix_cache: bool
) -> None:
    outcome = run(
        "long_answers",
        "EAGLE3",
        periodic(period),
        max_total_tokens=512,
        # Admits more than fits, as an optimistic guess of the answers' lengths would.
        schedule_conservativeness=0.01,
        page_size=page_size,
        disable_radix_cache=disable_radix_cache,
    )
    assert sum(result.retractions for result in outcome.results) >= 3
    assert_same_answers(outcome, reference("long_answers", "EAGLE3"))
    assert_settled(outcome)
    assert_books_balance(outcome)
    assert outcome.modes == flip_pattern(period, len(outcome.modes))
    if disable_radix_cache:
        assert outcome.unavailable_slots == 0


@pytest.mark.parametrize("mode", list(Mode))
def test_a_step_of_either_mode_survives_the_retraction_of_its_requests(mode: Mode) -> None:
    outcome = run(
        "long_answers",
        "EAGLE3",
        {"kind": "fixed", "mode": str(mode)},
        max_total_tokens=512,
        schedule_conservativeness=0.01,
    )
    assert sum(result.retractions for result in outcome.results) >= 3
    assert_same_answers(outcome, reference("long_answers", "EAGLE3"))
    assert_settled(outcome)
    assert_books_balance(outcome)
