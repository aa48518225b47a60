"""`switch`: does the first step after a switch take longer than any other?

A server under steady load changes its mode every N decode steps, whatever the load,
and writes the duration of every decode step (CUDA events on a GPU) to the file named by
SPECSWITCH_STEP_TIMES: one JSON object a line with `step`, `mode`, `switched`, `batch`,
`ms` (end of the step before to end of this one; null after a prefill) and `forward_ms`
(its work on the device alone). Graph captures, allocations or lost overlap would show
in the first step of each stretch.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import client
from benchmarks.arms import Arm
from benchmarks.envelope import require_modes, steps_between
from benchmarks.errors import BenchmarkError
from benchmarks.results import ResultFile
from benchmarks.runner import Measurement, Values
from benchmarks.server import Server
from benchmarks.setup import Setup
from benchmarks.stats import median_or_none, percentiles
from benchmarks.workload import Workload

BENCHMARK = "switch"
STEP_TIMES = "SPECSWITCH_STEP_TIMES"
MODES = ("speculate", "target_only")
REPEATS = "repeats"
_WARM_UP_TOKENS = 200
#: Steps of a stretch that can be judged: the first, and a median of the others.
_SHORTEST = 3


@dataclass(frozen=True)
class Step:
    """One decode step as the server wrote it; `ms` is None where it followed a prefill."""

    step: int
    mode: str
    switched: bool
    batch: int
    ms: float | None
    forward_ms: float


@dataclass(frozen=True)
class Stretch:
    """The steps from one switch to the next, all of one mode and one batch size.

    `ratio` compares the first step with the median of the others in the same stretch, which
    had nearly the same context length; a median over the whole run would not.
    """

    mode: str
    batch: int
    first_ms: float
    rest_ms: tuple[float, ...]
    forward_ratio: float

    @property
    def ratio(self) -> float:
        return self.first_ms / statistics.median(self.rest_ms)


class SwitchTimes:
    """Plans the load, and evaluates the step times when the server is gone.

    Args:
        setup: `output_len` sets how many steps a request lasts.
        workload: prompts.
        points: concurrencies.
        waves: requests per concurrent slot.
        folder: where the server writes its step times.
        result: where the cells go.
    """

    def __init__(
        self,
        setup: Setup,
        workload: Workload,
        *,
        points: Sequence[int],
        waves: int,
        folder: Path,
        result: ResultFile,
    ) -> None:
        self._setup = setup
        self._workload = workload
        self._points = points
        self._waves = waves
        self._file = (folder / "step-times.jsonl").resolve()
        self._result = result

    def arm(self, periodic: Arm) -> Arm:
        """`periodic`, writing its step times."""
        return replace(periodic, env={**periodic.env, STEP_TIMES: str(self._file)})

    def plan(self, arm: Arm) -> list[Measurement]:
        due = [
            point
            for point in self._points
            if not self._result.cell(arm.name, str(point)).get(REPEATS)
        ]
        if not due:
            return []
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.unlink(missing_ok=True)
        return [self._load(arm, due[-1], warm_up=True), *(self._load(arm, p) for p in due)]

    def _load(self, arm: Arm, point: int, warm_up: bool = False) -> Measurement:
        # A batch size of its own keeps the warm-up's steps apart from the measured ones.
        slots = point + 1 if warm_up else point
        longest = self._setup.output_len
        length = min(_WARM_UP_TOKENS, longest) if warm_up else longest
        count = slots if warm_up else slots * self._waves

        def run(server: Server) -> Values:
            prompts = self._workload.prompts(count, slots, "warm-up" if warm_up else "switch")
            before = server.state()
            load = [
                client.Request(prompt, min(length, self._setup.output_len)) for prompt in prompts
            ]
            client.closed_loop(server.url, load, slots)
            require_modes(arm, steps_between(before, server.state()))
            return {}

        label = "warm-up" if warm_up else f"concurrency {point}"
        return Measurement(str(point), "", label, run, expected_s=25)

    def finish(self, arm: Arm, server: int) -> None:
        """Evaluate the file of the stopped server; BenchmarkError when there is none."""
        if not self._file.exists():
            raise BenchmarkError(
                f"the server wrote no step times: does this version know {STEP_TIMES}?"
            )
        with self._file.open() as lines:
            steps = parse(lines, str(self._file))
        for point in self._points:
            found = [s for s in stretches(steps) if s.batch == point]
            if found:
                value = {"server": server, **evaluate(found)}
                self._result.add(arm.name, str(point), REPEATS, value)


def parse(lines: Iterable[str], name: str) -> list[Step]:
    """Steps in file order; BenchmarkError names the line and the field that is wrong.

    A last line without its end is what a stopped process leaves behind, and is dropped.
    """
    steps: list[Step] = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            break
        try:
            raw = json.loads(line)
        except ValueError as error:
            raise BenchmarkError(f"{name}, line {number}: not JSON: {error}") from error
        missing = [key for key in Step.__dataclass_fields__ if key not in raw]
        if missing:
            raise BenchmarkError(f"{name}, line {number}: lacks {', '.join(missing)}")
        if raw["mode"] not in MODES:
            raise BenchmarkError(f"{name}, line {number}: unknown mode {raw['mode']!r}")
        steps.append(Step(**{key: raw[key] for key in Step.__dataclass_fields__}))
    return steps


def stretches(steps: Iterable[Step]) -> list[Stretch]:
    """Stretches that begin with a switch and last three steps or more.

    Where the batch changes or a prefill comes between, nothing after that is used.
    """
    found: list[Stretch] = []
    current: list[Step] = []
    for step in steps:
        if current and not _continues(current[-1], step):
            found += _closed(current)
            current = []
        if step.ms is not None and (step.switched or current):
            current.append(step)
    return found + _closed(current)


def _continues(last: Step, step: Step) -> bool:
    # A step without a time is not kept, so the one after it has a gap before it.
    same = (last.mode, last.batch) == (step.mode, step.batch)
    return same and step.step == last.step + 1


def _closed(steps: Sequence[Step]) -> list[Stretch]:
    times = [step.ms for step in steps if step.ms is not None]
    if len(times) < _SHORTEST:
        return []
    first, *rest = steps
    forward = first.forward_ms / statistics.median(step.forward_ms for step in rest)
    return [Stretch(first.mode, first.batch, times[0], tuple(times[1:]), forward)]


def evaluate(found: Sequence[Stretch]) -> dict[str, Any]:
    """Per mode: first steps against the rest.

    `ratio` is median first step / median of all other steps of that mode; `local` holds
    percentiles of each first step / median of the others in its stretch, and `worst` the
    largest of these. `forward_ratio` is the median of the same ratio of device work alone:
    where it is 1 and `ratio` is not, the time is lost on the host.
    """
    modes: dict[str, Any] = {}
    for mode in MODES:
        mine = [stretch for stretch in found if stretch.mode == mode]
        if not mine:
            continue
        first = statistics.median(stretch.first_ms for stretch in mine)
        step = statistics.median(ms for stretch in mine for ms in stretch.rest_ms)
        local = [stretch.ratio for stretch in mine]
        modes[mode] = {
            "switches": len(mine),
            "first_ms": round(first, 4),
            "step_ms": round(step, 4),
            "ratio": round(first / step, 4),
            "forward_ratio": median_or_none([one.forward_ratio for one in mine], digits=4),
            "local": percentiles(local),
            "worst": round(max(local), 4),
        }
    return modes


def summarise(cell: Mapping[str, Any]) -> dict[str, Any]:
    """Per mode the median of each number over the repeats."""
    repeats: list[Mapping[str, Any]] = cell.get(REPEATS, [])
    summary: dict[str, Any] = {}
    for mode in MODES:
        per_repeat = [repeat[mode] for repeat in repeats if mode in repeat]
        if per_repeat:
            keys = ("switches", "first_ms", "step_ms", "ratio", "forward_ratio", "worst")
            summary[mode] = {
                key: median_or_none([one[key] for one in per_repeat], digits=4) for key in keys
            }
    return {**summary, REPEATS: list(repeats)}
