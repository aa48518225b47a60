"""Modes that alternate every few steps: answers stay those of a server without speculation."""

from __future__ import annotations

import pytest
from runs import (
    Run,
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    flip_pattern,
    periodic,
    reference,
    run,
)
from workloads import CHUNK

from specswitch.control.decision import Mode


def flipped(algorithm: str, period: int, **server_args: object) -> Run:
    return run("staggered", algorithm, periodic(period), chunked_prefill_size=CHUNK, **server_args)


def check(run: Run, algorithm: str, period: int) -> None:
    assert_same_answers(run, reference("staggered", algorithm))
    assert_settled(run)
    assert_books_balance(run)
    assert run.modes == flip_pattern(period, len(run.modes))
    assert len(run.modes) > 4 * period, "too few steps to flip both ways twice"
    assert min(run.tokens(mode) for mode in Mode) > 0


@pytest.mark.parametrize("disable_radix_cache", [False, True], ids=["radix", "no-radix"])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("period", range(1, 8))
def test_eagle3_gives_the_same_answers_however_often_it_flips(
    period: int, page_size: int, disable_radix_cache: bool
) -> None:
    outcome = flipped(
        "EAGLE3", period, page_size=page_size, disable_radix_cache=disable_radix_cache
    )
    check(outcome, "EAGLE3", period)
    assert outcome.worker == "SpecSwitchWorker"
    assert outcome.acceptance_length() > 1
    if disable_radix_cache:
        assert outcome.unavailable_slots == 0
        assert not any(result.cached_tokens for result in outcome.results)
    else:
        assert any(result.cached_tokens for result in outcome.results)


@pytest.mark.parametrize("period", [1, 3, 6])
@pytest.mark.parametrize(
    ("algorithm", "worker"),
    [("EAGLE", "SpecSwitchWorker"), ("STANDALONE", "SpecSwitchStandaloneWorker")],
)
def test_other_algorithms_give_the_same_answers_under_flips(
    algorithm: str, worker: str, period: int
) -> None:
    outcome = flipped(algorithm, period)
    check(outcome, algorithm, period)
    assert outcome.worker == worker
    assert outcome.acceptance_length() > 1
