"""`envelope`: throughput and latency of every arm at every concurrency.

The question: is specswitch as good as the best fixed choice at each load, and what
does it cost where it makes the same choice as a server without it?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import client, decode_log, device_time
from benchmarks.arms import NO_SPEC, SPECSWITCH, WITH_PLUGIN, Arm
from benchmarks.errors import BenchmarkError
from benchmarks.results import ResultFile
from benchmarks.runner import Measurement, Values
from benchmarks.server import Server
from benchmarks.setup import Setup
from benchmarks.stats import median_or_none, median_percentiles, spread
from benchmarks.workload import Workload

BENCHMARK = "envelope"
REPEATS = "repeats"
LATENCY = "latency_passes"
PROFILE = "profiles"
_LATENCIES = ("ttft_ms", "itl_ms", "stall_ms", "e2e_ms")
_WARM_UP_TOKENS = 24
#: At most this many requests stream at a time, at every concurrency and for every arm.
STREAMED = 16
#: Below this share of steps in one mode, an arm that chooses has no one nominal acceptance.
_ONE_MODE = 0.98
#: 1 draft step emits at most 2 tokens: up to there upstream's choice of steps changes nothing.
_SAFE_ACCEPTANCE = 2.0


class Envelope:
    """Plans the measurements of one arm.

    Args:
        setup: model, lengths, acceptance.
        workload: prompts.
        points: concurrencies.
        repeats: throughput measurements per point.
        waves: requests per concurrent slot and measurement; None for 2 up to 16 slots, else 1.
        latency: whether to make the streamed pass.
        profile_points: concurrencies to end with a profile of the device at.
        result: cells that hold enough are not planned again.
    """

    def __init__(
        self,
        setup: Setup,
        workload: Workload,
        *,
        points: Sequence[int],
        repeats: int,
        waves: int | None,
        latency: bool,
        profile_points: Sequence[int],
        result: ResultFile,
    ) -> None:
        self._setup = setup
        self._workload = workload
        self._points = points
        self._repeats = repeats
        self._waves = waves
        self._latency = latency
        self._profile_points = profile_points
        self._result = result

    def plan(self, arm: Arm) -> list[Measurement]:
        """Warm-up, then each repeat over all points, then the latency pass over all points.

        Going over all points before the second repeat spaces the repeats out in time, so
        that the spread shows drift, and leaves a complete first repeat when time runs out.
        """
        measurements = []
        for repeat in range(self._repeats):
            for point in self._points:
                if len(self._result.cell(arm.name, str(point)).get(REPEATS, [])) <= repeat:
                    measurements.append(self._throughput(arm, point, repeat))
        for point in self._points if self._latency else ():
            if not self._result.cell(arm.name, str(point)).get(LATENCY):
                measurements.append(self._latency_pass(point))
        for point in self._profile_points:
            if not self._result.cell(arm.name, str(point)).get(PROFILE):
                measurements.append(self._device_time(point))
        return [self._warm_up(), *measurements] if measurements else []

    def _warm_up(self) -> Measurement:
        largest = max(self._points)

        def run(server: Server) -> Values:
            for slots in sorted({1, largest}):
                prompts = self._workload.prompts(slots, "warm-up", slots)
                load = [client.Request(prompt, _WARM_UP_TOKENS) for prompt in prompts]
                client.closed_loop(server.url, load, slots)
            return {}

        return Measurement(str(largest), "", "warm-up", run, expected_s=5)

    def _throughput(self, arm: Arm, point: int, repeat: int) -> Measurement:
        waves = self._waves or (2 if point <= 16 else 1)

        def run(server: Server) -> Values:
            prompts = self._workload.prompts(waves * point, point, repeat)
            load = [client.Request(prompt, self._setup.output_len) for prompt in prompts]
            before = server.state()
            server.tail.skip()
            outcome = client.closed_loop(server.url, load, point)
            windows = decode_log.parse(server.tail.read())
            steps = steps_between(before, server.state())
            require_modes(arm, steps)
            return {str(point): self._measured(arm, point, outcome, windows, steps)}

        return Measurement(str(point), REPEATS, f"concurrency {point} #{repeat + 1}", run)

    def _measured(
        self,
        arm: Arm,
        point: int,
        outcome: client.Run,
        windows: Sequence[decode_log.Window],
        steps: dict[str, int] | None,
    ) -> dict[str, Any]:
        decode = decode_log.steady(windows, point)
        acceptance = self._nominal(arm, steps)
        if decode and acceptance == 1.0:
            decode = decode.without_speculation()
        nominal = decode and acceptance and 1000 * point * acceptance / decode.step_ms
        return {
            "decode_tok_s": decode and decode.tok_s,
            "decode_tok_s_nominal": nominal and round(nominal, 2),
            "e2e_tok_s": outcome.tok_s,
            "step_ms": decode and decode.step_ms,
            "accept_len": decode and decode.accept_len,
            "windows": decode.windows if decode else 0,
            "requests": len(outcome.outcomes),
            "seconds": round(outcome.seconds, 3),
            "e2e_ms": client.latency(outcome.outcomes)["e2e_ms"],
            "client_lag_ms": outcome.client_lag_ms,
            "steps": steps,
        }

    def _latency_pass(self, point: int) -> Measurement:
        def run(server: Server) -> Values:
            prompts = self._workload.prompts(point, point, "latency")
            length = self._setup.output_len
            load = [client.Request(p, length, stream=i < STREAMED) for i, p in enumerate(prompts)]
            outcome = client.closed_loop(server.url, load, point)
            value = {
                **client.latency(outcome.outcomes),
                "streamed": min(STREAMED, point),
                "e2e_tok_s": outcome.tok_s,
                "client_lag_ms": outcome.client_lag_ms,
            }
            return {str(point): value}

        return Measurement(str(point), LATENCY, f"concurrency {point} latency", run)

    def _device_time(self, point: int) -> Measurement:
        def run(server: Server) -> Values:
            prompts = self._workload.prompts(point, point, "profile")
            load = [client.Request(prompt, self._setup.output_len) for prompt in prompts]
            return {str(point): device_time.measure(server, load, point)}

        return Measurement(str(point), PROFILE, f"concurrency {point} profile", run)

    def _nominal(self, arm: Arm, steps: Mapping[str, int] | None) -> float | None:
        """The acceptance length that the arm's steps had on average over infinite time.

        Known only where it is simulated. A measured average over some 100 steps misses it
        by 1 to 3 percent, as much as the differences between arms that matter.
        """
        acceptance = self._setup.acceptance
        if not self._setup.simulated or acceptance is None:
            return None
        if arm.name == NO_SPEC or arm.fixed_mode == "target_only":
            return 1.0
        if arm.name == SPECSWITCH:
            total = sum((steps or {}).values())
            for mode, value in (("speculate", acceptance), ("target_only", 1.0)):
                if steps and total and steps.get(mode, 0) / total >= _ONE_MODE:
                    return value
            return None
        changes_steps = "--speculative-adaptive" in arm.args
        return None if changes_steps and acceptance > _SAFE_ACCEPTANCE else acceptance


def steps_between(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> dict[str, int] | None:
    """Decode steps per mode between two snapshots of the worker; None without the plug-in."""
    if before is None or after is None:
        return None
    return {mode: count - before["steps"].get(mode, 0) for mode, count in after["steps"].items()}


def require_modes(arm: Arm, steps: Mapping[str, int] | None) -> None:
    """BenchmarkError when a server did not do what its arm says; its numbers would mislead."""
    if arm.name not in WITH_PLUGIN:
        if steps is not None:
            raise BenchmarkError(f"arm {arm.name} is a baseline, yet specswitch is active in it")
        return
    if steps is None:
        raise BenchmarkError(
            f"arm {arm.name} runs without specswitch: /server_info has no key specswitch; "
            "is the package installed with its entry points?"
        )
    others = {mode: n for mode, n in steps.items() if n and arm.fixed_mode not in (None, mode)}
    if others:
        raise BenchmarkError(f"arm {arm.name} must only ever {arm.fixed_mode}, but ran {others}")


def summarise(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Medians and spreads of a cell's single measurements.

    `spread` is (max - min) / median of the decode throughput over the repeats, `e2e_spread`
    that of the end-to-end throughput, `step_ms_spread` that of the step time. `busy_ms` and
    `idle_ms` are of the device, in a step under the profiler.
    """
    repeats: list[Mapping[str, Any]] = cell.get(REPEATS, [])
    passes: list[Mapping[str, Any]] = cell.get(LATENCY, [])
    profiles: list[Mapping[str, Any]] = cell.get(PROFILE, [])

    def values(key: str) -> list[float]:
        return [repeat[key] for repeat in repeats if repeat[key] is not None]

    summary: dict[str, Any] = {
        key: median_or_none(values(key))
        for key in ("decode_tok_s", "decode_tok_s_nominal", "e2e_tok_s", "step_ms", "accept_len")
    }
    summary["spread"] = spread(values("decode_tok_s"))
    summary["e2e_spread"] = spread(values("e2e_tok_s"))
    summary["step_ms_spread"] = spread(values("step_ms"))
    for key in _LATENCIES:
        summary[key] = median_percentiles(one[key] for one in passes)
    for key in ("busy_ms", "idle_ms") if profiles else ():
        summary[key] = median_or_none((one[key] for one in profiles), digits=4)
    kept = {REPEATS: list(repeats), LATENCY: list(passes)}
    return {**summary, **kept, **({PROFILE: list(profiles)} if profiles else {})}
