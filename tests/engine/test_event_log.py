"""The event log of a live server, and of one that cannot write it; plot and watch over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from live_server import Load, live_server
from runs import assert_same_answers, assert_settled, periodic, reference, run
from typer.testing import CliRunner

from specswitch.cli.main import app
from specswitch.config_files import ready_configs


class Server(NamedTuple):
    url: str
    log: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    config = yaml.safe_load(ready_configs()["cpu-demo"].read_text())
    log = folder / "events.jsonl"
    config["event_log"] = {"path": str(log), "max_bytes": 4096, "backups": 50, "sample_steps": 5}
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    with live_server(folder, file) as url:
        yield Server(url, log)


def state(server: Server) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/server_info", timeout=None).raise_for_status().json()
    return answer["internal_states"][0]["specswitch"]


def events(server: Server) -> list[dict[str, Any]]:
    """All of them, oldest first; also those that were set aside."""
    older = sorted(server.log.parent.glob("events.jsonl.*"), key=lambda file: -int(file.suffix[1:]))
    return [
        json.loads(line) for file in (*older, server.log) for line in file.read_text().splitlines()
    ]


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.05)


def specswitch(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_log_holds_the_switches_and_the_work_that_the_server_reports(server: Server) -> None:
    with Load(server.url, 12):
        until(lambda: state(server)["mode"] == "target_only")
    with Load(server.url, 1):
        until(lambda: state(server)["mode"] == "speculate")
    # The sample that ends the busy time comes once nothing runs.
    until(lambda: events(server)[-1].get("running") == 0)
    shown, log = state(server), events(server)
    assert log[0]["event"] == "start"
    assert log[0]["config"] == shown["config"]
    switches = [event for event in log if event["event"] == "switch"]
    assert shown["switches"]["total"] == len(switches) >= 2
    told = [{k: v for k, v in each.items() if k not in ("event", "time")} for each in switches]
    assert told[-64:] == shown["switches"]["recent"]
    last = log[-1]
    assert last["event"] == "sample"
    for key in ("step", "mode", "steps", "tokens", "acceptance_length"):
        assert last[key] == shown[key]
    assert [event["time"] for event in log] == sorted(event["time"] for event in log)
    assert shown["errors"] == {"policy": 0, "listener": 0, "telemetry": 0}
    files = list(server.log.parent.glob("events.jsonl*"))
    assert len(files) > 1
    assert all(file.stat().st_size <= 4096 for file in files)


def test_plot_and_watch_of_a_live_server(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, picture = tmp_path / "now.html", tmp_path / "log.png"
    with Load(server.url, 2):
        code, out, err = specswitch("watch", "--url", server.url, "--seconds", "1")
        assert code == 0, err
        assert "waiting" in out
        code, _, err = specswitch("plot", server.url, "--seconds", "1", "--html", str(page))
        assert code == 0, err
    assert "data:image/png;base64," in page.read_text()
    code, _, err = specswitch("plot", str(server.log), "--out", str(picture))
    assert code == 0, err
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null/none/events.jsonl"])
def test_generation_goes_on_when_the_log_cannot_be_written(path: str) -> None:
    config = {"event_log": {"path": path, "sample_steps": 1}}
    outcome = run("staggered", "EAGLE3", periodic(5), config=config)
    assert_same_answers(outcome, reference("staggered", "EAGLE3"))
    assert_settled(outcome)
    errors = outcome.snapshot["errors"]
    assert errors["listener"] == 0
    # Every step was due for a sample, and there were switches.
    assert errors["telemetry"] > len(outcome.steps)
