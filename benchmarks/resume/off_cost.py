"""Part `off_cost`: what draft sync costs a server that never speculates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import client, decode_log
from benchmarks.arms import FORCED_TARGET_ONLY, ArmFactory
from benchmarks.errors import BenchmarkError
from benchmarks.resume.part import REPEATS, WINDOW, Part, configured
from benchmarks.runner import Measurement, Values
from benchmarks.server import Server
from benchmarks.setup import Setup
from benchmarks.turns import ratio
from benchmarks.workload import Workload

#: The mode that the others are compared with comes first.
ORDER = ("off", "deferred", "every_step")
_NAME = "off_cost_"


class OffCost(Part):
    """Decode throughput of a server with one mode of draft sync."""

    def __init__(
        self,
        mode: str,
        factory: ArmFactory,
        setup: Setup,
        workload: Workload,
        points: Sequence[int],
        repeats: int,
    ) -> None:
        sync = {"mode": mode, "window": WINDOW}
        arm = factory.make(FORCED_TARGET_ONLY)
        super().__init__(configured(arm, f"{_NAME}{mode}", draft_sync=sync))
        self._setup, self._workload = setup, workload
        self._points, self._repeats = points, repeats

    def plan(self) -> list[Measurement]:
        warm_up = Measurement("", "", "warm-up", self._warm_up)
        repeats = range(self._repeats)
        return [warm_up, *(self._at(point, repeat) for repeat in repeats for point in self._points)]

    def _warm_up(self, server: Server) -> Values:
        self._send(server, max(self._points), "warm-up")
        return {}

    def _at(self, point: int, repeat: int) -> Measurement:
        def measure(server: Server) -> Values:
            server.tail.skip()
            self._send(server, point, repeat)
            steady = decode_log.steady(decode_log.parse(server.tail.read()), point)
            if steady is None:
                raise BenchmarkError(f"no steady decode at concurrency {point}: raise --output-len")
            return {str(point): {"decode_tok_s": steady.tok_s, "step_ms": steady.step_ms}}

        return Measurement(str(point), REPEATS, f"concurrency {point} #{repeat + 1}", measure)

    def _send(self, server: Server, point: int, repeat: int | str) -> None:
        prompts = self._workload.prompts(point, point, "off_cost", repeat)
        load = [client.Request(prompt, self._setup.output_len) for prompt in prompts]
        client.closed_loop(server.url, load, point)


def summarise(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Decode throughput over that of mode `off`, by mode and concurrency.

    Args:
        arms: of a result file; those of other parts are left out.
    """
    base, *others = (arms.get(f"{_NAME}{mode}", {}) for mode in ORDER)
    found: dict[str, dict[str, float]] = {}
    for mode, points in zip(ORDER[1:], others, strict=True):
        for point, cell in points.items():
            value = ratio(cell, base.get(point, {}), "decode_tok_s")
            if value is not None:
                found.setdefault(mode, {})[point] = value
    return found
