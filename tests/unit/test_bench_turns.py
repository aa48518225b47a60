"""Ratios between arms: from turns where there are any."""

from __future__ import annotations

from typing import Any

from benchmarks.turns import ratio


def cell(value: float, **turns: float) -> dict[str, Any]:
    return {"speed": value, "repeats": [{"turn": t, "speed": v} for t, v in turns.items()]}


def test_drift_between_turns_cancels() -> None:
    slower = cell(200.0, a=99.0, b=198.0, c=396.0)
    assert ratio(slower, cell(150.0, a=100.0, b=200.0, c=400.0), "speed") == 0.99


def test_a_turn_that_only_one_has_is_left_out() -> None:
    assert ratio(cell(1.0, a=50.0, b=90.0), cell(1.0, b=100.0, c=1.0), "speed") == 0.9


def test_an_arm_that_came_twice_in_a_turn_counts_twice() -> None:
    twice = {"speed": 1.0, "repeats": [{"turn": "a", "speed": v} for v in (100.0, 200.0)]}
    assert ratio(cell(1.0, a=100.0), twice, "speed") == 0.75


def test_without_a_common_turn_the_medians_are_compared() -> None:
    assert ratio(cell(90.0, a=1.0), cell(100.0, b=1.0), "speed") == 0.9
    assert ratio({"speed": 90.0}, {"speed": 100.0}, "speed") == 0.9


def test_no_value_gives_no_ratio() -> None:
    assert ratio({}, cell(1.0, a=1.0), "speed") is None
    assert ratio(cell(1.0, a=1.0), {"speed": None, "repeats": []}, "speed") is None
    zero = {"speed": 0.0, "repeats": [{"turn": "a", "speed": None}]}
    assert ratio(cell(1.0, a=1.0), zero, "speed") is None
