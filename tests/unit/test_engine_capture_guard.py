"""A graph captured while serving is counted, or in debug mode refused."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from specswitch.engine.capture_guard import CaptureGuard, CaptureWhileServing


def runner(captured: list[str]) -> SimpleNamespace:
    return SimpleNamespace(capture=lambda: captured.append("captured"))


def test_a_capture_is_counted_logged_and_done(caplog: pytest.LogCaptureFixture) -> None:
    captured: list[str] = []
    watched, guard = runner(captured), CaptureGuard(raises=False)
    guard.watch("verify", watched)
    assert guard.captures == 0
    with caplog.at_level(logging.WARNING):
        watched.capture()
    assert guard.captures == 1
    assert captured == ["captured"]
    assert "verify graphs" in caplog.text


def test_in_debug_mode_a_capture_stops_the_server() -> None:
    captured: list[str] = []
    watched, guard = runner(captured), CaptureGuard(raises=True)
    guard.watch("target-only", watched)
    with pytest.raises(CaptureWhileServing, match="target-only"):
        watched.capture()
    assert captured == []
