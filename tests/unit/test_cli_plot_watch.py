"""`specswitch plot` and `specswitch watch`: what they write and say, also when a server is gone."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_cli_ctl import STATE
from test_timeline import sample, server_state, start, switched
from typer.testing import CliRunner

from specswitch.cli.main import app
from specswitch.cli.server_client import ServerClient, ServerError
from specswitch.cli.watch_cmd import Watched, plain_lines, render

GONE = "http://127.0.0.1:9"


def state(step: int, total: int = 0, **changes: Any) -> dict[str, Any]:
    return {**STATE, **server_state(step, total), **changes}


def specswitch(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    """Lets a server answer a list of states, or raise what stands among them."""

    def play(answers: Iterable[Any]) -> None:
        left = iter(answers)

        def states(_client: ServerClient) -> list[dict[str, Any]]:
            answer = next(left)
            if isinstance(answer, BaseException):
                raise answer
            return answer if isinstance(answer, list) else [answer]

        monkeypatch.setattr(ServerClient, "states", states)

    return play


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join([start(0), sample(1, 5, 10), switched(2), sample(3, 20, 90)]))
    return path


# --- plot


def test_plot_of_an_event_log_writes_picture_and_page(log: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out, html = tmp_path / "a.png", tmp_path / "a.html"
    code, said, err = specswitch("plot", str(log), "--out", str(out), "--html", str(html))
    assert (code, said, err) == (0, f"{out}\n{html}\n", "")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "waiting_high" in html.read_text()


def test_plot_writes_a_picture_when_nothing_is_said(log: Path, tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert specswitch("plot", str(log))[:2] == (0, "specswitch.png\n")
    assert specswitch("plot", str(log), "--html", "a.html")[:2] == (0, "a.html\n")


def test_plot_of_a_server_looks_as_long_as_asked(script, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    script([state(5), state(15, 1), state(25, 2)])
    html = tmp_path / "a.html"
    words = ("plot", "http://server", "--seconds", "1", "--interval", "0.5", "--html", str(html))
    assert specswitch(*words)[0] == 0
    assert "1 to target_only" in html.read_text()


def test_plot_of_a_server_draws_what_there_is_when_stopped(script, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    script([state(5), KeyboardInterrupt()])
    out = tmp_path / "a.png"
    words = ("plot", "http://server", "--interval", "0.05", "--out", str(out))
    code, _, err = specswitch(*words)
    assert code == 0
    assert "stopped" in err
    assert out.is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing.jsonl",), "nothing.jsonl: No such file or directory"),
        ((GONE,), "no server answers at"),
        (("nothing.jsonl", "--out", "none/a.png"), "none/a.png: its folder does not exist"),
    ],
)
def test_plot_that_cannot_be_made_is_one_clear_line(words, message) -> None:
    pytest.importorskip("matplotlib")
    code, out, err = specswitch("plot", *words)
    assert (code, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_plot_names_the_replicas_there_are(script) -> None:
    pytest.importorskip("matplotlib")
    script([state(5)])
    assert "1 scheduler(s)" in specswitch("plot", "http://server", "--scheduler", "1")[2]


def test_plot_without_matplotlib_names_the_extra(log: Path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = specswitch("plot", str(log))
    assert (code, err) == (1, "drawing needs matplotlib: pip install 'specswitch[plot]'\n")


# --- watch


def test_watch_prints_a_line_for_each_look_and_each_switch(script) -> None:
    script([state(5), state(15, 1), KeyboardInterrupt()])
    code, out, err = specswitch("watch", "--interval", "0.1")
    assert (code, err) == (0, "")
    first, switch, second = out.splitlines()
    for text in (
        "mode speculate (steady)",
        "waiting 3",
        "KV use 25%",
        "votes 1/3",
        "dwell left 11",
    ):
        assert text in first
    assert switch.startswith(
        "switch    step 10: speculate -> target_only (waiting_high; waiting 9,"
    )
    assert "mode target_only (steady)" in second


def test_watch_ends_after_the_time_that_was_asked_for(script) -> None:
    script([state(5)])
    code, out, _ = specswitch("watch", "--seconds", "0")
    assert code == 0
    assert len(out.splitlines()) == 1


def test_watch_of_a_server_that_goes_away_is_one_clear_line(script) -> None:
    script([state(5), ServerError("no server answers at X")])
    code, out, err = specswitch("watch", "--interval", "0.1")
    assert (code, err) == (1, "no server answers at X\n")
    assert len(out.splitlines()) == 1


def test_watch_without_a_server_is_one_clear_line() -> None:
    code, out, err = specswitch("watch", "--url", GONE)
    assert (code, out) == (1, "")
    assert "no server answers at" in err
    assert len(err.splitlines()) == 1


def test_watch_tells_replicas_apart(script) -> None:
    script([[state(5), state(9)]])
    out = specswitch("watch", "--seconds", "0")[1]
    assert [line[:12] for line in out.splitlines()] == ["scheduler 0:", "scheduler 1:"]


def test_watch_says_since_when_nothing_is_decoded_and_that_the_policy_failed() -> None:
    watched = Watched()
    watched.take(0.0, state(5))
    watched.take(3.0, state(5, failure="ZeroDivisionError: x"))
    (line,) = plain_lines(watched)
    assert "no decode step for 3 s" in line
    assert "SAFE MODE: ZeroDivisionError: x" in line


def test_live_view_shows_state_speed_queue_and_the_last_switches() -> None:
    watched = Watched()
    watched.take(0.0, state(5, 1))
    watched.take(1.0, state(105, 3, tokens={"speculate": 310, "target_only": 0}))
    console = Console(width=120, highlight=False)
    with console.capture() as captured:
        console.print(render(watched))
    text = captured.get()
    for part in ("votes 1 of 3", "tokens/s now        300", "queue depth         ██"):
        assert part in text, text
    order = [text.index(f"step {step}: ") for step in (30, 20)]
    assert order == sorted(order)
