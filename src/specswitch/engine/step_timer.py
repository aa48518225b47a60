"""Per-step times for benchmarks: one JSON line a decode step.

Off unless ``SPECSWITCH_STEP_TIMES`` names a file. On a GPU the times come from CUDA events on the
forward stream, read back once they have passed, so that measuring adds no wait.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, Any

import torch

from specswitch.control.decision import Decision

VARIABLE = "SPECSWITCH_STEP_TIMES"


class StepTimer:
    """Does nothing; the timer of a server that is not measured."""

    @staticmethod
    def from_environment(device: str, tp_rank: int) -> StepTimer:
        """A recording timer on rank 0 when ``SPECSWITCH_STEP_TIMES`` is set, else an idle one."""
        path = os.environ.get(VARIABLE)
        if not path or tp_rank != 0:
            return StepTimer()
        return RecordingTimer(open(path, "w", encoding="utf-8"), device)

    def measure(self, decision: Decision, batch: int) -> AbstractContextManager[None]:
        """Around one decode step of ``batch`` requests."""
        return nullcontext()

    def interrupt(self) -> None:
        """A batch that is not a decode step runs: the next step has no step before it."""


class RecordingTimer(StepTimer):
    """Writes {"step", "mode", "switched", "batch", "ms", "forward_ms"} lines.

    ``ms`` is the time from the end of the decode step before to the end of this one, null after a
    prefill; ``forward_ms`` the time from this step's first to its last operation on the device.
    """

    def __init__(self, out: IO[str], device: str) -> None:
        self._out = out
        self._mark = _mark_cuda if device == "cuda" else _HostMark
        self._previous_end: Any = None
        self._pending: deque[tuple[Decision, int, Any, Any, Any]] = deque()

    @contextmanager
    def measure(self, decision: Decision, batch: int) -> Iterator[None]:
        start = self._mark()
        yield
        end = self._mark()
        self._pending.append((decision, batch, self._previous_end, start, end))
        self._previous_end = end
        self._write_passed()

    def interrupt(self) -> None:
        self._previous_end = None

    def _write_passed(self) -> None:
        while self._pending and self._pending[0][-1].query():
            decision, batch, before, start, end = self._pending.popleft()
            line = {
                "step": decision.step,
                "mode": str(decision.mode),
                "switched": decision.switched,
                "batch": batch,
                "ms": before.elapsed_time(end) if before is not None else None,
                "forward_ms": start.elapsed_time(end),
            }
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()


def _mark_cuda() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class _HostMark:
    """The part of a CUDA event's interface that the timer uses, on the host's clock."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: _HostMark) -> float:
        return (end._at - self._at) * 1000
