"""How long the controller takes to decide: `python -m benchmarks.decision_time`.

A decision is taken on the scheduler's thread before every decode step, so it has to cost
next to nothing: the goal is under 10 microseconds. Needs neither a server nor a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from specswitch.config import Config
from specswitch.control import Controller, LoadSample, Switch, build_controller

GOAL_US = 10.0
STEPS = 20_000
REPEATS = 15
RESULT = Path(__file__).parent / "results" / "decision_time.json"

Loads = list[tuple[int, int, float]]


@dataclass(frozen=True)
class Stream:
    """What a controller is built from and fed with; a load is (waiting, running, KV use)."""

    config: Config
    loads: Loads

    def controller(self) -> Controller:
        """A fresh controller with a listener, as the engine has one."""
        controller = build_controller(self.config)
        switches: list[Switch] = []
        controller.add_listener(switches.append)
        return controller

    def samples(self) -> list[LoadSample]:
        return [LoadSample(step, *load) for step, load in enumerate(self.loads)]


def served(arrivals: Callable[[int], float], seed: int) -> Loads:
    """Waiting, running and KV use of a simulated server.

    Poisson arrivals, at most 128 requests running, outputs of 50 to 400 steps, and a KV
    pool that is full at 140 requests.

    Args:
        arrivals: mean number of arrivals in a step, by step number.
        seed: of the random numbers.
    """
    rng = random.Random(seed)
    waiting = 0
    left: list[int] = []  # steps that each running request still needs
    loads: Loads = []
    for step in range(STEPS):
        next_arrival = rng.expovariate(1.0)
        while next_arrival < arrivals(step):
            waiting += 1
            next_arrival += rng.expovariate(1.0)
        left = [steps - 1 for steps in left if steps > 1]
        started = min(waiting, 128 - len(left))
        waiting -= started
        left += [rng.randint(50, 400) for _ in range(started)]
        loads.append((waiting, len(left), min(1.0, len(left) / 140)))
    return loads


def streams() -> dict[str, Stream]:
    """Streams by name, from an idle server to the worst there can be."""
    default = Config()
    every_step = Config.model_validate({"policy": {"kind": "periodic", "period": 1}})
    busy, calm = (99, 64, 1.0), (0, 1, 0.1)
    return {
        "calm": Stream(default, served(lambda step: 0.05, seed=1)),
        "bursts": Stream(default, served(lambda step: 2.0 if step % 2000 < 400 else 0.1, seed=2)),
        "saturated": Stream(default, served(lambda step: 0.7, seed=3)),
        # The guards have to hold back a change at every other step.
        "flicker": Stream(default, [busy if step % 2 else calm for step in range(STEPS)]),
        # No load does this: a switch and its listeners at every step.
        "switch_every_step": Stream(every_step, [calm] * STEPS),
    }


def mean_us(stream: Stream) -> list[float]:
    """Mean time of `decide` over the stream, in microseconds, loop included; one per repeat."""
    prepared = stream.samples()

    def run(decide: Callable[[LoadSample], object]) -> None:
        for sample in prepared:
            decide(sample)

    def one() -> float:
        decide = stream.controller().decide
        return timeit.timeit(lambda: run(decide), number=1)

    return [one() / len(prepared) * 1e6 for _ in range(REPEATS)]


def single_us(stream: Stream) -> Iterator[float]:
    """Time of each call by itself, in microseconds, with the cost of reading the clock."""
    decide = stream.controller().decide
    clock = time.perf_counter_ns
    for sample in stream.samples():
        start = clock()
        decide(sample)
        yield (clock() - start) / 1e3


def measure(stream: Stream) -> dict[str, float]:
    controller = stream.controller()
    for sample in stream.samples():
        controller.decide(sample)
    means = mean_us(stream)
    singles = statistics.quantiles(single_us(stream), n=1000, method="inclusive")
    return {
        "steps": len(stream.loads),
        "switches": controller.counters.switches,
        "mean_us_median_of_repeats": round(statistics.median(means), 3),
        "mean_us_best_of_repeats": round(min(means), 3),
        "single_us_p50": round(singles[499], 3),
        "single_us_p99": round(singles[989], 3),
        "single_us_p99_9": round(singles[998], 3),
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULT, help="JSON file to write")
    out = parser.parse_args().out
    # timeit switches it off for the means; the single calls are to be measured the same way.
    gc.disable()
    results = {name: measure(stream) for name, stream in streams().items()}
    worst = max(each["mean_us_median_of_repeats"] for each in results.values())
    report = {
        "benchmark": "decision_time",
        "command": "python -m benchmarks.decision_time",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "goal_us": GOAL_US,
        "repeats": REPEATS,
        "results": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")
    for name, each in results.items():
        print(
            f"{name:18} {each['mean_us_median_of_repeats']:6.2f} us a decision, "
            f"p99 {each['single_us_p99']:6.2f} us, {each['switches']} switches"
        )
    print(f"goal: under {GOAL_US:g} us; worst stream: {worst:.2f} us; written to {out}")
    return 0 if worst < GOAL_US else 1


if __name__ == "__main__":
    sys.exit(main())
