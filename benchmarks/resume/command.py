"""The command `resume`: its options, its plan, and what it prints."""

from __future__ import annotations

import argparse
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from benchmarks import options as opt
from benchmarks import results
from benchmarks.arms import Arm, ArmFactory
from benchmarks.errors import BenchmarkError
from benchmarks.resume.acceptance import MEASURED, Acceptance
from benchmarks.resume.loads import CatchUp, Flush
from benchmarks.resume.off_cost import ORDER, OffCost
from benchmarks.resume.part import BENCHMARK, MODES, REPEATS, Part
from benchmarks.resume.summary import summarise
from benchmarks.runner import Measurement, Runner
from benchmarks.setup import TINY_PAIR, Setup
from benchmarks.workload import Workload

PARTS = ("acceptance", "catch_up", "flush", "off_cost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this command alone."""
    parser.add_argument(
        "--parts",
        type=opt.names,
        metavar="NAME,...",
        help=f"of {','.join(PARTS)} (default: all; on a CPU all but off_cost)",
    )
    parser.add_argument("--stretches", type=opt.counts, default=[10, 100, 400], metavar="N,...")
    parser.add_argument(
        "--requests", type=opt.count, default=16, help="at a time, in part acceptance (default 16)"
    )
    parser.add_argument("--points", type=opt.counts, help="concurrencies (16,64,256; on a CPU 4)")
    parser.add_argument("--repeats", type=opt.count, default=2, help="of off_cost (default 2)")
    parser.add_argument("--output-len", type=opt.count, default=600, metavar="TOKENS")


def run(options: argparse.Namespace) -> int:
    """The command. Exit code 1 when a server failed."""
    setup = opt.make_setup(options, options.output_len)
    on_cpu = setup.device == "cpu"
    parts = options.parts or (PARTS[:3] if on_cpu else PARTS)
    if unknown := set(parts) - set(PARTS):
        raise BenchmarkError(f"--parts {', '.join(sorted(unknown))}: give {', '.join(PARTS)}")
    points = options.points or ([4] if on_cpu else [16, 64, 256])
    if max(points) > setup.max_running:
        raise BenchmarkError(f"--points must not be above --max-running {setup.max_running}")
    # Random weights accept nothing, so the trained pair takes their place in one part.
    trained = setup if setup.weights == "real" and setup.prompts else _tiny(setup)
    # One place more for the burst.
    trained = replace(trained, max_running=options.requests + 1)
    _forget_summary(options)
    # The parts are not in it: a second command may add others with --resume.
    extra = {
        "stretches": options.stretches,
        "requests": options.requests,
        "points": points,
        "acceptance_setup": trained.to_json(),
    }
    result = opt.open_result(options, BENCHMARK, setup, dict, extra)
    plans: list[Part] = []
    folder = opt.logs(options)
    if "acceptance" in parts:
        factory = ArmFactory(trained, None)
        plans += [
            Acceptance(mode, factory, trained, folder, options.stretches, options.requests)
            for mode in MODES
        ]
    factory, workload = opt.make_arms(options, setup), Workload(setup)
    if "catch_up" in parts:
        plans.append(CatchUp(factory, setup, workload, folder, points))
    if "flush" in parts:
        plans.append(Flush(factory, setup, workload, folder, points))
    if "off_cost" in parts:
        plans += [
            OffCost(mode, factory, setup, workload, points, options.repeats) for mode in ORDER
        ]
    by_name = {plan.arm.name: plan for plan in plans}
    runner = opt.make_runner(options, setup, result)
    runner.run(
        [plan.arm for plan in plans],
        lambda arm: [m for m in by_name[arm.name].plan() if _is_due(result, arm, m)],
    )
    result.data.update(summarise(result.data))
    result.save()
    return _close(options, result, runner)


def _tiny(setup: Setup) -> Setup:
    model, draft = opt.tiny_pair()
    return replace(
        setup,
        model=model,
        draft_model=draft,
        weights="real",
        simulated=False,
        acceptance=None,
        prompts=TINY_PAIR,
    )


def _forget_summary(options: argparse.Namespace) -> None:
    """`acceptance` of a finished result is a table; of a setup it is a number, or null."""
    if options.resume and options.out.exists():
        data = results.load(options.out)
        data["acceptance"] = data.pop("acceptance_length", None)
        results.ResultFile(options.out, dict, data).save()


def _is_due(result: results.ResultFile, arm: Arm, measurement: Measurement) -> bool:
    return not measurement.kind or not result.cell(arm.name, measurement.point).get(REPEATS)


def _close(options: argparse.Namespace, result: results.ResultFile, runner: Runner) -> int:
    console = Console()
    if "acceptance" in result.data and isinstance(result.data["acceptance"], dict):
        table = Table(title=f"acceptance length, first {MEASURED} speculative steps")
        for column in ("draft sync", "off for", "acceptance", "/ never off"):
            table.add_column(column)
        for mode, ratios in result.data["resume_ratio"].items():
            for stretch, ratio in ratios.items():
                value = result.data["acceptance"][mode][stretch]
                table.add_row(mode, f"{stretch} steps", f"{value:.3f}", f"{ratio:.4f}")
        console.print(table)
    for name in ("catch_up", "flush", "off_cost"):
        for point, value in result.data.get(name, {}).items():
            console.print(f"{name} {point}: {value}", highlight=False)
    console.print(f"result: {options.out}", highlight=False)
    if runner.skipped:
        console.print(f"not measured before the deadline: {len(runner.skipped)}")
    if runner.failed:
        console.print(f"failed: {', '.join(runner.failed)}; logs: {opt.logs(options)}")
    return 1 if runner.failed else 0
