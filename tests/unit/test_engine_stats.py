"""Counters of a worker and the read-out that /server_info shows."""

from __future__ import annotations

import json

import pytest

from specswitch.config import Config
from specswitch.control.controller import build_controller
from specswitch.control.decision import Mode
from specswitch.control.load import LoadSample
from specswitch.engine.stats import ACCEPTANCE_WINDOW, RECENT_SWITCHES, StepStats


def test_steps_and_tokens_are_counted_by_mode() -> None:
    stats = StepStats()
    stats.count_step(Mode.SPECULATE)
    stats.count_step(Mode.TARGET_ONLY)
    stats.count_step(Mode.TARGET_ONLY)
    stats.count_result(Mode.SPECULATE, tokens=7, requests=2)
    stats.count_result(Mode.TARGET_ONLY, tokens=2, requests=2)
    assert stats.steps == {Mode.SPECULATE: 1, Mode.TARGET_ONLY: 2}
    assert stats.tokens == {Mode.SPECULATE: 7, Mode.TARGET_ONLY: 2}


def test_acceptance_length_is_tokens_per_request_and_speculative_step() -> None:
    stats = StepStats()
    assert stats.acceptance_length is None
    stats.count_result(Mode.TARGET_ONLY, tokens=5, requests=5)
    assert stats.acceptance_length is None
    stats.count_result(Mode.SPECULATE, tokens=6, requests=2)
    stats.count_result(Mode.SPECULATE, tokens=2, requests=2)
    stats.count_result(Mode.SPECULATE, tokens=0, requests=0)
    assert stats.acceptance_length == pytest.approx(2.0)


def test_acceptance_length_forgets_old_steps() -> None:
    stats = StepStats()
    for _ in range(10):
        stats.count_result(Mode.SPECULATE, tokens=4, requests=1)
    for _ in range(ACCEPTANCE_WINDOW):
        stats.count_result(Mode.SPECULATE, tokens=1, requests=1)
    assert stats.acceptance_length == pytest.approx(1.0)


def test_the_read_out_tells_state_load_and_recent_switches() -> None:
    controller = build_controller(
        Config.model_validate({"policy": {"kind": "periodic", "period": 1}})
    )
    stats = StepStats()
    controller.add_listener(stats.count_switch)
    sample = None
    for step in range(RECENT_SWITCHES + 10):
        sample = LoadSample(step, waiting=step + 1, running=2, kv_use=0.25)
        stats.count_step(controller.decide(sample).mode)
    shown = stats.snapshot(controller, sample)
    assert shown == json.loads(json.dumps(shown))
    assert (shown["mode"], shown["reason"], shown["step"]) == ("target_only", "periodic", 73)
    assert (shown["waiting"], shown["running"], shown["kv_use"]) == (74, 2, 0.25)
    assert shown["steps"] == {"speculate": 37, "target_only": 37}
    assert shown["switches"]["total"] == RECENT_SWITCHES + 9
    assert [switch["step"] for switch in shown["switches"]["recent"]] == list(range(10, 74))
    assert shown["switches"]["recent"][0] == {
        "step": 10,
        "from": "target_only",
        "to": "speculate",
        "reason": "periodic",
        "waiting": 11,
        "running": 2,
        "kv_use": 0.25,
    }


def test_the_read_out_before_the_first_step_is_complete() -> None:
    shown = StepStats().snapshot(build_controller(Config()), None)
    assert (shown["mode"], shown["reason"], shown["step"]) == ("speculate", "start", -1)
    assert shown["acceptance_length"] is None
    assert shown["switches"] == {"total": 0, "recent": []}
