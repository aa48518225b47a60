"""`specswitch config`, as a user runs it: output, errors on stderr, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specswitch import __version__
from specswitch.cli.main import app
from specswitch.config import json_schema

START = "from specswitch.cli.main import app; app()"
FILE = "policy:\n  kind: queue_depth\n  waiting: {enter: 20, resume: 3}\n"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "good.yaml").write_text(FILE)
    (tmp_path / "bad.yaml").write_text("guard:\n  vote: 3\n  dwell_steps: yes\n")

    def run(*arguments: str):
        return CliRunner().invoke(app, arguments)

    return run


def test_version(run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"specswitch {__version__}\n")


def test_help_lists_the_commands(run) -> None:
    assert {"schema", "check", "show"} <= set(run("config", "--help").stdout.split())


def test_schema_prints_the_json_schema(run) -> None:
    result = run("config", "schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json_schema()


def test_check_says_ok(run) -> None:
    result = run("config", "check", "good.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "good.yaml: ok\n", "")


def test_check_lists_every_problem_on_stderr(run) -> None:
    result = run("config", "check", "bad.yaml")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == (
        "bad.yaml:2: guard.vote: unknown key; did you mean votes?\n"
        "bad.yaml:3: guard.dwell_steps: expected a whole number, got `yes`, which YAML reads as "
        "true\n"
    )


def test_check_goes_on_to_the_next_file(run) -> None:
    result = run("config", "check", "missing.yaml", "good.yaml")
    assert result.exit_code == 1
    assert result.stdout == "good.yaml: ok\n"
    assert result.stderr.startswith("missing.yaml: cannot read it")


def test_check_reads_a_pipe_on_stdin(tmp_path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", START, "config", "check", "/dev/stdin"],
        input=FILE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.stderr) == ("/dev/stdin: ok\n", "")


@pytest.mark.parametrize("command", ["check", "show"])
def test_empty_file_name_is_no_file(run, command) -> None:
    result = run("config", command, "")
    assert result.exit_code == 1
    assert result.stderr.startswith("no file named")


def test_key_that_is_set_twice_is_refused(run) -> None:
    result = run("config", "show", "--set", "guard.votes=8", "--set", "guard.votes=9")
    assert result.exit_code == 1
    assert result.stderr == "flag guard.votes: given twice; give it once\n"


def test_check_needs_a_file(run) -> None:
    assert run("config", "check").exit_code == 2


def test_show_prints_each_value_with_its_origin(run) -> None:
    result = run("config", "show", "good.yaml", "--set", "max_speculative_batch=32")
    assert result.exit_code == 0
    rows = [
        tuple(cell.strip() for cell in line.split("│")[1:-1])
        for line in result.stdout.splitlines()
        if line.startswith("│")
    ]
    assert ("policy.waiting.enter", "20", "file") in rows
    assert ("policy.running.enter", "33", "default") in rows
    assert ("guard.votes", "3", "default") in rows
    assert ("max_speculative_batch", "32", "flag") in rows


def test_show_without_a_file_shows_the_defaults(run) -> None:
    result = run("config", "show", "--json")
    assert result.exit_code == 0
    assert set(json.loads(result.stdout)["origins"].values()) == {"default"}


def test_show_json_holds_values_and_origins(run) -> None:
    result = run("config", "show", "good.yaml", "--json", "--set", "policy.kv_use=null")
    shown = json.loads(result.stdout)
    assert shown["config"]["policy"]["waiting"] == {"enter": 20, "resume": 3}
    assert shown["config"]["policy"]["kv_use"] is None
    assert shown["origins"]["policy.waiting.enter"] == "file"
    assert shown["origins"]["policy.kv_use"] == "flag"


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("max_speculative_batch=0", "flag max_speculative_batch: must be at least 1, got `0`"),
        ("max_speculative_batch=1e3", "flag max_speculative_batch: expected a whole number, got "
         "`1e3`, which is text; write 1000"),
        ("max_speculative_batch=010", "flag max_speculative_batch: write `010` as a plain decimal "
         "number"),
        ("guard.votes=", "flag guard.votes: a value is missing"),
        ("guard.votes=[1", "flag guard.votes: not valid YAML"),
        ("guard.votse=3", "flag guard.votse: unknown key; did you mean votes?"),
        ("=3", "expected KEY=VALUE"),
        ("votes", "expected KEY=VALUE"),
    ],
)  # fmt: skip
def test_bad_setting_is_refused_on_stderr(run, setting, line) -> None:
    result = run("config", "show", "good.yaml", "--set", setting)
    assert result.exit_code in (1, 2)
    assert line in result.stderr
    assert result.stdout == ""


def test_settings_can_be_mappings_and_change_the_kind(run) -> None:
    result = run(
        *("config", "show", "good.yaml", "--json"),
        *("--set", "policy.mode=target_only", "--set", "policy.kind=fixed"),
        *("--set", "guard={dwell_steps: 0, votes: 1}"),
    )
    shown = json.loads(result.stdout)["config"]
    assert shown["policy"] == {"kind": "fixed", "mode": "target_only"}
    assert shown["guard"]["votes"] == 1


def test_installed_command_ends_with_the_code_and_without_a_traceback(tmp_path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", START, "config", "check", str(tmp_path / "missing.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr
