"""What the demo prints, with and without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from test_demo_observe import sample, switch

from specswitch.demo.screen import LiveScreen, PlainScreen, Screen, screen_for


def shown(screen: Screen, stream: io.StringIO) -> str:
    with screen:
        screen.task("start the server", None)
        screen.progress(detail="loading [weights]")
        screen.finish("ready")
        screen.task("burst", 4)
        screen.progress(2)
        screen.sample(sample(1.0, 5))
        screen.switch(switch("target_only", 5))
        screen.finish()
    return stream.getvalue()


def test_terminal_gets_the_live_screen_and_a_log_plain_lines() -> None:
    assert isinstance(screen_for(Console(force_terminal=True)), LiveScreen)
    assert isinstance(screen_for(Console(file=io.StringIO())), PlainScreen)


def test_plain_lines_hold_state_and_switch_without_control_characters() -> None:
    stream = io.StringIO()
    text = shown(PlainScreen(Console(file=stream, width=40)), stream)
    assert "mode speculate" in text
    assert "step 5: speculate -> target_only (waiting_high; waiting 5" in text
    assert "start the server: done" in text
    assert "\x1b" not in text


def test_live_screen_holds_state_switch_and_log_line() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=140, height=40)
    text = shown(LiveScreen(console), stream)
    assert "speculate -> target_only" in text
    assert "queue depth" in text
    assert "burst" in text


def test_plain_lines_show_that_a_slow_start_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    screen = PlainScreen(Console(file=stream, width=40))
    clock = iter(range(0, 400, 20))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    screen.task("start the server", None)
    screen.progress(detail="loading weights")
    assert "20 s  loading weights" in stream.getvalue()
