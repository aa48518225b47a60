"""The loop that every benchmark shares: arms in turn, measurements in turn, in time.

A plan is an ordered list of measurements per arm. The loop starts the arm's server,
runs what is due, saves each measurement, and never begins what cannot end before the
deadline: machines with accelerators are lent by the minute.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.arms import Arm
from benchmarks.errors import BenchmarkError
from benchmarks.results import ResultFile
from benchmarks.server import Server, ServerFailedError, ServerQueue

#: Assumed before anything was measured in this run.
_FIRST_START_S = 60.0
_FIRST_MEASUREMENT_S = 10.0
#: Stopping a server and writing files.
_RESERVE_S = 8.0


Values = Mapping[str, Mapping[str, Any]]
"""What a measurement found, by cell of its arm."""


@dataclass(frozen=True)
class Measurement:
    """One thing to measure on a running server.

    Attributes:
        point: what is measured (a concurrency, all phases); its value is the one shown.
        kind: list of the cell that the value is appended to.
        label: shown to the user.
        run: does it and returns the values to keep by cell of the result; none for a warm-up.
        expected_s: duration to plan with as long as none like it was timed.
    """

    point: str
    kind: str
    label: str
    run: Callable[[Server], Values]
    expected_s: float = _FIRST_MEASUREMENT_S


Finish = Callable[[Arm, int], None]
"""Called with the arm of a stopped server and its place in the result's list of servers."""


class Deadline:
    """Seconds left; without a limit, always enough."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    def left(self) -> float:
        return float("inf") if self._end is None else self._end - self._clock()

    def allows(self, seconds: float) -> bool:
        return self.left() >= seconds + _RESERVE_S


class Runner:
    """Runs plans and keeps what they measured.

    Args:
        result: where measurements go, at once.
        folder: for logs and configs of the servers.
        deadline: no server start and no measurement begins that would pass it.
        start_timeout_s: a server that takes longer has failed.
        prestart: see ServerQueue.
        memory: see ServerQueue.
        console: for the user.
    """

    def __init__(
        self,
        result: ResultFile,
        folder: Path,
        *,
        deadline: Deadline,
        start_timeout_s: float,
        prestart: bool,
        memory: Callable[[], int | None],
        console: Console,
    ) -> None:
        self._result = result
        self._folder = folder
        self._deadline = deadline
        self._start_timeout_s = start_timeout_s
        self._prestart = prestart
        self._memory = memory
        self._console = console
        self._start_s = _FIRST_START_S
        self._took: dict[tuple[str, str], float] = {}
        self.skipped: list[str] = []
        self.failed: list[str] = []

    def run(
        self,
        arms: Sequence[Arm],
        plan: Callable[[Arm], Sequence[Measurement]],
        finish: Finish | None = None,
    ) -> None:
        """Measure every arm that has something left to measure.

        An arm whose server fails is recorded and the next one is tried; when the first two
        fail, the third would too, and the run ends.

        Args:
            plan: measurements still missing for an arm, warm-ups first.
            finish: called after a server was stopped (its files are complete then).

        Raises:
            BenchmarkError: nothing can be measured here.
        """
        due = [(arm, measurements) for arm in arms if (measurements := plan(arm))]
        total = sum(len(measurements) + 1 for _, measurements in due)
        queue = ServerQueue(
            [arm for arm, _ in due],
            self._folder,
            label=f"run{len(self._result.data['runs'])}",
            prestart=self._prestart,
            memory=self._memory,
        )
        with _terminable(), self._progress() as progress, queue:
            task = progress.add_task("starting", total=total)
            for index, (arm, measurements) in enumerate(due):
                self._run_arm(queue, index, arm, measurements, finish, progress, task)
                if len(self.failed) == index + 1 == 2:
                    raise BenchmarkError(
                        f"the first two servers failed; their logs are in {self._folder}"
                    )

    def _run_arm(
        self,
        queue: ServerQueue,
        index: int,
        arm: Arm,
        measurements: Sequence[Measurement],
        finish: Finish | None,
        progress: Progress,
        task: Any,
    ) -> None:
        if not self._deadline.allows(self._start_s + self._estimate(measurements[-1])):
            self._skip(arm, measurements)
            progress.advance(task, len(measurements) + 1)
            return
        progress.update(task, description=f"{arm.name}: starting")
        server = number = None
        done = 0
        try:
            timeout_s = min(self._start_timeout_s, self._deadline.left() - _RESERVE_S)
            server = queue.open(index, timeout_s)
            self._start_s = server.ready_s or self._start_s
            number = self._result.add_server(server.describe())
            self._say(f"{arm.name}: ready {server.ready_s} s after it took the device")
            progress.advance(task)
            for measurement in measurements:
                progress.update(task, description=f"{arm.name}: {measurement.label}")
                self._measure(server, number, measurement)
                done += 1
                progress.advance(task)
        except BenchmarkError as error:
            if server is not None and not isinstance(error, ServerFailedError):
                error = BenchmarkError(f"{error}\n{server.log_tail()}")
            self._fail(arm, error)
            progress.advance(task, len(measurements) - done + (server is None))
        finally:
            queue.close(index)
        if finish is not None and number is not None:
            finish(arm, number)

    def _measure(self, server: Server, number: int, measurement: Measurement) -> None:
        arm = server.arm
        if not self._deadline.allows(self._estimate(measurement)):
            self._skip(arm, [measurement])
            return
        start = time.monotonic()
        values = measurement.run(server)
        server.check_alive()
        self._took[measurement.point, measurement.kind] = time.monotonic() - start
        for point, value in values.items():
            self._result.add(arm.name, point, measurement.kind, {"server": number, **value})
        if measurement.point in values:
            self._say(f"{arm.name} {measurement.label}: {_brief(values[measurement.point])}")

    def _estimate(self, measurement: Measurement) -> float:
        # Arms differ by less than a factor of 1.5 at the same load.
        took = self._took.get((measurement.point, measurement.kind))
        return measurement.expected_s if took is None else 1.5 * took

    def _skip(self, arm: Arm, measurements: Sequence[Measurement]) -> None:
        names = [f"{arm.name} {m.label}" for m in measurements if m.kind]
        self.skipped += names
        self._say(f"no time left for: {', '.join(names)}")

    def _fail(self, arm: Arm, error: Exception) -> None:
        self.failed.append(arm.name)
        self._result.add_failure(arm.name, str(error))
        text = f"{arm.name} failed: {error}"
        self._console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)

    def _say(self, text: str) -> None:
        left = self._deadline.left()
        prefix = "" if left == float("inf") else f"[{left:4.0f} s left] "
        self._console.print(prefix + text, markup=False, highlight=False, soft_wrap=True)

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            # In a log, the line printed for each measurement is the progress.
            disable=not self._console.is_terminal,
        )


def _brief(value: Mapping[str, Any]) -> str:
    plain = {key: number for key, number in value.items() if isinstance(number, int | float)}
    return "  ".join(f"{key}={number:,}" for key, number in plain.items())


@contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM unwind like Ctrl-C, so that servers are stopped in both cases."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
