"""Thresholds follow from the break-even table and from nothing else."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml
from benchmarks.breakeven import H200_8B, BreakEvenTable, thresholds
from benchmarks.errors import BenchmarkError
from benchmarks.results import load
from hypothesis import given
from hypothesis import strategies as st

from specswitch.config import load_config

THREE = H200_8B[3]
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
ACCEPTANCES = st.floats(1.0, 4.0, allow_nan=False)


def test_the_table_of_3_steps_is_the_median_of_the_results() -> None:
    found: dict[int, list[float]] = {}
    for path in RESULTS.glob("h200-envelope*.json"):
        table = BreakEvenTable.from_result(load(path), path.name)
        for size, ratio in table.rows.items():
            found.setdefault(size, []).append(ratio)
    assert {size: round(median(ratios), 2) for size, ratios in found.items()} == dict(THREE.rows)


def test_the_crossover_of_acceptance_1_9_lies_between_64_and_128() -> None:
    assert THREE.crossover(1.9) == pytest.approx(64 + (1.9 - 1.70) / (2.33 - 1.70) * 64)


def test_speculation_that_always_pays_has_no_crossover() -> None:
    assert THREE.crossover(2.85) is None


def test_speculation_that_never_pays_crosses_at_zero() -> None:
    assert THREE.crossover(1.2) == 0.0


def test_of_several_crossings_the_largest_batch_counts() -> None:
    # One step: 1.55 at batch 1, 1.52 at 16, 1.58 at 128.
    crossing = H200_8B[1].crossover(1.54)
    assert crossing is not None
    assert 64 < crossing < 128


def test_thresholds_of_acceptance_1_9() -> None:
    config = thresholds(1.9, THREE, max_running=256)
    assert config["policy"]["running"] == {"enter": 85, "resume": 75}
    assert config["max_speculative_batch"] == 128


def test_at_64_it_speculates_and_at_128_it_does_not() -> None:
    marks = thresholds(1.9, THREE, max_running=256)["policy"]["running"]
    assert marks["resume"] >= 64
    assert marks["enter"] <= 128


def test_without_a_crossover_nothing_but_the_server_limits_speculation() -> None:
    config = thresholds(2.85, THREE, max_running=256)
    assert config["policy"]["running"] is None
    assert config["max_speculative_batch"] == 256


def test_a_crossover_above_the_servers_limit_is_none() -> None:
    assert thresholds(1.9, THREE, max_running=48)["policy"]["running"] is None


@given(ACCEPTANCES, st.sampled_from(sorted(H200_8B)), st.integers(1, 1024))
def test_all_thresholds_are_valid_configurations(
    tmp_path_factory: Any, acceptance: float, steps: int, max_running: int
) -> None:
    config = thresholds(acceptance, H200_8B[steps], max_running)
    path = tmp_path_factory.mktemp("config") / "specswitch.yaml"
    path.write_text(yaml.safe_dump(config))
    loaded = load_config(path)
    assert loaded.max_speculative_batch <= max_running


@given(ACCEPTANCES, ACCEPTANCES)
def test_a_higher_acceptance_never_lowers_the_crossover(one: float, other: float) -> None:
    low, high = (THREE.crossover(value) for value in sorted((one, other)))
    assert (float("inf") if high is None else high) >= (float("inf") if low is None else low)


def test_an_acceptance_below_one_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="at least 1"):
        thresholds(0.9, THREE, max_running=256)


def test_the_table_of_another_machine_comes_from_its_envelope() -> None:
    arms = {
        "no_spec": {"1": {"step_ms": 4.0}, "64": {"step_ms": 5.0}, "128": {"step_ms": None}},
        "static": {"1": {"step_ms": 6.0}, "64": {"step_ms": 10.0}},
    }
    table = BreakEvenTable.from_result({"arms": arms, "setup": {"steps": 3}}, "mine.json")
    assert dict(table.rows) == {1: 1.5, 64: 2.0}


def test_a_result_without_step_times_is_refused() -> None:
    with pytest.raises(BenchmarkError, match=r"mine\.json holds no step times"):
        BreakEvenTable.from_result({"arms": {}, "setup": {"steps": 3}}, "mine.json")
