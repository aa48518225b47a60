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
from dataclasses import dataclass, field
from typing import IO, Any

import torch

from specswitch.control.decision import Decision

VARIABLE = "SPECSWITCH_STEP_TIMES"
_NOTHING = nullcontext()


class StepTimer:
    """Does nothing; the timer of a server that is not measured."""

    @staticmethod
    def from_environment(device: str, tp_rank: int) -> StepTimer:
        """A recording timer on rank 0 when ``SPECSWITCH_STEP_TIMES`` is set, else an idle one."""
        path = os.environ.get(VARIABLE)
        if not path or tp_rank != 0:
            return StepTimer()
        return RecordingTimer(open(path, "w", encoding="utf-8"), device)

    def measure(self, decision: Decision, batch: Any) -> AbstractContextManager[None]:
        """Around one decode step of ``batch``."""
        return _NOTHING

    def part(self, name: str, positions: int) -> AbstractContextManager[None]:
        """Around a part of the step that is being measured, over so many positions."""
        return _NOTHING

    def emitted(self, batch: Any, result: Any) -> None:
        """The tokens of the next step in order have reached the host."""

    def interrupt(self) -> None:
        """A batch that is not a decode step runs: the next step has no step before it."""


@dataclass
class _Step:
    """A decode step on its way to the file; the marks are CUDA events or ``_HostMark``."""

    decision: Decision
    batch: int
    before: Any
    start: Any
    end: Any = None
    parts: list[tuple[str, int, Any, Any]] = field(default_factory=list)
    tokens: dict[str, int] | None = None


class RecordingTimer(StepTimer):
    """Writes a line a decode step, once its result has been processed.

    Keys: "step", "mode", "switched", "batch"; "ms", the time from the end of the decode step before
    to the end of this one, null after a prefill; "forward_ms", the time from this step's first to
    its last operation on the device; "parts", the draft forwards of draft sync in it, a list of
    [name, positions, ms]; "tokens", how many each request got, by its name.
    """

    def __init__(self, out: IO[str], device: str) -> None:
        self._out = out
        self._mark = _mark_cuda if device == "cuda" else _HostMark
        self._previous_end: Any = None
        self._pending: deque[_Step] = deque()

    @contextmanager
    def measure(self, decision: Decision, batch: Any) -> Iterator[None]:
        step = _Step(decision, len(batch.seq_lens), self._previous_end, self._mark())
        self._pending.append(step)
        yield
        step.end = self._previous_end = self._mark()

    @contextmanager
    def part(self, name: str, positions: int) -> Iterator[None]:
        start = self._mark()
        yield
        self._pending[-1].parts.append((name, positions, start, self._mark()))

    def interrupt(self) -> None:
        self._previous_end = None

    def emitted(self, batch: Any, result: Any) -> None:
        # Results come in the order of the steps, each one.
        step = next(step for step in self._pending if step.tokens is None)
        lengths = result.accept_lens.tolist()
        step.tokens = {
            request.rid: length for request, length in zip(batch.reqs, lengths, strict=True)
        }
        # The engine has waited for the step (managers/scheduler_output_processor_mixin.py:474), so
        # its marks have passed: nothing waits here.
        while self._pending and self._pending[0].tokens is not None:
            self._write(self._pending.popleft())

    def _write(self, step: _Step) -> None:
        before = step.before
        line = {
            "step": step.decision.step,
            "mode": str(step.decision.mode),
            "switched": step.decision.switched,
            "batch": step.batch,
            "ms": before.elapsed_time(step.end) if before is not None else None,
            "forward_ms": step.start.elapsed_time(step.end),
            "parts": [
                (name, positions, start.elapsed_time(end))
                for name, positions, start, end in step.parts
            ],
            "tokens": step.tokens,
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
