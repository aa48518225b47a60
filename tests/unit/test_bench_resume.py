"""`resume`: what it reads from step times, and the tables that it makes of single measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.errors import BenchmarkError
from benchmarks.resume import steps as resume_steps
from benchmarks.resume.steps import Part, Step
from benchmarks.resume.summary import summarise


def step(mode: str, tokens: dict[str, int], **fields: Any) -> Step:
    values = {"switched": False, "batch": len(tokens), "ms": 2.0, "parts": ()} | fields
    return Step(mode=mode, tokens=tokens, **values)


def speculate(**tokens: int) -> Step:
    return step("speculate", tokens)


def alone(*names: str) -> Step:
    return step("target_only", dict.fromkeys(names, 1))


def test_a_resumption_tells_where_each_request_was_and_what_it_accepted_then() -> None:
    steps = [
        speculate(a=4),
        speculate(a=2, b=3),
        alone("a", "b", "burst"),
        alone("a", "b", "burst"),
        speculate(a=1, b=4),
        speculate(a=3, b=2),
        speculate(a=4, b=4),
    ]
    found = resume_steps.resumption(steps, ["a", "b"], 2)
    assert found.stretch == 2
    # The prefill's token, the strides before, and one a step of the stretch.
    assert found.emitted == {"a": 1 + 6 + 2, "b": 1 + 3 + 2}
    assert found.strides == {"a": [1, 3], "b": [4, 2]}
    assert resume_steps.mean(found.strides) == 2.5


@pytest.mark.parametrize(
    "steps",
    [
        [alone("a", "b"), speculate(a=1, b=1), alone("a", "b"), speculate(a=1, b=1)],
        [alone("a"), alone("a", "b"), speculate(a=1, b=1)],
        [speculate(a=1, b=1)],
    ],
    ids=["two stretches", "not all together", "no stretch"],
)
def test_anything_but_one_common_stretch_is_refused(steps: list[Step]) -> None:
    with pytest.raises(BenchmarkError, match="in place of one stretch"):
        resume_steps.resumption(steps, ["a", "b"], 1)


def test_requests_that_end_too_early_are_named() -> None:
    with pytest.raises(BenchmarkError, match=r"fewer than 2 speculative steps: b$"):
        resume_steps.first_strides([speculate(a=1, b=1), speculate(a=1)], ["a", "b"], 2)


def test_a_comparison_that_left_speculation_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="did not speculate"):
        resume_steps.first_strides([alone("a"), speculate(a=1)], ["a"], 1)


def resumed(batch: int, positions: int, ms: float) -> Step:
    parts = (Part("fill", positions - batch, 3.0), Part("propose", batch, 1.0))
    tokens = {str(n): 1 for n in range(batch)}
    return step("speculate", tokens, switched=True, ms=ms, parts=parts)


def test_catch_ups_count_only_where_every_request_has_missed_as_much() -> None:
    usual = [step("speculate", {"0": 1, "1": 1}, ms=ms) for ms in (4.0, 5.0, 6.0)]
    steps = [*usual, resumed(2, 128, 9.0), resumed(2, 100, 30.0), resumed(1, 64, 30.0)]
    found = resume_steps.catch_up_times(steps, 2, 64)
    assert found == {
        "positions": 128,
        "catch_ups": 1,
        "fill_ms": 3.0,
        "propose_ms": 1.0,
        "catch_up_ms": 4.0,
        "step_ms": 9.0,
        "median_step_ms": 5.0,
        "ratio": 1.8,
    }
    assert resume_steps.catch_up_times(steps, 3, 64) is None


def test_flushes_are_held_against_the_steps_without_one() -> None:
    plain = [alone("a", "b") for _ in range(8)]
    flush = step("target_only", {"a": 1, "b": 1}, ms=3.0, parts=(Part("fill", 70, 0.5),))
    found = resume_steps.flush_times([*plain, flush], 2)
    assert found is not None
    assert (found["flushes"], found["steps"], found["positions"]) == (1, 9, 70)
    assert (found["flush_ms"], found["step_ms"], found["median_step_ms"]) == (0.5, 3.0, 2.0)
    assert found["share"] == pytest.approx(0.5 / 19, abs=1e-5)
    assert resume_steps.flush_times(plain, 2) is None


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    line = {
        "step": 3,
        "mode": "speculate",
        "switched": True,
        "batch": 1,
        "ms": None,
        "forward_ms": 1.0,
        "parts": [["propose", 1, 0.25]],
        "tokens": {"a": 4},
    }
    path = tmp_path / "times.jsonl"
    path.write_text(json.dumps(line) + "\n" + json.dumps(line)[:20])
    (only,) = resume_steps.read(path)
    assert (only.synced, only.sync_ms, only.tokens) == (1, 0.25, {"a": 4})


def test_step_times_of_an_older_server_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    path.write_text('{"mode": "speculate", "switched": false, "batch": 1, "ms": 1.0}\n')
    with pytest.raises(BenchmarkError, match="without 'parts'"):
        resume_steps.read(path)
    with pytest.raises(BenchmarkError, match="no step times"):
        resume_steps.read(tmp_path / "missing.jsonl")


def cell(**value: float) -> dict[str, Any]:
    return {"repeats": [{"server": 0, **value}]}


def speeds(*values: float) -> dict[str, Any]:
    return {"repeats": [{"server": 0, "decode_tok_s": value} for value in values]}


def test_the_tables_are_made_of_the_single_measurements() -> None:
    arms = {
        "acceptance_deferred": {
            "10": cell(acceptance_length=3.0, never_off=3.0, ratio=1.0),
            "100": cell(acceptance_length=2.9, never_off=3.2, ratio=0.906),
        },
        "acceptance_off": {"10": cell(acceptance_length=2.0, never_off=3.1, ratio=0.645)},
        "catch_up": {"16": cell(step_ms=9.0)},
        "off_cost_off": {"16": speeds(100.0, 102.0), "64": speeds(300.0, 302.0)},
        "off_cost_deferred": {"16": speeds(100.0, 100.0), "64": speeds(298.0)},
        "off_cost_every_step": {"16": speeds(80.8)},
    }
    made = summarise({"arms": arms, "setup": {"acceptance": 1.9}})
    assert made["acceptance"] == {
        "never_off": 3.1,
        "deferred": {"10": 3.0, "100": 2.9},
        "off": {"10": 2.0},
    }
    assert made["resume_ratio"] == {"deferred": {"10": 1.0, "100": 0.906}, "off": {"10": 0.645}}
    assert made["catch_up"] == {"16": {"server": 0, "step_ms": 9.0}}
    assert made["off_cost"] == {
        "deferred": {"16": 0.9901, "64": 0.99},
        "every_step": {"16": 0.8},
    }
    assert made["acceptance_length"] == 1.9


def test_parts_that_were_not_measured_have_no_table() -> None:
    made = summarise({"arms": {}, "setup": {"acceptance": None}})
    assert made == {"acceptance_length": None}
