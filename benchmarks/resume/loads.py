"""Parts `catch_up` and `flush`: what the draft forwards of draft sync take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import client
from benchmarks.arms import FORCED_TARGET_ONLY, Arm, ArmFactory
from benchmarks.errors import BenchmarkError
from benchmarks.resume import steps as resume_steps
from benchmarks.resume.part import REPEATS, WINDOW, Part, configured, timed
from benchmarks.runner import Measurement, Values
from benchmarks.server import Server
from benchmarks.setup import Setup
from benchmarks.workload import Workload

#: Positions that each request has missed when `catch_up` resumes, and the window that keeps them.
MISSED, WIDE_WINDOW = 64, 256


class _Load(Part):
    """One load per concurrency on a server that writes its step times."""

    def __init__(
        self,
        factory: ArmFactory,
        setup: Setup,
        workload: Workload,
        folder: Path,
        points: Sequence[int],
    ) -> None:
        made, self._file = timed(self.arm_of(factory), folder)
        super().__init__(made)
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


class CatchUp(_Load):
    """The step that resumes, with as many missed positions a request as ``MISSED``."""

    @staticmethod
    def arm_of(factory: ArmFactory) -> Arm:
        # Half the window is not reached, so nothing is flushed before.
        sync = {"mode": "deferred", "window": WIDE_WINDOW}
        return configured(factory.periodic(MISSED), "catch_up", draft_sync=sync)

    def _evaluate(self, steps: Sequence[resume_steps.Step], point: int) -> dict[str, Any] | None:
        return resume_steps.catch_up_times(steps, point, MISSED)


class Flush(_Load):
    """Flushes while the target decodes alone."""

    @staticmethod
    def arm_of(factory: ArmFactory) -> Arm:
        sync = {"mode": "deferred", "window": WINDOW}
        return configured(factory.make(FORCED_TARGET_ONLY), "flush", draft_sync=sync)

    def _evaluate(self, steps: Sequence[resume_steps.Step], point: int) -> dict[str, Any] | None:
        return resume_steps.flush_times(steps, point)
