"""The benchmark commands from end to end, against the stand-in engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")
pytest.importorskip("numpy")

from benchmarks import cli, machine, options

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("bench_fake_engine.py")

Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the stand-in as `sglang.launch_server`."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(FAKE, package / "launch_server.py")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["X"], "vocab_size": 100}')
    monkeypatch.setattr(machine, "engine_version", lambda: "sglang 0.0")
    monkeypatch.setattr(options, "engine_has_gate", lambda: False)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.chdir(ROOT)
    return tmp_path


@pytest.fixture
def bench(engine: Path) -> Run:
    """Runs a measuring command on the stand-in; returns exit code and result."""

    def run(command: str, *args: str, out: str = "out.json") -> tuple[int, dict[str, Any]]:
        path = engine / out
        code = cli.main([*arguments(engine, command), "--out", str(path), *args])
        return code, json.loads(path.read_text()) if path.exists() else {}

    return run


def arguments(engine: Path, command: str) -> list[str]:
    model = str(engine / "model")
    lengths = ["--input-len", "4", "--output-len", "60", "--decode-log-interval", "3"]
    common = [command, "--device", "cpu", "--model", model, "--draft-model", model, *lengths]
    return [*common, "--no-plot", "--acceptance", "1.9"]


def test_envelope_measures_every_arm_and_point(bench: Run) -> None:
    code, result = bench("envelope", "--points", "1,2")
    assert code == 0
    assert list(result["arms"]) == [
        "no_spec",
        "static",
        "upstream_adaptive",
        "specswitch",
        "forced_target_only",
        "forced_speculate",
    ]
    assert {"benchmark", "gpu", "engine", "command", "date", "acceptance"} <= result.keys()
    assert result["simulated"] is False
    for points in result["arms"].values():
        assert list(points) == ["1", "2"]
        for cell in points.values():
            assert len(cell["repeats"]) == 2
            assert cell["decode_tok_s"] > 0
            assert cell["e2e_tok_s"] > 0
            assert cell["spread"] >= 0
            assert set(cell["itl_ms"]) == {"p50", "p95", "p99"}
            assert cell["ttft_ms"]["p50"] > 0


def test_envelope_sees_what_speculation_emits_and_what_mode_ran(bench: Run) -> None:
    _, result = bench("envelope", "--points", "1", "--arms", "no_spec,forced_speculate")
    cells = {arm: points["1"] for arm, points in result["arms"].items()}
    assert cells["forced_speculate"]["accept_len"] == 2.0
    assert cells["no_spec"]["accept_len"] == 1.0
    assert cells["forced_speculate"]["repeats"][0]["steps"] == {"speculate": 60, "target_only": 0}


def test_every_arm_is_sent_the_same_prompts(
    engine: Path, bench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import client

    sent: list[list[Any]] = []
    original = client.closed_loop

    def record(url: str, requests: Any, concurrency: int) -> Any:
        sent.append([request.prompt for request in requests])
        return original(url, requests, concurrency)

    monkeypatch.setattr(client, "closed_loop", record)
    bench("envelope", "--points", "1,2", "--arms", "no_spec,static", "--repeats", "2")
    half = len(sent) // 2
    assert sent[:half] == sent[half:]
    flat = [tuple(prompt) for load in sent[:half] for prompt in load]
    assert len(set(flat)) == len(flat), "a repeated prompt would come from the prefix cache"


def test_a_profile_splits_a_step_into_busy_and_idle(bench: Run) -> None:
    flags = ["--points", "1", "--arms", "no_spec", "--profile", "1", "--no-latency"]
    code, result = bench("envelope", *flags)
    assert code == 0
    cell = result["arms"]["no_spec"]["1"]
    # 40 kernels of 0.4 ms, one a millisecond.
    assert cell["busy_ms"] == 0.4
    assert cell["idle_ms"] == pytest.approx(39 * 0.6 / 40)


def test_servers_that_are_up_together_are_measured_in_turns(bench: Run) -> None:
    arms = "no_spec,static,forced_speculate"
    flags = ["--points", "1,2", "--arms", arms, "--together", "2", "--no-latency"]
    code, result = bench("envelope", *flags)
    assert code == 0
    turns = {
        arm: [one["turn"] for point in ("1", "2") for one in cells[point]["repeats"]]
        for arm, cells in result["arms"].items()
    }
    assert len(set(turns["no_spec"])) == 4
    assert turns["no_spec"] == turns["static"]
    # Of the next group.
    assert not set(turns["forced_speculate"]) & set(turns["static"])


def test_a_server_that_fails_among_others_leaves_them_running(
    bench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CRASH", "--speculative-adaptive")
    arms = "no_spec,upstream_adaptive,static"
    flags = ["--points", "1", "--arms", arms, "--together", "3", "--no-latency"]
    code, result = bench("envelope", *flags)
    assert code == 1
    assert [one["arm"] for one in result["failed"]] == ["upstream_adaptive"]
    assert [len(result["arms"][arm]["1"]["repeats"]) for arm in ("no_spec", "static")] == [2, 2]


def test_resume_measures_only_what_is_missing(bench: Run) -> None:
    bench("envelope", "--points", "1", "--arms", "no_spec", "--repeats", "1")
    code, result = bench("envelope", "--points", "1,2", "--arms", "no_spec", "--resume")
    assert code == 0
    assert [len(cell["repeats"]) for cell in result["arms"]["no_spec"].values()] == [2, 2]
    assert len(result["runs"]) == 2
    assert result["arms"]["no_spec"]["1"]["repeats"][0]["server"] == 0


def test_an_existing_result_is_not_overwritten(
    bench: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    bench("envelope", "--points", "1", "--arms", "no_spec", "--repeats", "1")
    code, _ = bench("envelope", "--points", "1", "--arms", "no_spec")
    assert code == 2
    assert "--resume" in capsys.readouterr().err


def test_resume_refuses_another_setup(bench: Run, capsys: pytest.CaptureFixture[str]) -> None:
    bench("envelope", "--points", "1", "--arms", "no_spec", "--repeats", "1")
    code, _ = bench("envelope", "--points", "1", "--arms", "no_spec", "--resume", "--seed", "9")
    assert code == 2
    assert "setup.seed" in capsys.readouterr().err


def test_a_deadline_leaves_a_valid_result_and_says_what_is_missing(
    bench: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code, result = bench("envelope", "--points", "1", "--arms", "no_spec", "--deadline", "5")
    assert code == 0
    assert result["arms"] == {}
    assert "not measured before the deadline" in capsys.readouterr().out


def test_a_failing_arm_is_recorded_and_the_others_are_measured(
    bench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CRASH", "--speculative-adaptive")
    code, result = bench(
        "envelope", "--points", "1", "--repeats", "1", "--arms", "no_spec,upstream_adaptive,static"
    )
    assert code == 1
    assert list(result["arms"]) == ["no_spec", "static"]
    assert result["failed"][0]["arm"] == "upstream_adaptive"
    assert "out of memory" in result["failed"][0]["error"]


def test_a_server_that_dies_is_recorded_with_its_last_words(
    bench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DIE_AT", "100")
    code, result = bench("envelope", "--points", "1", "--arms", "no_spec")
    assert code == 1
    assert "illegal memory access" in result["failed"][0]["error"]


def test_a_refused_request_fails_the_arm_with_the_servers_words(
    bench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_REFUSE", "1")
    code, result = bench("envelope", "--points", "1", "--arms", "no_spec")
    assert code == 1
    assert "refused" in result["failed"][0]["error"]


def test_an_arm_without_the_plugin_is_not_measured(
    bench: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the package was installed without its entry points: the flags do nothing.
    from benchmarks.arms import Arm

    monkeypatch.setattr(Arm, "write_config", lambda self, folder: ())
    code, result = bench("envelope", "--points", "1", "--arms", "forced_target_only")
    assert code == 1
    assert "runs without specswitch" in result["failed"][0]["error"]


def test_servers_wait_behind_the_gate_and_are_all_stopped(
    bench: Run, engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "engine_has_gate", lambda: True)
    code, result = bench("envelope", "--points", "1", "--repeats", "1", "--arms", "no_spec,static")
    assert code == 0
    assert all(server["gated"] for server in result["servers"])
    assert not list((engine / "out.logs").glob("*.gate"))
    assert servers_of(engine) == []


def test_switch_compares_first_steps_with_the_others(bench: Run) -> None:
    code, result = bench("switch", "--points", "1,2", "--period", "5")
    assert code == 0
    for cell in result["arms"]["specswitch"].values():
        for mode in ("speculate", "target_only"):
            assert cell[mode]["switches"] >= 1
            assert cell[mode]["ratio"] == 1.0


def test_bursts_report_each_phase(bench: Run) -> None:
    code, result = bench(
        "bursts", "--phases", "calm:0.5:10,burst:0.5:40", "--arms", "no_spec,specswitch",
        "--stream-every", "2",
    )  # fmt: skip
    assert code == 0
    for cells in result["arms"].values():
        assert set(cells) == {"all", "calm", "burst"}
        both = cells["calm"]["repeats"][0]["requests"] + cells["burst"]["repeats"][0]["requests"]
        assert cells["all"]["repeats"][0]["requests"] == both
        assert cells["all"]["ttft_ms"]["p99"] > 0


def test_ctrl_c_stops_the_servers_and_keeps_what_was_measured(engine: Path) -> None:
    script = (
        "import sys; from benchmarks import cli, machine, options\n"
        "machine.engine_version = lambda: 'sglang 0.0'\n"
        "options.engine_has_gate = lambda: True\n"
        "sys.exit(cli.main())"
    )
    out = engine / "out.json"
    arms = ["--arms", "no_spec,static", "--points", "1", "--repeats", "500"]
    command = [
        sys.executable,
        "-c",
        script,
        *arguments(engine, "envelope"),
        "--out",
        str(out),
        *arms,
    ]
    env = {**os.environ, "PYTHONPATH": f"{engine / 'site'}:{ROOT}:{ROOT / 'src'}"}
    process = subprocess.Popen(command, env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while '"decode_tok_s"' not in (out.read_text() if out.exists() else ""):
        assert process.poll() is None
        time.sleep(0.05)
    assert len(servers_of(engine)) == 2, "one serving, one behind its gate"
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate()
    assert process.returncode == 130
    assert "servers are stopped" in error
    assert servers_of(engine) == []
    assert json.loads(out.read_text())["arms"]["no_spec"]["1"]["repeats"]


def servers_of(engine: Path) -> list[int]:
    """Ids of the stand-in servers of this test that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if "sglang.launch_server" in line and str(engine) in line:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--arms", "nonsense"], "unknown arm 'nonsense'; known: no_spec"),
        (["--points", "99"], "above --max-running 8"),
        (["--simulate"], "simulates acceptance on CUDA only"),
        (["--env", "X"], "write KEY=VALUE"),
        (["--acceptance", "9"], "impossible with 3 draft steps"),
        (["--prompts", "/nowhere.txt"], "cannot read the prompts"),
        (["--breakeven", "/nowhere.json"], "cannot read /nowhere.json"),
    ],
)
def test_bad_input_ends_in_one_line_before_any_server_starts(
    bench: Run, engine: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    code, _ = bench("envelope", *args)
    assert code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in engine.iterdir()) == ["model", "site"]
