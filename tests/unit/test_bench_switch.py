"""First steps are compared with steps of the same mode, batch and stretch."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks.errors import BenchmarkError
from benchmarks.switch import Step, evaluate, parse, stretches


def steps(*runs: tuple[str, int, list[float | None]]) -> list[Step]:
    """Steps from (mode, batch, times); the first of each run is a switch."""
    found: list[Step] = []
    for mode, batch, times in runs:
        for number, ms in enumerate(times):
            found.append(Step(len(found), mode, number == 0, batch, ms, ms or 1.0))
    return found


def test_a_slow_first_step_shows_in_the_ratio_of_its_mode_only() -> None:
    found = evaluate(
        stretches(
            steps(
                ("speculate", 4, [9.0, 6.0, 6.0, 6.0]),
                ("target_only", 4, [4.0, 4.0, 4.0]),
                ("speculate", 4, [12.0, 6.0, 6.0]),
            )
        )
    )
    assert found["speculate"]["switches"] == 2
    assert found["speculate"]["ratio"] == pytest.approx(10.5 / 6)
    assert found["speculate"]["worst"] == 2.0
    assert found["target_only"]["ratio"] == 1.0


def test_time_lost_on_the_host_shows_beside_the_device_time() -> None:
    lost = [Step(n, "speculate", n == 0, 4, 8.0 if n == 0 else 4.0, 3.0) for n in range(4)]
    found = evaluate(stretches(lost))["speculate"]
    assert (found["ratio"], found["forward_ratio"]) == (2.0, 1.0)


def test_steps_before_the_first_switch_are_not_used() -> None:
    before = [Step(n, "speculate", False, 4, 5.0, 5.0) for n in range(5)]
    assert stretches(before) == []


def test_a_change_of_the_batch_ends_the_stretch() -> None:
    changed = steps(("speculate", 4, [5.0, 5.0, 5.0, 5.0]))
    changed[3] = Step(3, "speculate", False, 3, 50.0, 50.0)
    (only,) = stretches(changed)
    assert (only.batch, only.rest_ms) == (4, (5.0, 5.0))


def test_a_prefill_ends_the_stretch_and_spoils_a_first_step() -> None:
    (only,) = stretches(steps(("speculate", 4, [5.0, 5.0, 5.0, None, 5.0, 5.0, 5.0])))
    assert only.rest_ms == (5.0, 5.0)
    assert stretches(steps(("speculate", 4, [None, 5.0, 5.0, 5.0]))) == []


def test_missing_steps_end_the_stretch() -> None:
    gap = steps(("speculate", 4, [5.0] * 6))
    del gap[3]
    (only,) = stretches(gap)
    assert len(only.rest_ms) == 2


def test_stretches_too_short_to_judge_are_left_out() -> None:
    assert stretches(steps(("speculate", 4, [5.0, 5.0]), ("target_only", 4, [5.0]))) == []


def line(**change: Any) -> str:
    step = {"step": 1, "mode": "speculate", "switched": False, "batch": 4, "ms": 5.0}
    return json.dumps({**step, "forward_ms": 4.0, **change}) + "\n"


def test_lines_are_read_and_an_unfinished_last_one_is_dropped() -> None:
    assert len(parse([line(), line(step=2), '{"step": 3, "mo'], "f")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{\n", "f, line 2: not JSON"),
        ('{"step": 1}\n', "f, line 2: lacks mode, switched, batch, ms"),
        (line(mode="fast"), "f, line 2: unknown mode 'fast'"),
    ],
)
def test_a_bad_line_is_named(text: str, message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        parse([line(), text], "f")
