"""The demo command from start to end, against fake servers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import demo_fakes
import pytest
from demo_fakes import FakeLaunch
from test_demo_server import gone
from typer.testing import CliRunner, Result

from specswitch import tiny_pair
from specswitch.cli.main import app
from specswitch.demo import main as demo_main

CONFIG = """\
policy:
  kind: queue_depth
  waiting: {enter: 3, resume: 0}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    return file


@pytest.fixture(autouse=True)
def _restore(monkeypatch: pytest.MonkeyPatch) -> None:
    # `replace_servers` assigns; registering the originals here undoes it.
    for owner, name in ((demo_main, "Launch"), (demo_main, "Plan"), (tiny_pair, "path")):
        monkeypatch.setattr(owner, name, getattr(owner, name))


def run(launch: FakeLaunch, config: Path, out: Path) -> Result:
    demo_fakes.replace_servers(launch)
    return CliRunner().invoke(app, ["demo", "--out", str(out), "--config", str(config)])


def test_demo_passes_and_leaves_a_report(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "report"
    result = run(FakeLaunch(), config, out)
    assert result.exit_code == 0, result.output
    assert (out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert "all answers equal" in (out / "summary.txt").read_text()

    numbers = json.loads((out / "demo.json").read_text())
    assert all(numbers["checks"].values())
    assert numbers["answers"] == {"compared": 24, "different": []}
    assert [phase["name"] for phase in numbers["phases"]] == ["calm", "burst", "calm again"]
    targets = [switch["target"] for switch in numbers["switches"]]
    assert targets[:2] == ["target_only", "speculate"]
    assert max(entry["waiting"] for entry in numbers["samples"]) > 0


def test_each_switch_is_printed_with_its_reason(config: Path, tmp_path: Path) -> None:
    output = run(FakeLaunch(), config, tmp_path / "report").output
    assert "speculate -> target_only (waiting_high" in output
    assert "target_only -> speculate (load_low" in output


def test_demo_fails_when_an_answer_differs(config: Path, tmp_path: Path) -> None:
    result = run(FakeLaunch(extra=("--wrong-answer",)), config, tmp_path / "report")
    assert result.exit_code == 1
    assert "FAIL  all answers equal" in result.output
    assert "without speculation it is" in result.output


def test_demo_fails_when_the_burst_switches_nothing(config: Path, tmp_path: Path) -> None:
    result = run(FakeLaunch(extra=("--never-switch",)), config, tmp_path / "report")
    assert result.exit_code == 1
    assert "FAIL  the burst switched the server to target_only" in result.output


def test_demo_fails_when_the_server_does_not_switch_back(config: Path, tmp_path: Path) -> None:
    result = run(FakeLaunch(extra=("--never-resume",)), config, tmp_path / "report")
    assert result.exit_code == 1
    assert "ok    the burst switched" in result.output
    assert "FAIL  it went back to speculate" in result.output


def test_server_that_cannot_start_ends_the_demo_with_its_log(config: Path, tmp_path: Path) -> None:
    result = run(FakeLaunch(extra=("--fail-to-start",)), config, tmp_path / "report")
    assert result.exit_code == 2
    assert "ended while it started" in result.output
    assert "the fake engine cannot start" in result.output


def test_server_that_breaks_under_load_ends_the_demo(config: Path, tmp_path: Path) -> None:
    result = run(FakeLaunch(extra=("--die-at", "60")), config, tmp_path / "report")
    assert result.exit_code == 2
    assert "the fake engine broke" in result.output


def test_server_without_specswitch_is_noticed(config: Path, tmp_path: Path) -> None:
    launch = FakeLaunch()
    plain = FakeLaunch()
    object.__setattr__(launch, "specswitch", plain.reference)
    result = run(launch, config, tmp_path / "report")
    assert result.exit_code == 2
    assert "runs without specswitch" in result.output


def test_config_that_is_wrong_is_refused_before_a_server_starts(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("polcy: {kind: queue_depth}\n")
    result = run(FakeLaunch(), file, tmp_path / "report")
    assert result.exit_code == 2
    assert "polcy" in result.output
    assert not (tmp_path / "report").exists()


def test_out_that_cannot_be_written_is_refused(config: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(FakeLaunch(), config, tmp_path / "file" / "report")
    assert result.exit_code == 2
    assert "cannot write" in result.output


def test_missing_matplotlib_is_said_before_a_server_starts(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specswitch.cli import demo_cmd

    found = demo_cmd.importlib.util.find_spec
    monkeypatch.setattr(
        demo_cmd.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "matplotlib" else found(name, *rest),
    )
    result = run(FakeLaunch(), config, tmp_path / "report")
    assert result.exit_code == 2
    assert "pip install 'specswitch[plot]'" in result.output
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_demo_and_all_its_servers(
    number: signal.Signals, config: Path, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    driver = [sys.executable, demo_fakes.__file__, str(pids), "100000"]
    process = subprocess.Popen(
        [*driver, "demo", "--out", str(tmp_path / "report"), "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while not pids.is_file() or not pids.read_text().endswith("\n"):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}" in output
    assert "Traceback" not in output
    assert all(gone(int(pid)) for pid in pids.read_text().split())
