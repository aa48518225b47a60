"""The demo's picture and numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from test_demo_observe import sample, switch

from specswitch.demo.figure import draw, stretches
from specswitch.demo.outcome import Outcome, PhaseTime
from specswitch.demo.report import summary, to_json


def test_stretches_cover_the_whole_run_and_change_mode_at_switches() -> None:
    samples = [sample(0.0, 0), sample(10.0, 100)]
    switches = [switch("target_only", 20), switch("speculate", 70)]
    assert stretches(samples, switches) == [
        (0.0, 2.0, "speculate"),
        (2.0, 7.0, "target_only"),
        (7.0, 10.0, "speculate"),
    ]


def test_run_without_switches_is_one_stretch() -> None:
    assert stretches([sample(0.0, 0), sample(4.0, 9)], []) == [(0.0, 4.0, "speculate")]


def test_picture_of_a_single_sample_can_be_drawn(tmp_path: Path) -> None:
    outcome = Outcome((sample(0.0, 0),), (), (), 0, (), 0.0)
    draw(tmp_path / "one.png", outcome, enter=None, resume=None)
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_numbers_hold_the_time_of_each_switch() -> None:
    outcome = Outcome(
        samples=(sample(0.0, 0), sample(10.0, 100)),
        switches=(switch("target_only", 20),),
        phases=(PhaseTime("burst", 1.0, 5.0, 3, 40),),
        answers=3,
        differing=(),
        reference_seconds=2.0,
    )
    numbers = to_json(outcome)
    assert numbers["switches"][0]["seconds"] == 2.0
    assert numbers["phases"][0]["tokens_per_second"] == 10.0
    assert not outcome.passed
    assert "FAIL  it went back to speculate" in summary(outcome)
