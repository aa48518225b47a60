"""The loop that every benchmark shares: arms in turn, measurements in turn, in time.

A plan is an ordered list of measurements per arm. The loop starts the arm's server,
runs what is due, saves each measurement, and never begins what cannot end before the
deadline: machines with accelerators are lent by the minute.

Arms that are up together are measured in turns. The speed of a machine drifts by more than
the differences that matter, so that two arms which are measured minutes apart cannot be told
apart to a percent; two measurements of one turn are seconds apart.
"""

from __future__ import annotations

import datetime
import itertools
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


@dataclass
class _Member:
    """One arm of a group.

    Attributes:
        index: its place in the queue of servers.
        due: measurements still to be made.
        server: None until it serves.
        number: its place in the result's list of servers.
    """

    index: int
    arm: Arm
    due: list[Measurement] = field(default_factory=list)
    server: Server | None = None
    number: int | None = None


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
        together: how many servers are up at a time, measured in turns. The device must hold
            them, and each must be told how much of it to take (`--max-total-tokens`).
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
        together: int = 1,
    ) -> None:
        self._result = result
        self._folder = folder
        self._deadline = deadline
        self._start_timeout_s = start_timeout_s
        self._prestart = prestart
        self._together = together
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
        do not start, the third would not either, and the run ends.

        Args:
            plan: measurements still missing for an arm, warm-ups first.
            finish: called after a server was stopped (its files are complete then).

        Raises:
            BenchmarkError: nothing can be measured here, or not into this file.
        """
        due = [(arm, list(measurements)) for arm in arms if (measurements := plan(arm))]
        for arm, _ in due:
            self._result.require_config(arm)
        members = [_Member(index, arm, plan) for index, (arm, plan) in enumerate(due)]
        total = sum(len(member.due) + 1 for member in members)
        queue = ServerQueue(
            [arm for arm, _ in due],
            self._folder,
            label=f"run{len(self._result.data['runs'])}",
            prestart=self._prestart,
            memory=self._memory,
        )
        with _terminable(), self._progress() as progress, queue:
            advance = _Advance(progress, progress.add_task("starting", total=total))
            for first in range(0, len(members), self._together):
                self._run_group(queue, members[first : first + self._together], finish, advance)

    def _run_group(
        self,
        queue: ServerQueue,
        group: Sequence[_Member],
        finish: Finish | None,
        advance: _Advance,
    ) -> None:
        if len(group) > 1 and self._fits(group[0]):
            queue.prepare(member.index for member in group)
        try:
            for member in group:
                self._start(queue, member, advance)
            for turn in itertools.count():
                running = [member for member in group if member.server and member.due]
                if not running:
                    break
                # There and back, so that a steady drift falls on all alike.
                self._run_turn(running if turn % 2 == 0 else running[::-1], advance)
        finally:
            for member in group:
                queue.close(member.index)
        for member in group:
            if finish is not None and member.number is not None:
                finish(member.arm, member.number)

    def _start(self, queue: ServerQueue, member: _Member, advance: _Advance) -> None:
        arm = member.arm
        if not self._fits(member):
            self._skip(arm, member.due)
            advance.by(len(member.due) + 1)
            return
        advance.say(f"{arm.name}: starting")
        try:
            timeout_s = min(self._start_timeout_s, self._deadline.left() - _RESERVE_S)
            server = queue.open(member.index, timeout_s, ahead=self._together == 1)
        except BenchmarkError as error:
            self._fail(arm, error)
            advance.by(len(member.due) + 1)
            if len(self.failed) == member.index + 1 == 2:
                raise BenchmarkError(
                    f"the first two servers failed; their logs are in {self._folder}"
                ) from error
            return
        member.server = server
        self._start_s = server.ready_s or self._start_s
        member.number = self._result.add_server(server.describe())
        self._say(f"{arm.name}: ready {server.ready_s} s after it took the device")
        advance.by(1)

    def _run_turn(self, running: Sequence[_Member], advance: _Advance) -> None:
        """The next measurement of each."""
        at = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
        for member in running:
            server, measurement = member.server, member.due.pop(0)
            assert server is not None, "not running"
            advance.say(f"{member.arm.name}: {measurement.label}")
            advance.by(1)
            try:
                self._measure(server, {"server": member.number, "turn": at}, measurement)
            except BenchmarkError as error:
                if not isinstance(error, ServerFailedError):
                    error = BenchmarkError(f"{error}\n{server.log_tail()}")
                self._fail(member.arm, error)
                advance.by(len(member.due))
                member.due.clear()

    def _fits(self, member: _Member) -> bool:
        return self._deadline.allows(self._start_s + self._estimate(member.due[-1]))

    def _measure(self, server: Server, origin: Mapping[str, Any], measurement: Measurement) -> None:
        arm = server.arm
        if not self._deadline.allows(self._estimate(measurement)):
            self._skip(arm, [measurement])
            return
        start = time.monotonic()
        values = measurement.run(server)
        server.check_alive()
        self._took[measurement.point, measurement.kind] = time.monotonic() - start
        for point, value in values.items():
            self._result.add(arm.name, point, measurement.kind, {**origin, **value})
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


class _Advance:
    """The bar of one task."""

    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress, self._task = progress, task

    def say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def by(self, steps: int) -> None:
        self._progress.advance(self._task, steps)


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
