"""The draft's KV after a resume, slot by slot: equal to a fresh prefill of the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from draft_kv import TOLERANCE, differences, keep_all, whole_sequences
from draft_sync_cases import (
    assert_each_miss_counts_once,
    assert_says_the_text,
    run_planned,
    texts,
)
from harness import Request
from runs import Run, assert_books_balance, assert_settled

from specswitch.control.decision import Mode

# With the page size to use. STANDALONE drafts with the token that follows a position as well, but
# its cached prefixes are not keyed by it: after a hit on one shared token the draft's KV of that
# token is wrong, with the engine's own worker too. No page of 16 is shared by these texts.
ALGORITHMS = [("EAGLE3", 1), ("STANDALONE", 16), ("EAGLE", 1)]
# Off for longer than the smaller windows twice, once just shorter than a flush, once for one step.
STRETCHES = ((Mode.TARGET_ONLY, 40), (Mode.SPECULATE, 6), (Mode.TARGET_ONLY, 23))
STRETCHES += ((Mode.SPECULATE, 4), (Mode.TARGET_ONLY, 3), (Mode.SPECULATE, 2))
STRETCHES += ((Mode.TARGET_ONLY, 1), (Mode.SPECULATE, 1000))


def plan(step: int) -> Mode:
    for mode, length in STRETCHES:
        if step < length:
            return mode
        step -= length
    raise AssertionError("the run is longer than planned")


def requests(algorithm: str) -> list[Request]:
    """Eight that arrive in turn: some resume often, some begin or end in a stretch."""
    return [
        text.ask(0, 60 + 15 * number, arrive=7 * number, rid=f"request {number}")
        for number, text in enumerate(texts(algorithm)[:8])
    ]


@cache
def outcome(algorithm: str, mode: str, window: int, page_size: int) -> Run:
    asked = requests(algorithm)
    result = run_planned(
        asked, algorithm, mode, plan, window=window, also=keep_all, page_size=page_size
    )
    assert_says_the_text(result, asked, texts(algorithm))
    assert_settled(result)
    assert_each_miss_counts_once(result)
    if mode != "every_step":
        assert_books_balance(result)
    return result


def wrong(algorithm: str, run: Run, what: str) -> dict[str, list[int]]:
    return differences(run.notes[what], whole_sequences(requests(algorithm), run), algorithm)


# (algorithm, window, page size)
SETTINGS = [
    ("EAGLE3", 64, 1),
    ("EAGLE3", 16, 16),
    ("EAGLE3", 8, 1),
    ("STANDALONE", 8, 16),
    ("STANDALONE", 64, 16),
    ("EAGLE", 16, 1),
    ("EAGLE", 8, 16),
]


@pytest.mark.parametrize(("algorithm", "window", "page_size"), SETTINGS)
def test_deferred_leaves_what_a_fresh_prefill_would(
    algorithm: str, window: int, page_size: int
) -> None:
    run = outcome(algorithm, "deferred", window, page_size)
    assert run.page_size == page_size
    assert len({kept.name for kept in run.notes["resumed"]}) == 8
    assert wrong(algorithm, run, "resumed") == {}


@pytest.mark.parametrize(("algorithm", "window", "page_size"), SETTINGS)
def test_deferred_caches_no_prefix_that_the_draft_has_missed(
    algorithm: str, window: int, page_size: int
) -> None:
    run = outcome(algorithm, "deferred", window, page_size)
    assert len(run.notes["cached"]) == 8
    assert wrong(algorithm, run, "cached") == {}


@pytest.mark.parametrize(("algorithm", "page_size"), ALGORITHMS)
def test_every_step_leaves_what_a_fresh_prefill_would(algorithm: str, page_size: int) -> None:
    run = outcome(algorithm, "every_step", 64, page_size)
    assert wrong(algorithm, run, "resumed") == {}
    assert wrong(algorithm, run, "cached") == {}


@pytest.mark.parametrize(("algorithm", "page_size"), ALGORITHMS)
def test_off_leaves_holes_where_it_decoded_alone_and_caches_none_of_them(
    algorithm: str, page_size: int
) -> None:
    run = outcome(algorithm, "off", 64, page_size)
    holes = wrong(algorithm, run, "resumed")
    assert len(holes) == 8
    first = requests(algorithm)[0]
    # The prefill emits the first token; the stretch decodes forty positions after the prompt.
    begin = len(first.input_ids)
    assert set(holes["request 0"]) >= set(range(begin, begin + 38))
    assert wrong(algorithm, run, "cached") == {}


@pytest.mark.parametrize(("algorithm", "page_size"), ALGORITHMS)
def test_deferred_and_every_step_leave_the_same_in_every_slot(
    algorithm: str, page_size: int
) -> None:
    deferred = outcome(algorithm, "deferred", 64, page_size).notes["resumed"]
    every_step = outcome(algorithm, "every_step", 64, page_size).notes["resumed"]
    assert [kept.name for kept in deferred] == [kept.name for kept in every_step]
    for one, other in zip(deferred, every_step, strict=True):
        np.testing.assert_allclose(one.kv, other.kv, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("window", [8, 16, 64])
def test_the_window_changes_when_positions_are_written_and_nothing_else(window: int) -> None:
    settings: Sequence[tuple[int, int]] = [(64, 1), (16, 16), (8, 1)]
    page_size = dict(settings)[window]
    run, reference = (
        outcome("EAGLE3", "deferred", window, page_size),
        outcome("EAGLE3", "every_step", 64, 1),
    )
    assert [step.kept for step in run.steps] == [step.kept for step in reference.steps]
    counts = run.snapshot["draft_sync"]
    # Of 40 + 23 + 3 + 1 positions in a row, a window keeps but its own.
    assert counts["caught_up"] <= 8 * (3 * window + 1)
    assert (counts["flushed"] > 0) == (window <= 64)
