"""What the comparison of two bfloat16 servers lets pass and what it does not."""

from __future__ import annotations

from typing import Any

import pytest
from near_ties import NearTie, compare

# Token 7 is likeliest at each position; 8 is 0.1 below, 9 is 2 below.
ALTERNATIVES = [(-0.5, 7), (-0.6, 8), (-2.5, 9)]


def reference(length: int) -> list[dict[str, Any]]:
    return [{"rid": "a", "output_ids": [7] * length, "top_logprobs": [ALTERNATIVES] * length}]


def answer(*ids: int) -> list[dict[str, Any]]:
    return [{"rid": "a", "output_ids": list(ids)}]


def test_equal_answers_are_compared_to_the_end() -> None:
    outcome = compare(reference(3), answer(7, 7, 7), margin=0.25)
    assert (outcome.total, outcome.compared, outcome.ties, outcome.differences) == (3, 3, [], [])


def test_a_near_tie_is_reported_and_what_follows_is_not_compared() -> None:
    outcome = compare(reference(5), answer(7, 7, 8, 1, 2), margin=0.25)
    assert outcome.differences == []
    assert outcome.compared == 2
    assert outcome.ties == [NearTie("a", 2, pytest.approx(0.1))]


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ((7, 9, 7), "token 1 is 9, not 7 (2.000 below)"),
        ((7, 1, 7), "token 1 is 1, not 7 (not among the likeliest)"),
        ((7, 7), "2 tokens, not 3"),
        ((7, 7, 7, 7), "4 tokens, not 3"),
    ],
)
def test_anything_else_is_a_difference(ids: tuple[int, ...], says: str) -> None:
    outcome = compare(reference(3), answer(*ids), margin=0.25)
    assert outcome.differences == [f"request a: {says}"]
    assert outcome.ties == []


def test_without_a_margin_a_near_tie_is_a_difference() -> None:
    assert compare(reference(3), answer(7, 8, 7), margin=0.0).differences
