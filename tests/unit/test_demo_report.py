"""The demo's picture and numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from test_demo_observe import sample, switch

from specswitch.demo.figure import draw
from specswitch.demo.outcome import Outcome, PhaseTime
from specswitch.demo.report import summary, to_json


def test_picture_of_a_single_sample_can_be_drawn(tmp_path: Path) -> None:
    outcome = Outcome((sample(0.0, 0),), (), (), 0, (), 0.0)
    draw(tmp_path / "one.png", outcome, enter=None, resume=None)
    assert (tmp_path / "one.png").stat().st_size > 1000


def test_numbers_hold_each_switch_with_its_time() -> None:
    outcome = Outcome(
        samples=(sample(0.0, 0), sample(10.0, 100)),
        switches=(switch("target_only", 20),),
        phases=(PhaseTime("burst", 1.0, 5.0, 3, 40),),
        answers=3,
        differing=(),
        reference_seconds=2.0,
    )
    numbers = to_json(outcome)
    assert numbers["switches"] == [
        {
            "seconds": 2.0,
            "step": 20,
            "source": "speculate",
            "target": "target_only",
            "reason": "waiting_high",
            "waiting": 5,
            "running": 4,
            "kv_use": 0.1,
        }
    ]
    assert numbers["phases"][0]["tokens_per_second"] == 10.0
    assert not outcome.passed
    assert "FAIL  it went back to speculate" in summary(outcome)
