"""`bursts`: what clients see when load comes and goes.

Requests arrive at given times whether or not the server keeps up, as they do in
production. A server that speculates through a burst builds a queue; one that never
speculates is slow in the calm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import client
from benchmarks.arms import Arm
from benchmarks.arrivals import Arrival
from benchmarks.envelope import require_modes, steps_between
from benchmarks.results import ResultFile
from benchmarks.runner import Measurement, Values
from benchmarks.server import Server
from benchmarks.setup import Setup
from benchmarks.stats import median_or_none, median_percentiles, percentiles, spread
from benchmarks.workload import Workload

BENCHMARK = "bursts"
REPEATS = "repeats"
#: The cell of all requests, beside one cell for each phase.
ALL = "all"
_LATENCIES = ("ttft_ms", "itl_ms", "stall_ms", "e2e_ms")
#: Time to answer what is still queued when the last request has arrived.
_DRAIN_S = 15


class Bursts:
    """Plans the replay of one list of arrivals.

    Args:
        setup: default lengths of requests.
        workload: prompts.
        arrivals: when, and how long.
        repeats: replays per arm.
        stream_every: every n-th request streams; percentiles of TTFT and inter-token latency
            are over these.
        result: cells that hold enough are not planned again.
    """

    def __init__(
        self,
        setup: Setup,
        workload: Workload,
        *,
        arrivals: Sequence[Arrival],
        repeats: int,
        stream_every: int,
        result: ResultFile,
    ) -> None:
        self._setup = setup
        self._workload = workload
        self._arrivals = arrivals
        self._repeats = repeats
        self._stream_every = stream_every
        self._result = result

    def plan(self, arm: Arm) -> list[Measurement]:
        done = len(self._result.cell(arm.name, ALL).get(REPEATS, []))
        replays = [self._replay(arm, repeat) for repeat in range(done, self._repeats)]
        return [self._warm_up(), *replays] if replays else []

    def _warm_up(self) -> Measurement:
        slots = min(64, self._setup.max_running)

        def run(server: Server) -> Values:
            prompts = self._workload.prompts(slots, "warm-up")
            load = [client.Request(prompt, min(24, self._setup.output_len)) for prompt in prompts]
            client.closed_loop(server.url, load, slots)
            return {}

        return Measurement(ALL, "", "warm-up", run, expected_s=5)

    def _replay(self, arm: Arm, repeat: int) -> Measurement:
        def run(server: Server) -> Values:
            load = self._requests(repeat)
            before = server.state()
            outcome = client.open_loop(server.url, load)
            steps = steps_between(before, server.state())
            require_modes(arm, steps)
            everything = {
                **measured(outcome),
                "steps": steps,
                "client_lag_ms": outcome.client_lag_ms,
                "late_ms": percentiles([1000 * one.late for one in outcome.outcomes]),
            }
            phases: dict[str, list[client.Outcome]] = {
                arrival.phase: [] for arrival in self._arrivals
            }
            for one in outcome.outcomes:
                phases[one.request.phase].append(one)
            parts = {name: measured(client.Run(part, [])) for name, part in phases.items()}
            return {ALL: everything, **parts}

        expected = self._arrivals[-1].at + _DRAIN_S
        return Measurement(ALL, REPEATS, f"replay #{repeat + 1}", run, expected_s=expected)

    def _requests(self, repeat: int) -> list[client.Request]:
        requests = []
        for number, arrival in enumerate(self._arrivals):
            (prompt,) = self._workload.prompts(
                1, "burst", repeat, number, input_len=arrival.input_len
            )
            requests.append(
                client.Request(
                    prompt,
                    arrival.output_len or self._setup.output_len,
                    stream=number % self._stream_every == 0,
                    at=arrival.at,
                    phase=arrival.phase,
                )
            )
        return requests


def measured(run: client.Run) -> dict[str, Any]:
    """Throughput and latency of some requests: from the first one sent to the last answered."""
    return {
        "e2e_tok_s": run.tok_s,
        "requests": len(run.outcomes),
        "tokens": run.tokens,
        "seconds": round(run.seconds, 3),
        **client.latency(run.outcomes),
    }


def summarise(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Medians over the repeats; `spread` is (max - min) / median of tokens per second."""
    repeats: list[Mapping[str, Any]] = cell.get(REPEATS, [])
    throughput = [repeat["e2e_tok_s"] for repeat in repeats]
    summary: dict[str, Any] = {
        "e2e_tok_s": median_or_none(throughput),
        "spread": spread(throughput),
    }
    for key in _LATENCIES:
        summary[key] = median_percentiles(repeat[key] for repeat in repeats)
    return {**summary, REPEATS: list(repeats)}
