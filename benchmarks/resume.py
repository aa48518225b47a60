"""`resume`: what draft sync costs while speculation is off, and what it is worth afterwards.

Four parts, each with servers of its own:

- `acceptance`, with trained weights: requests speculate until a burst of one request takes the
  batch above its limit. It lasts 10, 100 or 400 steps, and the first speculative steps after it are
  compared with those of the same text, sent as a prompt to the emptied server: a request that never
  left speculation, at the very same place.
- `catch_up`: a server that alternates every 64 steps; the step that resumes, with 64 missed
  positions a request, against the others.
- `flush`: a server that never speculates; the steps in which missed positions are written.
- `off_cost`: decode throughput of servers that never speculate, per mode of draft sync.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

from benchmarks import client, decode_log, results, resume_steps
from benchmarks import options as opt
from benchmarks.arms import FORCED_SPECULATE, FORCED_TARGET_ONLY, Arm, ArmFactory
from benchmarks.errors import BenchmarkError
from benchmarks.runner import Measurement, Runner, Values
from benchmarks.server import Server
from benchmarks.setup import TINY_PAIR, Setup
from benchmarks.switch import STEP_TIMES
from benchmarks.workload import Workload

BENCHMARK = "resume"
MODES = ("deferred", "every_step", "off")
PARTS = ("acceptance", "catch_up", "flush", "off_cost")
REPEATS = "repeats"
#: Speculative steps of a request that are measured after a stretch.
MEASURED = 16
#: Positions that each request has missed when `catch_up` resumes, and the window that keeps them.
MISSED, WIDE_WINDOW = 64, 256
#: What `flush` and `off_cost` run with; the configuration's default.
WINDOW = 64
#: Speculative steps before the burst.
_LEAD_STEPS = 8
#: Tokens that a request may emit until the burst has begun: some 0.5 s of a small model's steps.
_LEAD_TOKENS = {"cpu": 240, "cuda": 1200}
_POLL_S = 0.02
_POLLING_S = 300.0


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
    plans: list[_Part] = []
    folder = opt.logs(options)
    if "acceptance" in parts:
        factory = ArmFactory(trained, None)
        plans += [
            _Acceptance(mode, factory, trained, folder, options.stretches, options.requests)
            for mode in MODES
        ]
    factory, workload = opt.make_arms(options, setup), Workload(setup)
    if "catch_up" in parts:
        plans.append(_CatchUp(factory, setup, workload, folder, points))
    if "flush" in parts:
        plans.append(_Flush(factory, setup, workload, folder, points))
    if "off_cost" in parts:
        plans += [
            _OffCost(mode, factory, setup, workload, points, repeat)
            for repeat in range(options.repeats)
            for mode in ("off", "deferred", "every_step")
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


class _Part:
    """One server and what is measured on it."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm

    def plan(self) -> list[Measurement]:
        raise NotImplementedError


def _configured(arm: Arm, name: str, **config: Any) -> Arm:
    """The arm under another name, with parts of its worker config replaced."""
    return replace(arm, name=name, config={**(arm.config or {}), **config})


def _timed(arm: Arm, folder: Path) -> tuple[Arm, Path]:
    """The arm writing its step times, and where."""
    path = (folder / f"{arm.name}.jsonl").resolve()
    return replace(arm, env={**arm.env, STEP_TIMES: str(path)}), path


class _Acceptance(_Part):
    """Acceptance after each stretch, with one mode of draft sync."""

    def __init__(
        self,
        mode: str,
        factory: ArmFactory,
        setup: Setup,
        folder: Path,
        stretches: Sequence[int],
        requests: int,
    ) -> None:
        arm = _configured(
            factory.make(FORCED_SPECULATE),
            f"acceptance_{mode}",
            # The burst takes the batch above this, and nothing holds the way back.
            max_speculative_batch=requests,
            guard={"dwell_steps": 0, "votes": 1, "max_switches_per_1000_steps": 1000},
            draft_sync={"mode": mode, "window": WINDOW},
        )
        timed, self._file = _timed(arm, folder)
        super().__init__(timed)
        self._setup, self._stretches, self._requests = setup, stretches, requests

    def plan(self) -> list[Measurement]:
        return [self._after(stretch) for stretch in self._stretches]

    def _after(self, stretch: int) -> Measurement:
        def measure(server: Server) -> Values:
            value = asyncio.run(self._measure(server, stretch))
            return {str(stretch): value}

        return Measurement(str(stretch), REPEATS, f"after {stretch} steps", measure, 30)

    async def _measure(self, server: Server, stretch: int) -> dict[str, Any]:
        prompts = _token_prompts(self._setup, self._requests + 1, stretch)
        names = [f"{stretch}-{number}" for number in range(self._requests)]
        longest = (self._setup.steps + 1) * MEASURED
        budget = _LEAD_TOKENS[self._setup.device] + stretch + longest
        before = _speculative_steps(server)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            answers = asyncio.gather(
                *(
                    _generate(session, server, name, prompt, budget)
                    for name, prompt in zip(names, prompts, strict=False)
                )
            )
            await asyncio.to_thread(_wait_for_lead, server, before, self._requests)
            # With the batch of one step more, the burst decodes for one step more than it answers.
            await _generate(session, server, f"{stretch}-burst", prompts[-1], stretch)
            texts = await answers
            steps = resume_steps.read(self._file)
            resumed = resume_steps.resumption(steps, names, MEASURED)
            _flush_cache(server)
            never = {name: f"{name}-never" for name in names}
            await asyncio.gather(
                *(
                    _generate(
                        session,
                        server,
                        never[name],
                        # The prefill emits the last of them again.
                        [*prompt, *answer[: resumed.emitted[name] - 1]],
                        1 + longest,
                    )
                    for name, prompt, answer in zip(names, prompts, texts, strict=False)
                )
            )
        strides = resume_steps.first_strides(
            resume_steps.read(self._file), list(never.values()), MEASURED
        )
        _flush_cache(server)
        after, reference = resume_steps.mean(resumed.strides), resume_steps.mean(strides)
        return {
            "acceptance_length": round(after, 4),
            "never_off": round(reference, 4),
            "ratio": round(after / reference, 4),
            "target_only_steps": resumed.stretch,
            "requests": len(names),
        }


class _Load(_Part):
    """One load per concurrency on a server that writes its step times."""

    def __init__(
        self,
        factory: ArmFactory,
        setup: Setup,
        workload: Workload,
        folder: Path,
        points: Sequence[int],
    ) -> None:
        timed, self._file = _timed(self.arm_of(factory), folder)
        super().__init__(timed)
        self._setup, self._workload, self._points = setup, workload, points

    @staticmethod
    def arm_of(factory: ArmFactory) -> Arm:
        """The server to load."""
        raise NotImplementedError

    def plan(self) -> list[Measurement]:
        # A batch size of its own keeps the warm-up's steps apart.
        warm_up = Measurement("", "", "warm-up", self._warm_up, 25)
        return [warm_up, *(self._at(point) for point in self._points)]

    def _warm_up(self, server: Server) -> Values:
        self._send(server, 3)
        return {}

    def _at(self, point: int) -> Measurement:
        def measure(server: Server) -> Values:
            self._send(server, point)
            found = self._evaluate(resume_steps.read(self._file), point)
            if found is None:
                raise BenchmarkError(
                    f"no step to measure at concurrency {point}: raise --output-len"
                )
            return {str(point): found}

        return Measurement(str(point), REPEATS, f"concurrency {point}", measure, 25)

    def _send(self, server: Server, point: int) -> None:
        prompts = self._workload.prompts(point, point, self.arm.name)
        load = [client.Request(prompt, self._setup.output_len) for prompt in prompts]
        client.closed_loop(server.url, load, point)

    def _evaluate(self, steps: Sequence[resume_steps.Step], point: int) -> dict[str, Any] | None:
        raise NotImplementedError


class _CatchUp(_Load):
    """The step that resumes, with as many missed positions a request as ``MISSED``."""

    @staticmethod
    def arm_of(factory: ArmFactory) -> Arm:
        # Half the window is not reached, so nothing is flushed before.
        sync = {"mode": "deferred", "window": WIDE_WINDOW}
        return _configured(factory.periodic(MISSED), "catch_up", draft_sync=sync)

    def _evaluate(self, steps: Sequence[resume_steps.Step], point: int) -> dict[str, Any] | None:
        return resume_steps.catch_up_times(steps, point, MISSED)


class _Flush(_Load):
    """Flushes while the target decodes alone."""

    @staticmethod
    def arm_of(factory: ArmFactory) -> Arm:
        sync = {"mode": "deferred", "window": WINDOW}
        return _configured(factory.make(FORCED_TARGET_ONLY), "flush", draft_sync=sync)

    def _evaluate(self, steps: Sequence[resume_steps.Step], point: int) -> dict[str, Any] | None:
        return resume_steps.flush_times(steps, point)


class _OffCost(_Part):
    """Decode throughput of one server that never speculates.

    Each repeat is a server of its own, so that drift of the machine falls on all modes alike.
    """

    def __init__(
        self,
        mode: str,
        factory: ArmFactory,
        setup: Setup,
        workload: Workload,
        points: Sequence[int],
        repeat: int,
    ) -> None:
        sync = {"mode": mode, "window": WINDOW}
        name = f"off_cost_{mode}_{repeat + 1}"
        super().__init__(_configured(factory.make(FORCED_TARGET_ONLY), name, draft_sync=sync))
        self._setup, self._workload, self._points = setup, workload, points

    def plan(self) -> list[Measurement]:
        warm_up = Measurement("", "", "warm-up", self._warm_up)
        return [warm_up, *(self._at(point) for point in self._points)]

    def _warm_up(self, server: Server) -> Values:
        self._send(server, max(self._points))
        return {}

    def _at(self, point: int) -> Measurement:
        def measure(server: Server) -> Values:
            server.tail.skip()
            self._send(server, point)
            steady = decode_log.steady(decode_log.parse(server.tail.read()), point)
            if steady is None:
                raise BenchmarkError(f"no steady decode at concurrency {point}: raise --output-len")
            return {str(point): {"decode_tok_s": steady.tok_s, "step_ms": steady.step_ms}}

        return Measurement(str(point), REPEATS, f"concurrency {point}", measure)

    def _send(self, server: Server, point: int) -> None:
        prompts = self._workload.prompts(point, point, "off_cost")
        load = [client.Request(prompt, self._setup.output_len) for prompt in prompts]
        client.closed_loop(server.url, load, point)


def summarise(data: Mapping[str, Any]) -> dict[str, Any]:
    """The top-level tables, from the single measurements.

    `acceptance` holds acceptance lengths over the first ``MEASURED`` speculative steps by mode and
    stretch, and `never_off`, the mean over what these were compared with; `resume_ratio` each of
    them over its own comparison. `off_cost` is decode throughput over that of mode `off`, medians
    over repeats; `catch_up` and `flush` are by concurrency.
    """
    arms: Mapping[str, Any] = data["arms"]
    cells = {arm: {point: cell[REPEATS] for point, cell in arms[arm].items()} for arm in arms}
    acceptance: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    references = []
    for mode in MODES:
        for stretch, repeats in cells.get(f"acceptance_{mode}", {}).items():
            value = repeats[-1]
            acceptance.setdefault(mode, {})[stretch] = value["acceptance_length"]
            ratios.setdefault(mode, {})[stretch] = value["ratio"]
            references.append(value["never_off"])
    summary: dict[str, Any] = {"acceptance_length": data["setup"]["acceptance"]}
    if references:
        summary["acceptance"] = {"never_off": round(statistics.fmean(references), 4), **acceptance}
        summary["resume_ratio"] = ratios
    for name in ("catch_up", "flush"):
        if name in cells:
            summary[name] = {point: repeats[-1] for point, repeats in cells[name].items()}
    if cost := _off_cost(cells):
        summary["off_cost"] = cost
    return summary


def _off_cost(cells: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    throughput: dict[str, dict[str, list[float]]] = {}
    for arm, points in cells.items():
        if arm.startswith("off_cost_"):
            mode = arm.removeprefix("off_cost_").rpartition("_")[0]
            for point, repeats in points.items():
                throughput.setdefault(mode, {}).setdefault(point, []).append(
                    repeats[-1]["decode_tok_s"]
                )
    base = throughput.pop("off", {})
    return {
        mode: {
            point: round(statistics.median(values) / statistics.median(base[point]), 4)
            for point, values in points.items()
            if point in base
        }
        for mode, points in throughput.items()
    }


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


def _token_prompts(setup: Setup, count: int, *labels: int) -> list[list[int]]:
    """Prompts as token ids: what an answer is continued from has to be exact."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(setup.model)
    prompts = Workload(setup).prompts(count, *labels)
    return [tokenizer(p)["input_ids"] if isinstance(p, str) else p for p in prompts]


async def _generate(
    session: aiohttp.ClientSession, server: Server, name: str, prompt: list[int], tokens: int
) -> list[int]:
    """The answer of one named greedy request."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"rid": name, "input_ids": prompt, "sampling_params": sampling}
    async with session.post(f"{server.url}/generate", json=body) as response:
        if response.status != 200:
            text = (await response.text())[:300]
            raise BenchmarkError(f"the server answered {response.status}: {text}")
        answer: list[int] = (await response.json())["output_ids"]
    return answer


def _speculative_steps(server: Server) -> int:
    return int(_state(server)["steps"]["speculate"])


def _state(server: Server) -> dict[str, Any]:
    state = server.state()
    if state is None:
        raise BenchmarkError("the server runs without specswitch: are its entry points installed?")
    return state


def _wait_for_lead(server: Server, before: int, requests: int) -> None:
    """Until all requests decode and have done so for some steps."""
    deadline = time.monotonic() + _POLLING_S
    since: int | None = None
    while time.monotonic() < deadline:
        state = _state(server)
        steps = int(state["steps"]["speculate"])
        if state["running"] == requests and steps > before:
            since = steps if since is None else since
            if steps - since >= _LEAD_STEPS:
                return
        time.sleep(_POLL_S)
    raise BenchmarkError(f"{requests} requests never decoded together in {_POLLING_S:.0f} s")


def _flush_cache(server: Server) -> None:
    """Empty the prefix cache: what comes next is computed anew."""
    with urllib.request.urlopen(f"{server.url}/flush_cache?timeout=30", timeout=60) as response:
        if response.status != 200:
            raise BenchmarkError(f"/flush_cache answered {response.status}")
