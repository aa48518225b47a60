"""Serves random traffic with one engine until the mode has flipped often enough."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import EngineDriver, run_scenario
from harness.invariants import Books
from runs import periodic
from workloads import models

from soak.leaks import Reading, begin, read
from soak.traffic import Asked, Text, Traffic, write_texts

#: Little room, so that requests wait, are retracted and lose their cached prefixes.
ENGINE: dict[str, Any] = {
    "max_running_requests": 8,
    "max_total_tokens": 1280,
    "chunked_prefill_size": 64,
    "schedule_conservativeness": 0.01,
}
#: Draft sync flushes within a stretch of target-only steps, and not only at its end.
WINDOW = 8
REQUESTS_PER_ROUND = 60
_PERIODS = (1, 1, 1, 1, 1, 2, 3, 8)
_IDLE_PAUSE_S = 0.01

Progress = Callable[["Soak"], None]


@dataclass
class Soak:
    """What a soak did and found.

    Attributes:
        flips: changes of mode.
        steps: decode steps by mode.
        requests: requests by the way they ended: ``stop``, ``length``, ``abort``.
        retractions, pauses, commands, flushes: how often there was one; commands are the
            operator's.
        idle_s: longest time without a request.
        wrong: requests with a wrong answer, the first few described.
        checks: how often the books of the pools were checked.
        readings: what was counted at idle times.
        seconds: time it took.
    """

    flips: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    retractions: int = 0
    pauses: int = 0
    commands: int = 0
    flushes: int = 0
    idle_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    checks: int = 0
    readings: list[Reading] = field(default_factory=list)
    seconds: float = 0.0


def run_soak(flips: int, *, seed: int = 1, idle_s: float = 60, progress: Progress) -> Soak:
    """Flip so often, in a process of its own.

    Args:
        flips: changes of mode after which no further round begins.
        seed: of the traffic and of what the operator does.
        idle_s: length of the idle time in the middle of the soak.
        progress: called after each round, in that process.

    Raises:
        BooksDoNotBalance: the books of a pool were wrong at some pass.
    """
    texts = write_texts()
    return run_scenario(lambda: _Server(texts, seed).run(flips, idle_s, progress))


class _Server:
    def __init__(self, texts: Sequence[Text], seed: int) -> None:
        self._driver = EngineDriver(
            "EAGLE3",
            "specswitch",
            {"policy": periodic(1), "draft_sync": {"window": WINDOW}},
            models=models("EAGLE3"),
            **ENGINE,
        )
        self._worker = self._driver.worker
        self._books = Books(self._driver.scheduler)
        self._traffic = Traffic(texts, seed)
        self._random = random.Random(seed)
        self._paused_until: int | None = None
        self._busy_from = 0
        self._soak = Soak()

    def run(self, flips: int, idle_s: float, progress: Progress) -> Soak:
        soak, started = self._soak, time.monotonic()
        begin()
        while soak.flips < flips:
            halfway = not soak.idle_s and soak.flips >= flips // 2
            self._round(idle_s if halfway else 0)
            soak.seconds = round(time.monotonic() - started, 1)
            progress(soak)
        return soak

    def _round(self, idle_s: float) -> None:
        soak, dice = self._soak, self._random
        # Passes without a request; a round ends idle as well.
        self._busy_from = round(idle_s / _IDLE_PAUSE_S) or dice.choice([0, 0, 10, 100])
        asked = self._traffic.some(REQUESTS_PER_ROUND, self._busy_from)
        results = self._driver.generate([one.request for one in asked], self._on_tick)
        if idle_s:
            soak.idle_s = idle_s
        for one, result in zip(asked, results, strict=True):
            soak.requests[result.finish_reason["type"]] += 1
            soak.retractions += result.retractions
            if not one.is_answered_by(result):
                soak.wrong.append(_describe(one, result))
        if dice.random() < 0.25:
            assert self._driver.scheduler.flush_cache()
            self._books.check_empty()
            soak.flushes += 1
        snapshot = self._worker.snapshot()
        soak.flips, soak.steps = snapshot["switches"]["total"], snapshot["steps"]
        soak.checks = self._books.checks
        del results, asked
        soak.readings.append(read(self._driver))

    def _on_tick(self, driver: EngineDriver) -> None:
        self._books.check()
        if driver.tick < self._busy_from:
            time.sleep(_IDLE_PAUSE_S if self._busy_from > 1000 else 0)
        elif self._paused_until is not None:
            if driver.tick >= self._paused_until:
                self._go_on()
        else:
            self._disturb()

    def _disturb(self) -> None:
        """What an operator does, now and then."""
        dice = self._random
        if dice.random() < 1 / 25:
            self._command({"set": {"policy.period": dice.choice(_PERIODS)}})
        if dice.random() < 1 / 200:
            self._command({"mode": dice.choice(["target_only", "speculate"])})
        elif dice.random() < 1 / 10:
            self._command({"mode": "auto"})
        if dice.random() < 1 / 200:
            self._pause(dice.choice(["in_place", "retract"]))

    def _command(self, command: dict[str, object]) -> None:
        self._soak.commands += bool(self._worker.steering.apply(command))

    def _pause(self, mode: str) -> None:
        from sglang.srt.managers.io_struct import PauseGenerationReqInput

        self._driver.scheduler.pause_generation(PauseGenerationReqInput(mode))
        self._paused_until = self._driver.tick + self._random.randint(1, 6)
        self._soak.pauses += 1

    def _go_on(self) -> None:
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput

        self._driver.scheduler.continue_generation(
            ContinueGenerationReqInput(torch_empty_cache=False)
        )
        self._paused_until = None


def _describe(asked: Asked, result: Any) -> str:
    return (
        f"{result.rid}, {result.finish_reason}: prompt of {len(asked.request.input_ids)} tokens, "
        f"expected {list(asked.answer)}, got {result.output_ids}"
    )
