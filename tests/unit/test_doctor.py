"""`specswitch doctor` as far as it goes without the engine, and its pure parts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from specswitch.cli.main import app
from specswitch.config import Config
from specswitch.doctor import checks
from specswitch.doctor.engine_checks import ServerPlan, place
from specswitch.doctor.estimates import graphs_gib
from specswitch.doctor.findings import Finding, Section, Status, problems, to_json
from specswitch.engine import compat
from specswitch.engine.settings import Settings


def named(section: Section, name: str) -> Finding:
    (found,) = [finding for finding in section.findings if finding.name == name]
    return found


# --- findings


def test_only_problems_are_in_the_way() -> None:
    sections = [
        Section("a", [Finding("x", "fine"), Finding("y", "look", Status.NOTE, "do")]),
        Section("b", [Finding("z", "broken", Status.PROBLEM, "mend")]),
    ]
    assert [finding.name for finding in problems(sections)] == ["z"]
    assert not to_json(sections)["ok"]
    assert to_json(sections[:1])["ok"]
    assert json.loads(json.dumps(to_json(sections)))["sections"]["b"] == [
        {"name": "z", "text": "broken", "status": "problem", "fix": "mend"}
    ]


# --- versions, configuration


@pytest.mark.parametrize(
    ("installed", "allowed", "status", "text"),
    [
        (None, None, Status.PROBLEM, "not installed"),
        ("0.5.12.post1", None, Status.OK, "0.5.12.post1, a tested release"),
        ("0.6.0", None, Status.PROBLEM, "0.6.0 is not a tested release"),
        ("0.6.0", "1", Status.NOTE, "0.6.0, not tested, allowed"),
    ],
)
def test_engine_release_is_judged(monkeypatch, installed, allowed, status, text) -> None:
    monkeypatch.setattr(compat, "installed_version", lambda: installed)
    monkeypatch.delenv(compat.ALLOW_UNTESTED, raising=False)
    if allowed:
        monkeypatch.setenv(compat.ALLOW_UNTESTED, allowed)
    found = named(checks.versions(), "sglang")
    assert found.status is status
    assert text in found.text
    assert (found.fix is None) == (status is not Status.PROBLEM)


@pytest.mark.parametrize(
    ("plugins", "status"),
    [("", Status.OK), ("other, specswitch", Status.OK), ("other", Status.PROBLEM)],
)
def test_a_plug_in_that_is_kept_out_is_a_problem(monkeypatch, plugins, status) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", plugins)
    assert named(checks.versions(), "plug-in").status is status


def test_configuration_is_shown_with_origins(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("guard: {votes: 7}\n")
    section = checks.configuration(path)
    assert named(section, "guard.votes").text == "7 (file)"
    assert named(section, "guard.dwell_steps").text == "32 (default)"
    assert named(checks.configuration(None), "file").text == "no file: defaults"


def test_every_mistake_in_the_file_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("guard: {votes: 0}\nmax_speculative_batch: -1\n")
    found = checks.configuration(path).findings
    assert [finding.status for finding in found] == [Status.PROBLEM] * 2
    assert "guard.votes" in found[0].text


# --- estimates


def test_graph_estimate_is_what_was_measured_where_it_was_measured() -> None:
    assert graphs_gib(128 * 4, 128256) == pytest.approx(0.76, abs=0.01)
    assert graphs_gib(256 * 4, 128256) == pytest.approx(1.44, abs=0.01)
    assert graphs_gib(256, 128256) == pytest.approx(0.36, rel=0.2)


# --- places and arguments


@dataclass
class Generated:
    field: int


def test_place_of_a_function_is_file_and_line() -> None:
    file, _, line = place(checks.versions).rpartition(":")
    assert file == "specswitch/doctor/checks.py"
    source = Path(checks.__file__).read_text().splitlines()
    assert source[int(line) - 1].startswith("def versions")
    assert place(Generated.__init__) == f"generated in {__name__}"
    assert place(len) == "unknown"


class Arguments:
    """Stands for the engine's parser: remembers the words, refuses what it is told to."""

    def __init__(self, refusal: BaseException | None = None) -> None:
        self.words: list[str] = []
        self._refusal = refusal

    def server_args(self, words: list[str]) -> object:
        self.words = words
        if self._refusal is not None:
            raise self._refusal
        return object()


@pytest.fixture
def engine(monkeypatch):
    for variable in ("SPECSWITCH_WORKER", "SPECSWITCH_WORKER_CONFIG"):
        monkeypatch.delenv(variable, raising=False)

    def install(refusal: BaseException | None = None) -> Arguments:
        arguments = Arguments(refusal)

        class Release:
            plans = arguments

        monkeypatch.setattr(compat, "release", lambda: Release)
        return arguments

    return install


def test_what_the_arguments_lack_is_added_and_said(engine) -> None:
    arguments = engine()
    section = ServerPlan(["sglang", "serve", "--model-path", "M"], Path("c.yaml")).server()
    assert arguments.words == [
        *("--model-path", "M", "--speculative-worker", "specswitch"),
        *("--speculative-worker-config", "c.yaml"),
    ]
    fixes = [finding.fix for finding in section.findings if finding.status is Status.NOTE]
    assert fixes == [
        "add --speculative-worker specswitch",
        "add --speculative-worker-config c.yaml",
    ]


def test_what_the_arguments_have_is_left_alone(engine) -> None:
    arguments = engine()
    words = ["--speculative-worker=specswitch", "--speculative-worker-config", "own.yaml"]
    plan = ServerPlan(["python", "-m", "sglang.launch_server", *words], Path("c.yaml"))
    assert arguments.words == words
    # It ran with SGLang's own worker after all.
    (found,) = problems([plan.server()])
    assert found.fix == "set --speculative-worker specswitch"


@pytest.mark.parametrize(
    ("refusal", "lines"),
    [
        (
            SystemExit("specswitch: --a is 2: set it to 1\nspecswitch: --b: drop it"),
            ["--a is 2: set it to 1", "--b: drop it"],
        ),
        (
            ValueError("no  such\nmodel"),
            ["SGLang refuses the arguments: ValueError: no such model"],
        ),
        (AssertionError(), ["SGLang refuses the arguments: AssertionError"]),
    ],
)
def test_each_refusal_is_a_problem(engine, refusal, lines) -> None:
    engine(refusal)
    plan = ServerPlan(["--speculative-worker", "specswitch"], None)
    assert [finding.text for finding in problems([plan.server()])] == lines
    assert plan.memory().findings == []


def plan_of(engine, batch_sizes: list[int] | None, **config: Any) -> ServerPlan:
    """A server with an 8B shape, three draft steps and 256 requests."""
    torch = pytest.importorskip("torch")
    server = SimpleNamespace(
        cuda_graph_bs=[1, 64, 128],
        speculative_num_draft_tokens=4,
        max_running_requests=256,
        dp_size=1,
    )
    Settings(Config.model_validate(config), None, False, batch_sizes).attach(server)
    arguments = engine()
    arguments.server_args = lambda words: server
    arguments.pool_rows = lambda _: 257
    arguments.draft_input_width = lambda _: 3 * 4096
    arguments.target_config = lambda _: SimpleNamespace(vocab_size=128256, dtype=torch.bfloat16)
    return ServerPlan(["--speculative-worker", "specswitch"], None)


def test_memory_is_told_for_ring_and_graphs_with_what_it_rests_on(engine) -> None:
    section = plan_of(engine, [1, 64, 128, 256]).memory()
    ring = 257 * 64 * (3 * 4096 * 2 + 8)
    assert named(section, "ring").text.startswith(f"{ring / 2**30:.3f} GiB on each GPU, computed")
    target_only = named(section, "target-only graphs").text
    assert target_only.startswith("about 0.42 GiB for 4 sizes up to batch 256")
    assert "an estimate" in target_only
    assert "about 0.76 GiB up to batch 128 (256 without" in named(section, "verify graphs").text


@pytest.mark.parametrize(("mode", "text"), [("every_step", "257 rows x 1 pos"), ("off", "none")])
def test_ring_follows_the_mode_of_draft_sync(engine, mode, text) -> None:
    section = plan_of(engine, None, draft_sync={"mode": mode}).memory()
    assert text in named(section, "ring").text
    assert named(section, "graphs").text == "none: both modes run eagerly"


# --- the command


def doctor(*words: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def test_without_sglang_it_says_so_and_still_checks_the_rest(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compat, "installed_version", lambda: None)
    path = tmp_path / "c.yaml"
    path.write_text("guard: {votes: 7}\n")
    code, out = doctor("--config", str(path))
    assert code == 1
    text = " ".join(out.split())
    assert "problem sglang not installed -> pip install 'specswitch[engine]'" in text
    assert "guard.votes 7 (file)" in text
    assert out.endswith("1 problem(s) found\n")
    code, out = doctor("--json")
    assert code == 1
    report = json.loads(out)
    assert list(report["sections"]) == ["versions", "devices", "configuration"]
    assert report["ok"] is False
