"""Command-line options, and how they become a setup, arms and a runner.

The three measuring commands share all options that describe servers, so they are
declared once.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine
from benchmarks.arms import Arm, ArmFactory
from benchmarks.breakeven import H200_8B, BreakEvenTable
from benchmarks.errors import BenchmarkError
from benchmarks.results import ResultFile, Summarise, load
from benchmarks.runner import Deadline, Runner
from benchmarks.server import engine_has_gate, portable
from benchmarks.setup import DEFAULT_DRAFT, DEFAULT_MODEL, TINY_PAIR, Setup

_SMOKE_MAX_RUNNING = 8


def common() -> argparse.ArgumentParser:
    """Parent parser of every measuring command."""
    parser = argparse.ArgumentParser(add_help=False)
    models = parser.add_argument_group("models")
    models.add_argument(
        "--model", help="folder or hub name; default: 8B shape with dummy weights, simulated"
    )
    models.add_argument("--draft-model", help="EAGLE3 head of --model")
    models.add_argument("--steps", type=count, default=3, help="draft steps (default 3)")
    models.add_argument(
        "--acceptance",
        type=float,
        help="acceptance length, tokens per request and step: the thresholds of arm specswitch "
        "are made for it, and --simulate simulates it",
    )
    models.add_argument(
        "--simulate",
        action=argparse.BooleanOptionalAction,
        help="simulate --acceptance (default: with dummy weights only)",
    )
    models.add_argument("--dummy-weights", action="store_true", help="random weights for --model")
    models.add_argument(
        "--prompts", help="text file, one prompt a line (default: random token ids)"
    )
    servers = parser.add_argument_group("servers")
    servers.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    servers.add_argument("--tp", type=count, default=1, help="GPUs per server")
    servers.add_argument("--attention-backend", help="default: the engine's own choice")
    servers.add_argument("--max-running", type=count, help="max_running_requests (default 256)")
    servers.add_argument("--decode-log-interval", type=count, default=10, metavar="STEPS")
    servers.add_argument(
        "--server-arg",
        action="append",
        default=[],
        metavar="ARGS",
        help="passed to the servers of all arms, as in --server-arg='--page-size 16'",
    )
    servers.add_argument(
        "--env", action="append", default=[], metavar="KEY=VALUE", help="for all servers"
    )
    servers.add_argument("--specswitch-config", type=Path, help="YAML for arm specswitch")
    servers.add_argument(
        "--breakeven", type=Path, metavar="RESULT", help="envelope result to make thresholds from"
    )
    servers.add_argument("--adaptive-config", help="JSON for arm upstream_adaptive")
    servers.add_argument("--start-timeout", type=float, default=900, metavar="SECONDS")
    servers.add_argument(
        "--prestart",
        action=argparse.BooleanOptionalAction,
        help="start the next server behind its gate (default: if the engine copy has one)",
    )
    servers.add_argument(
        "--together",
        type=count,
        default=1,
        metavar="N",
        help="servers that are up at a time and measured in turns (default 1); the device must "
        "hold them: add --server-arg='--max-total-tokens TOKENS'",
    )
    servers.add_argument(
        "--cpus",
        type=cpu_list,
        metavar="N,...",
        help="keep servers and client on these CPUs, one hardware thread a core say: a step that "
        "waits for the host is only as steady as the host",
    )
    run = parser.add_argument_group("run")
    run.add_argument("--out", type=Path, required=True, help="result file (.json)")
    run.add_argument("--resume", action="store_true", help="add what --out still lacks")
    run.add_argument("--deadline", type=float, metavar="SECONDS", help="begin nothing after this")
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--plot", action=argparse.BooleanOptionalAction, default=True)
    run.add_argument("--input-len", type=count, default=64, metavar="TOKENS")
    return parser


def count(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def counts(text: str) -> list[int]:
    """`1,16,64` -> [1, 16, 64]"""
    return sorted({count(part) for part in text.split(",")})


def cpu_list(text: str) -> set[int]:
    """`0,2,4` -> {0, 2, 4}, of CPUs that this process may use."""
    cpus = {int(part) for part in text.split(",")}
    if unknown := cpus - os.sched_getaffinity(0):
        raise argparse.ArgumentTypeError(f"no such CPU here: {sorted(unknown)}")
    return cpus


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def make_setup(options: argparse.Namespace, output_len: int) -> Setup:
    """The setup that the options describe; BenchmarkError when they contradict each other."""
    if (options.model is None) != (options.draft_model is None):
        raise BenchmarkError("give --model and --draft-model together: one is made for the other")
    named = options.model is not None
    prompts = options.prompts
    if options.device == "cpu" and not named:
        model, draft = tiny_pair()
        prompts = prompts or TINY_PAIR
        dummy = False
    else:
        model = options.model or str(DEFAULT_MODEL)
        draft = options.draft_model or str(DEFAULT_DRAFT)
        dummy = options.dummy_weights or not named
    simulated = dummy if options.simulate is None else options.simulate
    if simulated and options.device == "cpu":
        raise BenchmarkError("the engine simulates acceptance on CUDA only: leave out --simulate")
    smoke = options.device == "cpu"
    return Setup(
        model=model,
        draft_model=draft,
        weights="dummy" if dummy else "real",
        simulated=simulated,
        acceptance=options.acceptance,
        steps=options.steps,
        tp=options.tp,
        device=options.device,
        attention_backend=options.attention_backend,
        max_running=options.max_running or (_SMOKE_MAX_RUNNING if smoke else 256),
        decode_log_interval=options.decode_log_interval,
        input_len=options.input_len,
        output_len=output_len,
        prompts=prompts,
        seed=options.seed,
        server_args=tuple(arg for text in options.server_arg for arg in shlex.split(text)),
        env=tuple(sorted(_pair(text) for text in options.env)),
    )


def tiny_pair() -> tuple[str, str]:
    """The trained pair that ships with the package: target and EAGLE3 head."""
    try:
        from specswitch import tiny_pair as pair

        return str(pair.path("target")), str(pair.path("eagle3"))
    except (ImportError, FileNotFoundError) as error:
        raise BenchmarkError(
            f"--device cpu needs the package's tiny pair, or --model and --draft-model: {error}"
        ) from error


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise BenchmarkError(f"--env {text}: write KEY=VALUE")
    return key, value


def make_arms(options: argparse.Namespace, setup: Setup) -> ArmFactory:
    """The factory for the arms of `setup`, with thresholds from the table that applies."""
    table: BreakEvenTable | None = H200_8B.get(setup.steps)
    if options.breakeven:
        table = BreakEvenTable.from_result(load(options.breakeven), str(options.breakeven))
    config: dict[str, Any] | None = None
    if options.specswitch_config:
        from specswitch.config import ConfigError, load_config

        try:
            config = load_config(options.specswitch_config).model_dump(mode="json")
        except ConfigError as error:
            raise BenchmarkError(str(error)) from error
    return ArmFactory(setup, table, config, options.adaptive_config)


def open_result(
    options: argparse.Namespace,
    benchmark: str,
    setup: Setup,
    summarise: Summarise,
    extra: dict[str, Any],
) -> ResultFile:
    """The result file of this command, new or resumed."""
    if options.out.suffix != ".json":
        raise BenchmarkError(f"--out {options.out}: the name must end in .json")
    header = {
        "benchmark": benchmark,
        "gpu": machine.device_name(setup.device, setup.tp),
        "engine": machine.engine_version(),
        "command": command_line(),
        "acceptance": setup.acceptance,
        "simulated": setup.simulated,
        "weights": setup.weights,
        "model_shape": setup.to_json()["model_shape"],
        "setup": {**setup.to_json(), **extra},
        "machine": machine.details(setup.device),
    }
    return ResultFile.create(options.out, summarise, header, resume=options.resume)


def make_runner(options: argparse.Namespace, setup: Setup, result: ResultFile) -> Runner:
    if options.cpus:
        os.sched_setaffinity(0, options.cpus)
    prestart = options.prestart
    if prestart is None:
        prestart = engine_has_gate()
    elif prestart and not engine_has_gate():
        raise BenchmarkError("--prestart: the installed engine has no SGL_GATE")
    return Runner(
        result,
        logs(options),
        deadline=Deadline(options.deadline),
        start_timeout_s=options.start_timeout,
        prestart=prestart,
        memory=lambda: machine.device_memory_mib(setup.device),
        console=Console(stderr=False),
        together=options.together,
    )


def logs(options: argparse.Namespace) -> Path:
    """Folder for the servers' logs and configs: beside the result, named after it."""
    out: Path = options.out
    return out.with_suffix(".logs")


def command_line(argv: Sequence[str] | None = None) -> str:
    """This command as it was typed, without the folders of this machine."""
    args = sys.argv[1:] if argv is None else argv
    return portable(shlex.join(["python", "-m", "benchmarks", *args]))


def select(factory: ArmFactory, wanted: Sequence[str]) -> list[Arm]:
    if not wanted:
        raise BenchmarkError("--arms is empty")
    return [factory.make(name) for name in wanted]
