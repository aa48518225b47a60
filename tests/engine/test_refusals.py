"""Servers that cannot work: one clear line each, a non-zero exit, no traceback, no model loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.arguments import EAGLE3, PAIR, SPECSWITCH, STEPS
from harness.launcher import Outcome, command, launch_forked

from specswitch import tiny_pair
from specswitch.engine import compat


def assert_refused(outcome: Outcome, *parts: str, lines: int = 1) -> None:
    """One line that holds all parts, or several that do together; nothing was loaded."""
    assert outcome.exit_code == 1, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert len(outcome.lines) == lines, outcome.stderr
    for part in parts:
        assert part in "\n".join(outcome.lines)
    assert "Load weight" not in outcome.stderr
    assert "loading shards" not in outcome.stderr


# --- the configuration -----------------------------------------------------------------------


def refuse_file(path: Path) -> Outcome:
    return launch_forked([*EAGLE3, *SPECSWITCH, "--speculative-worker-config", str(path)])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    assert_refused(refuse_file(path), str(path), "No such file")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert_refused(refuse_file(tmp_path), str(tmp_path), "directory")


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("policy: {kind: queue_depth\n", None, ["not valid YAML"]),
        ("", None, ["empty"]),
        ("- a list\n", 1, ["top level"]),
        ("\nmax_speculative_batch: many\n", 2, ["max_speculative_batch", "whole number", "many"]),
        ("max_speculative_batch: 0\n", 1, ["max_speculative_batch", "at least 1"]),
        ("guard:\n  dwel_steps: 3\n", 2, ["guard.dwel_steps", "did you mean dwell_steps?"]),
        ("polcy: {kind: fixed}\n", 1, ["polcy", "did you mean policy?"]),
        ("policy: {kind: queue_deep}\n", 1, ["policy.kind", "did you mean queue_depth?"]),
        ("policy: {kind: fixed}\n", 1, ["policy.mode", "missing"]),
        (
            "policy:\n  waiting: {enter: 4, resume: 4}\n",
            2,
            ["policy.waiting", "resume (4) must be below enter (4)"],
        ),
        (
            "policy:\n  running: {enter: 100, resume: 2}\nmax_speculative_batch: 8\n",
            2,
            ["policy.running.enter (100) is never reached"],
        ),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_with_its_place(
    tmp_path: Path, text: str, line: int | None, parts: list[str]
) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text(text)
    place = str(path) if line is None else f"{path}:{line}: "
    assert_refused(refuse_file(path), place, *parts)


def test_every_problem_of_a_file_has_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text("guard: {votes: 0}\nmax_speculative_batch: -1\n")
    assert_refused(refuse_file(path), f"{path}:1: guard.votes", f"{path}:2: max_", lines=2)


# --- the flags -------------------------------------------------------------------------------


def test_a_config_file_without_the_worker_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text("max_speculative_batch: 8\n")
    outcome = launch_forked([*EAGLE3, "--speculative-worker-config", str(path)])
    assert_refused(outcome, "--speculative-worker-config", "add --speculative-worker specswitch")


def test_an_unknown_worker_is_refused_with_those_that_exist() -> None:
    outcome = launch_forked([*EAGLE3, "--speculative-worker", "turbo"])
    assert outcome.exit_code == 2
    assert "Traceback" not in outcome.stderr
    last = outcome.stderr.splitlines()[-1]
    assert "--speculative-worker" in last
    assert "turbo" in last
    assert "eagle" in last
    assert "specswitch" in last


def test_an_unknown_worker_in_the_environment_is_refused() -> None:
    outcome = launch_forked(EAGLE3, SPECSWITCH_WORKER="turbo")
    assert_refused(outcome, "turbo", "eagle, specswitch")


def test_variables_set_the_worker_and_its_file_as_the_flags_do(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    outcome = launch_forked(
        EAGLE3, SPECSWITCH_WORKER="specswitch", SPECSWITCH_WORKER_CONFIG=str(path)
    )
    assert_refused(outcome, str(path), "No such file")


def test_a_flag_wins_over_a_variable(tmp_path: Path) -> None:
    outcome = launch_forked(
        [*EAGLE3, *SPECSWITCH, "--speculative-worker-config", str(tmp_path / "flag.yaml")],
        SPECSWITCH_WORKER="eagle",
        SPECSWITCH_WORKER_CONFIG=str(tmp_path / "variable.yaml"),
    )
    assert_refused(outcome, "flag.yaml")


# --- the engine's arguments ------------------------------------------------------------------

WITHOUT_EAGLE = {
    "another algorithm": (
        [*PAIR, "--speculative-algorithm", "NGRAM", *STEPS],
        ["--speculative-algorithm is NGRAM", "EAGLE, EAGLE3, STANDALONE"],
    ),
    "another algorithm, in lower case": (
        [*PAIR, "--speculative-algorithm", "ngram", *STEPS],
        ["--speculative-algorithm is", "EAGLE, EAGLE3, STANDALONE"],
    ),
    "dflash": (
        [*PAIR, "--speculative-algorithm", "DFLASH", *STEPS],
        ["--speculative-algorithm is DFLASH"],
    ),
    "no speculation": (
        ["--model-path", str(tiny_pair.path("target"))],
        ["--speculative-algorithm is not set", "EAGLE, EAGLE3, STANDALONE"],
    ),
    "trees": (
        [*PAIR, "--speculative-algorithm", "EAGLE3", *STEPS, "--speculative-eagle-topk", "2"],
        ["--speculative-eagle-topk is 2", "set --speculative-eagle-topk 1"],
    ),
}

ADDED = {
    "--disable-overlap-schedule": ["drop --disable-overlap-schedule"],
    "--speculative-adaptive": ["--speculative-adaptive"],
    "--pp-size 2": ["--pp-size", "set --pp-size 1"],
    "--enable-lora --lora-paths a=/nowhere": ["--enable-lora", "drop it"],
    "--enable-two-batch-overlap": ["--enable-two-batch-overlap", "drop it"],
    "--enable-pdmux": ["--enable-pdmux", "drop it"],
    "--enable-multi-layer-eagle": ["--enable-multi-layer-eagle", "drop it"],
    "--disaggregation-mode prefill": ["--disaggregation-mode", "null"],
    "--disaggregation-mode decode": ["--disaggregation-mode", "null"],
    "--enable-dp-attention --dp-size 2 --tp-size 2": ["--enable-dp-attention"],
    "--attn-cp-size 2 --tp-size 2": ["--attn-cp-size", "set --attn-cp-size 1"],
}


@pytest.mark.parametrize("case", WITHOUT_EAGLE)
def test_speculation_of_another_kind_is_refused(case: str) -> None:
    arguments, parts = WITHOUT_EAGLE[case]
    assert_refused(launch_forked([*arguments, *SPECSWITCH]), *parts)


@pytest.mark.parametrize("flags", ADDED)
def test_what_specswitch_cannot_serve_is_refused(flags: str) -> None:
    outcome = launch_forked([*EAGLE3, *SPECSWITCH, *flags.split()])
    assert_refused(outcome, *ADDED[flags])


@pytest.mark.parametrize("value", ["0", "false"])
def test_spec_v2_turned_off_is_refused_with_the_variable_that_does_it(value: str) -> None:
    outcome = launch_forked([*EAGLE3, *SPECSWITCH], SGLANG_ENABLE_SPEC_V2=value)
    assert_refused(outcome, "overlap", f"unset SGLANG_ENABLE_SPEC_V2, which is {value}")


def test_each_of_several_problems_has_a_line() -> None:
    outcome = launch_forked(
        [*EAGLE3, *SPECSWITCH, "--disable-overlap-schedule", "--enable-lora", "--lora-paths", "a=b"]
    )
    assert_refused(outcome, "--disable-overlap-schedule", "--enable-lora", lines=2)


@pytest.mark.parametrize("worker", [[], ["--speculative-worker", "eagle"]], ids=["none", "eagle"])
def test_nothing_is_refused_without_the_worker(worker: list[str]) -> None:
    def stop_at_launch() -> None:
        from sglang.srt.entrypoints import http_server

        def launch_server(server_args: Any) -> None:
            raise SystemExit(f"would serve {server_args.speculative_algorithm}")

        http_server.launch_server = launch_server

    outcome = launch_forked([*EAGLE3, *worker, "--speculative-adaptive"], before=stop_at_launch)
    assert outcome.lines == []
    assert "would serve EAGLE3" in outcome.stderr


# --- the engine's release --------------------------------------------------------------------


def pretend_release(number: str) -> Callable[[], None]:
    def pretend() -> None:
        compat.version = lambda _name: number
        compat.release.cache_clear()

    return pretend


def test_an_untested_release_is_refused_with_those_that_are_tested() -> None:
    outcome = launch_forked([*EAGLE3, *SPECSWITCH], before=pretend_release("0.5.99"))
    assert_refused(outcome, "0.5.99", "0.5.12.post1", "SPECSWITCH_ALLOW_UNTESTED_ENGINE=1")


# --- the same from a shell -------------------------------------------------------------------


def test_sglang_serve_refuses_in_one_line() -> None:
    serve = "import sys; from sglang.cli.main import main; sys.exit(main())"
    arguments = ["serve", *PAIR, "--speculative-algorithm", "NGRAM", *STEPS, *SPECSWITCH]
    assert_refused(command(["-c", serve, *arguments]), "--speculative-algorithm is NGRAM")


def test_the_old_launcher_refuses_in_one_line(tmp_path: Path) -> None:
    config = ["--speculative-worker-config", str(tmp_path / "missing.yaml")]
    outcome = command(["-m", "sglang.launch_server", *EAGLE3, *SPECSWITCH, *config])
    assert_refused(outcome, "missing.yaml", "No such file")


def test_a_launcher_that_must_not_load_the_plug_in_does_not_know_the_flag() -> None:
    outcome = command(
        ["-m", "sglang.launch_server", *EAGLE3, *SPECSWITCH], SGLANG_PLUGINS="another"
    )
    assert outcome.exit_code == 2
    # An engine with the native patch has the flag itself, and knows no worker of this name.
    says = "invalid choice" if compat.is_patched() else "unrecognized arguments"
    line = outcome.stderr.splitlines()[-1]
    assert says in line
    assert "--speculative-worker" in line


def test_the_launchers_help_explains_the_flags() -> None:
    outcome = launch_forked(["--help"])
    assert outcome.exit_code == 0
    for word in ("--speculative-worker {eagle,specswitch}", "--speculative-worker-config FILE"):
        assert word in outcome.stdout
