"""Acceptance after a stretch without speculation is that of a server which never stopped.

Each run leaves speculation three times, for longer each time, and measures the sixteen speculative
steps after each. What a step accepts depends on its place in the text, and greedy text is the same
in every run: so the server that never stops is measured at the same places.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate

import pytest
from draft_sync_cases import (
    Plan,
    Stride,
    Text,
    assert_each_miss_counts_once,
    assert_says_the_text,
    run_planned,
    strides,
)
from draft_sync_cases import texts as all_texts
from runs import Run, assert_settled

from specswitch.control.decision import Mode

STRETCHES = (10, 100, 400)
MEASURED = 16
# Some more, so that what the next stretch misses lies behind a piece that was drafted.
BETWEEN = 20
ALGORITHMS = ["EAGLE3", "STANDALONE"]
TOKENS = 740


def texts(algorithm: str) -> tuple[Text, ...]:
    """As many as it takes to tell the modes of draft sync apart clearly."""
    return all_texts(algorithm)[:8]


def alternating() -> Plan:
    """Off for each stretch in turn, on for ``BETWEEN`` steps after each, and on at the end."""
    lengths = [length for stretch in STRETCHES for length in (stretch, BETWEEN)]
    ends = list(accumulate(lengths))

    def plan(step: int) -> Mode:
        passed = sum(end <= step for end in ends)
        return Mode.TARGET_ONLY if passed < len(ends) and passed % 2 == 0 else Mode.SPECULATE

    return plan


@cache
def outcome(algorithm: str, mode: str) -> Run:
    """``mode`` of draft sync, or "never_off"."""
    requests = [text.ask(0, TOKENS) for text in texts(algorithm)]
    never = mode == "never_off"
    plan = (lambda _step: Mode.SPECULATE) if never else alternating()
    result = run_planned(requests, algorithm, "deferred" if never else mode, plan)
    assert_says_the_text(result, requests, texts(algorithm))
    assert_settled(result)
    assert_each_miss_counts_once(result)
    return result


def after_stretch(run: Run, stretch: int) -> dict[str, list[Stride]]:
    """The measured strides after a stretch, by request."""
    first = STRETCHES.index(stretch) * BETWEEN
    return {rid: made[first : first + MEASURED] for rid, made in strides(run).items()}


def acceptance_length(measured: dict[str, list[Stride]]) -> float:
    made = [stride.tokens for of_request in measured.values() for stride in of_request]
    return sum(made) / len(made)


@cache
def never_off_from(algorithm: str, places: tuple[int, ...]) -> float:
    """Acceptance length of a server that never stops, over the steps that begin where these do.

    Args:
        places: tokens that each text has gone on at the resumed request's first step. Here they are
            part of the prompt, so that both servers draft from the very same place.
    """
    requests = [
        # The prefill emits one.
        text.ask(emitted - 1, 1 + MEASURED * 4)
        for text, emitted in zip(texts(algorithm), places, strict=True)
    ]
    result = run_planned(requests, algorithm, "deferred", lambda _step: Mode.SPECULATE)
    assert_says_the_text(result, requests, texts(algorithm))
    return acceptance_length({rid: made[:MEASURED] for rid, made in strides(result).items()})


def ratio(algorithm: str, mode: str, stretch: int) -> float:
    measured = after_stretch(outcome(algorithm, mode), stretch)
    assert {len(made) for made in measured.values()} == {MEASURED}
    places = tuple(made[0].emitted for made in measured.values())
    return acceptance_length(measured) / never_off_from(algorithm, places)


@pytest.mark.parametrize("stretch", STRETCHES)
@pytest.mark.parametrize("mode", ["deferred", "every_step"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_acceptance_after_a_stretch_is_that_of_a_server_that_never_stopped(
    algorithm: str, mode: str, stretch: int
) -> None:
    assert ratio(algorithm, mode, stretch) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("stretch", STRETCHES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_without_draft_sync_it_is_clearly_lower(algorithm: str, stretch: int) -> None:
    assert ratio(algorithm, "off", stretch) < 0.95


@pytest.mark.parametrize("mode", ["deferred", "every_step"])
def test_wherever_both_draft_from_the_same_place_they_accept_exactly_as_much(mode: str) -> None:
    never_off = strides(outcome("EAGLE3", "never_off"))
    resumed = strides(outcome("EAGLE3", mode))
    compared = 0
    for rid, made in resumed.items():
        accepted = {stride.emitted: stride.tokens for stride in never_off[rid]}
        same_place = [stride for stride in made if stride.emitted in accepted]
        assert [s.tokens for s in same_place] == [accepted[s.emitted] for s in same_place]
        compared += len(same_place)
    # Two walks over one text soon fall into step.
    assert compared > 0.6 * sum(map(len, resumed.values()))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_deferred_takes_the_very_steps_of_every_step(algorithm: str) -> None:
    assert strides(outcome(algorithm, "deferred")) == strides(outcome(algorithm, "every_step"))
    assert strides(outcome(algorithm, "deferred")) != strides(outcome(algorithm, "off"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_most_of_a_long_stretch_is_flushed_and_the_rest_is_caught_up(algorithm: str) -> None:
    counts = outcome(algorithm, "deferred").snapshot["draft_sync"]
    requests = len(texts(algorithm))
    assert counts["catch_ups"] == len(STRETCHES)
    assert counts["flushed"] + counts["caught_up"] == requests * sum(STRETCHES)
    assert counts["discarded"] == counts["truncated_prefixes"] == 0
    # A window holds 64 positions; what is left of each stretch is less.
    assert counts["caught_up"] < requests * 64 * len(STRETCHES)
    # One draft forward serves many positions.
    assert counts["flushed"] / counts["flushes"] > 64
