"""`python -m benchmarks COMMAND`: measure, merge, plot, make tables, judge."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks import (
    arms,
    arrivals,
    bars,
    breakeven,
    bursts,
    envelope,
    plots,
    results,
    resume,
    switch,
)
from benchmarks import options as opt
from benchmarks import table as readme_table
from benchmarks.errors import BenchmarkError, reading
from benchmarks.runner import Runner
from benchmarks.workload import Workload

SUMMARISE: Mapping[str, results.Summarise] = {
    envelope.BENCHMARK: envelope.summarise,
    switch.BENCHMARK: switch.summarise,
    bursts.BENCHMARK: bursts.summarise,
}
_EXIT_FAILED, _EXIT_USAGE, _EXIT_INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 something failed or a check did not hold, 2 bad input, 130 Ctrl-C."""
    options = make_parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except BenchmarkError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return _EXIT_USAGE
    except KeyboardInterrupt:
        print("interrupted; servers are stopped, what was measured is kept", file=sys.stderr)
        return _EXIT_INTERRUPTED


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    parents = [opt.common()]

    def measuring(name: str, text: str | None, run: Callable[..., int]) -> argparse.ArgumentParser:
        summary = (text or "").splitlines()[0]
        made = commands.add_parser(name, parents=parents, help=summary, description=summary)
        made.set_defaults(command=run)
        return made

    one = measuring("envelope", envelope.__doc__, _envelope)
    one.add_argument(
        "--arms",
        type=opt.names,
        default=list(arms.ARMS),
        help=f"in this order, an arm may come twice ({','.join(arms.ARMS)})",
    )
    one.add_argument("--points", type=opt.counts, help="concurrencies (1,4,16,64,128,256)")
    one.add_argument("--repeats", type=opt.count, default=2, help="per point (default 2)")
    one.add_argument(
        "--waves", type=opt.count, help="requests per slot and repeat (2 up to 16, then 1)"
    )
    one.add_argument("--latency", action=argparse.BooleanOptionalAction, default=True)
    one.add_argument(
        "--profile",
        type=opt.counts,
        default=[],
        metavar="POINTS",
        help="end with the device's busy and idle time in a step at these concurrencies",
    )
    one.add_argument("--output-len", type=opt.count, default=256, metavar="TOKENS")

    one = measuring("switch", switch.__doc__, _switch)
    one.add_argument("--points", type=opt.counts, help="concurrencies (1,16,64)")
    one.add_argument(
        "--period", type=opt.count, default=50, help="decode steps per mode (default 50)"
    )
    one.add_argument("--waves", type=opt.count, default=3, help="requests per slot (default 3)")
    one.add_argument("--output-len", type=opt.count, default=1024, metavar="TOKENS")

    one = measuring("bursts", bursts.__doc__, _bursts)
    one.add_argument("--arms", type=opt.names, default=list(arms.ARMS[:4]))
    one.add_argument(
        "--phases",
        default="calm:10:6,burst:15:80,calm:15:6",
        metavar="NAME:SECONDS:RATE,...",
        help="Poisson arrivals, requests per second (default %(default)s)",
    )
    one.add_argument("--repeats", type=opt.count, default=1)
    one.add_argument(
        "--stream-every",
        type=opt.count,
        default=8,
        metavar="N",
        help="stream every N-th request; latencies are over these (default 8)",
    )
    one.add_argument("--output-len", type=opt.count, default=256, metavar="TOKENS")
    one.add_argument("--trace", metavar="CSV", help="TIMESTAMP,ContextTokens,GeneratedTokens")
    one.add_argument("--trace-start", type=float, default=0.0, metavar="SECONDS")
    one.add_argument("--trace-seconds", type=float, default=60.0, metavar="SECONDS")
    one.add_argument("--trace-speed", type=float, default=1.0, help="times denser (default 1)")
    one.add_argument("--max-input", type=opt.count, default=2048, metavar="TOKENS")
    one.add_argument("--max-output", type=opt.count, default=512, metavar="TOKENS")

    resume.add_arguments(measuring("resume", resume.__doc__, resume.run))

    one = commands.add_parser("merge", help="one result from several of equal setup")
    one.add_argument("files", nargs="+", type=Path, metavar="RESULT.json")
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(command=_merge)

    one = commands.add_parser("plot", help="PNG beside each result file")
    one.add_argument("files", nargs="+", type=Path, metavar="RESULT.json")
    one.set_defaults(command=_plot)

    one = commands.add_parser("table", help="write (or --check) the README's tables")
    readme_table.add_arguments(one)
    one.set_defaults(command=readme_table.run)

    one = commands.add_parser("bars", help="ratios between arms against the project's bars")
    one.add_argument("files", nargs="+", type=Path, metavar="RESULT.json")
    one.add_argument("--strict", action="store_true", help="exit 1 when one is missed or missing")
    one.set_defaults(command=_bars)

    one = commands.add_parser("thresholds", help="print the worker config for an acceptance length")
    one.add_argument("acceptance", type=float)
    one.add_argument("--steps", type=int, default=3, choices=sorted(breakeven.H200_8B))
    one.add_argument("--breakeven", type=Path, metavar="RESULT.json")
    one.add_argument("--max-running", type=opt.count, default=256)
    one.set_defaults(command=_thresholds)
    return parser


def _envelope(options: argparse.Namespace) -> int:
    setup = opt.make_setup(options, options.output_len)
    points = options.points or ([1, 4] if setup.device == "cpu" else [1, 4, 16, 64, 128, 256])
    if max(points) > setup.max_running:
        raise BenchmarkError(
            f"--points {max(points)} is above --max-running {setup.max_running}: requests would "
            "wait in the queue instead of running"
        )
    chosen = opt.select(opt.make_arms(options, setup), options.arms)
    workload = Workload(setup)
    extra = {"waves": options.waves}
    result = opt.open_result(options, envelope.BENCHMARK, setup, envelope.summarise, extra)
    plan = envelope.Envelope(
        setup,
        workload,
        points=points,
        repeats=options.repeats,
        waves=options.waves,
        latency=options.latency,
        profile_points=options.profile,
        result=result,
    )
    runner = opt.make_runner(options, setup, result)
    runner.run(chosen, plan.plan)
    return _close(options, result, runner)


def _switch(options: argparse.Namespace) -> int:
    setup = opt.make_setup(options, options.output_len)
    points = options.points or ([1, 4] if setup.device == "cpu" else [1, 16, 64])
    if max(points) >= setup.max_running:
        raise BenchmarkError(f"--points must stay below --max-running {setup.max_running}")
    arm = opt.make_arms(options, setup).periodic(options.period)
    workload = Workload(setup)
    extra = {"waves": options.waves, "period": options.period}
    result = opt.open_result(options, switch.BENCHMARK, setup, switch.summarise, extra)
    times = switch.SwitchTimes(
        setup,
        workload,
        points=points,
        waves=options.waves,
        folder=opt.logs(options),
        result=result,
    )
    runner = opt.make_runner(options, setup, result)
    runner.run([times.arm(arm)], times.plan, times.finish)
    return _close(options, result, runner)


def _bursts(options: argparse.Namespace) -> int:
    setup = opt.make_setup(options, options.output_len)
    if options.trace:
        window = arrivals.TraceWindow(
            options.trace_start,
            options.trace_seconds,
            options.trace_speed,
            options.max_input,
            options.max_output,
        )
        incoming = arrivals.read_trace(options.trace, window)
        load: dict[str, Any] = {"trace": Path(options.trace).name, **vars(window)}
    else:
        phases = arrivals.parse_phases(options.phases)
        incoming = arrivals.poisson(phases, setup.seed)
        load = {"phases": options.phases}
    chosen = opt.select(opt.make_arms(options, setup), options.arms)
    workload = Workload(setup)
    extra = {**load, "stream_every": options.stream_every}
    result = opt.open_result(options, bursts.BENCHMARK, setup, bursts.summarise, extra)
    plan = bursts.Bursts(
        setup,
        workload,
        arrivals=incoming,
        repeats=options.repeats,
        stream_every=options.stream_every,
        result=result,
    )
    runner = opt.make_runner(options, setup, result)
    runner.run(chosen, plan.plan)
    return _close(options, result, runner)


def _close(options: argparse.Namespace, result: results.ResultFile, runner: Runner) -> int:
    """Verdicts, plot and what is missing."""
    if result.data["setup"]["device"] != "cpu":  # a smoke run of this code judges no GPU bar
        _show(result.data)
    if options.plot and any(result.data["arms"].values()):
        plots.plot(result.data, options.out.with_suffix(".png"))
    print(f"result: {options.out}")
    if runner.skipped:
        print(f"not measured before the deadline (go on with --resume): {len(runner.skipped)}")
    if runner.failed:
        print(f"failed: {', '.join(runner.failed)}; logs: {opt.logs(options)}")
        return _EXIT_FAILED
    return 0


def _merge(options: argparse.Namespace) -> int:
    loaded = {str(path): results.load(path) for path in options.files}
    first = next(iter(loaded.values()))
    if options.out.exists():
        raise BenchmarkError(f"{options.out} exists: move it or choose another --out")
    data = results.merge(loaded, _summarise_for(first))
    options.out.write_text(json.dumps(data, indent=1) + "\n")
    print(f"{options.out}: {len(data['runs'])} runs")
    commits = {(run.get("machine") or {}).get("commit") for run in data["runs"]}
    if len(commits) > 1:
        print(f"of different commits: {', '.join(sorted(map(str, commits)))}")
    return 0


def _summarise_for(result: Mapping[str, Any]) -> results.Summarise:
    if result["benchmark"] not in SUMMARISE:
        raise BenchmarkError(
            f"results of {result['benchmark']} can be neither plotted nor merged, only those of "
            f"{', '.join(SUMMARISE)}"
        )
    return SUMMARISE[result["benchmark"]]


def _plot(options: argparse.Namespace) -> int:
    for path in options.files:
        data = results.load(path)
        _summarise_for(data)
        with reading(path):
            plots.plot(data, path.with_suffix(".png"))
        print(path.with_suffix(".png"))
    return 0


def _bars(options: argparse.Namespace) -> int:
    held = []
    for path in options.files:
        data = results.load(path)
        with reading(path):
            held.append(_show(data))
    return _EXIT_FAILED if options.strict and not all(held) else 0


def _show(result: Mapping[str, Any]) -> bool:
    """Print the verdicts; whether every bar was measured and met."""
    verdicts = bars.judge(result)
    measured = [one for one in verdicts if one.met is not None]
    if not measured:
        print(f"no bar of {result['benchmark']} can be judged by these arms")
        return not verdicts
    simulated = ", simulated acceptance" if result["simulated"] else ""
    shown = Table(title=escape(f"{result['benchmark']}, {result['gpu']}{simulated}"))
    for column in ("bar", "at", "ratio", "raw", "limit", ""):
        shown.add_column(column)
    for one in measured:
        sign = ">=" if one.at_least else "<="
        word = "met" if one.met else "MISSED"
        cells = ["-" if value is None else f"{value:.4f}" for value in (one.value, one.raw)]
        shown.add_row(escape(one.bar), escape(one.point), *cells, f"{sign} {one.limit}", word)
    Console(width=None if sys.stdout.isatty() else 110).print(shown)
    if len(measured) < len(verdicts):
        missing = [f"{one.bar} at {one.point}" for one in verdicts if one.met is None]
        print(f"not measured: {', '.join(missing)}")
    return all(one.met for one in verdicts)


def _thresholds(options: argparse.Namespace) -> int:
    table = breakeven.H200_8B[options.steps]
    if options.breakeven:
        loaded = results.load(options.breakeven)
        table = breakeven.BreakEvenTable.from_result(loaded, str(options.breakeven))
    config = breakeven.thresholds(options.acceptance, table, options.max_running)
    print(f"# thresholds for acceptance length {options.acceptance:g}; {table.source}")
    print(yaml.safe_dump(config, sort_keys=False), end="")
    return 0
