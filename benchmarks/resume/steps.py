"""What `resume` reads from a server's step times: strides of requests, flushes, catch-ups.

The server writes one line a decode step to the file named by SPECSWITCH_STEP_TIMES, and has
written a step's line before it answers a request of that step.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.errors import BenchmarkError
from benchmarks.switch import STEP_TIMES


class Part(NamedTuple):
    """A draft forward of draft sync: "fill" writes KV alone, "propose" goes on to the logits."""

    name: str
    positions: int
    ms: float


@dataclass(frozen=True)
class Step:
    """One decode step as the server wrote it; `ms` is None where it followed a prefill."""

    mode: str
    switched: bool
    batch: int
    ms: float | None
    parts: tuple[Part, ...]
    tokens: Mapping[str, int]

    @property
    def speculates(self) -> bool:
        return self.mode == "speculate"

    @property
    def synced(self) -> int:
        """Positions that draft sync has written in this step."""
        return sum(part.positions for part in self.parts)

    @property
    def sync_ms(self) -> float:
        return sum(part.ms for part in self.parts)


def read(path: Path) -> list[Step]:
    """Steps in file order; a line that is still being written is left out.

    Raises BenchmarkError when there is no file or a line lacks what is needed.
    """
    if not path.exists():
        raise BenchmarkError(f"the server wrote no step times: does it know {STEP_TIMES}?")
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [_step(line) for line in lines if line.endswith("\n")]


def _step(line: str) -> Step:
    raw = json.loads(line)
    try:
        return Step(
            raw["mode"],
            raw["switched"],
            raw["batch"],
            raw["ms"],
            tuple(Part(*part) for part in raw["parts"]),
            raw["tokens"],
        )
    except KeyError as error:
        raise BenchmarkError(f"step times without {error}: the server is too old") from error


@dataclass(frozen=True)
class Resumption:
    """What some requests did after a stretch of target-only steps.

    Attributes:
        stretch: target-only steps in a row that all of them took part in.
        emitted: tokens of each request before its first speculative step afterwards.
        strides: tokens of each of its first speculative steps afterwards.
    """

    stretch: int
    emitted: Mapping[str, int]
    strides: Mapping[str, Sequence[int]]


def resumption(steps: Sequence[Step], requests: Sequence[str], count: int) -> Resumption:
    """What these requests did after their one stretch.

    Raises BenchmarkError when they did not all decode through it together, or one of them ended
    less than `count` speculative steps after it.
    """
    off = [
        index
        for index, step in enumerate(steps)
        if not step.speculates and any(name in step.tokens for name in requests)
    ]
    together = [index for index in off if all(name in steps[index].tokens for name in requests)]
    if not off or off != together or off[-1] - off[0] + 1 != len(off):
        raise BenchmarkError(
            f"{len(off)} target-only steps, {len(together)} of them with all requests, in place of "
            "one stretch: send fewer requests at a time"
        )
    before, after = steps[: off[-1] + 1], steps[off[-1] + 1 :]
    # The prefill has emitted one more.
    emitted = {name: 1 + sum(step.tokens.get(name, 0) for step in before) for name in requests}
    return Resumption(len(off), emitted, first_strides(after, requests, count))


def first_strides(
    steps: Iterable[Step], requests: Sequence[str], count: int
) -> dict[str, list[int]]:
    """Tokens of the first `count` steps of each request, all of which speculate.

    Raises BenchmarkError when a request has fewer, or one does not speculate.
    """
    found: dict[str, list[int]] = {name: [] for name in requests}
    for step in steps:
        for name, tokens in step.tokens.items():
            if name in found and len(found[name]) < count:
                if not step.speculates:
                    raise BenchmarkError(f"request {name} did not speculate throughout")
                found[name].append(tokens)
    short = [name for name, made in found.items() if len(made) < count]
    if short:
        raise BenchmarkError(f"fewer than {count} speculative steps: {', '.join(sorted(short))}")
    return found


def mean(strides: Mapping[str, Sequence[int]]) -> float:
    """Acceptance length over all strides."""
    return statistics.fmean(tokens for made in strides.values() for tokens in made)


def catch_up_times(steps: Sequence[Step], batch: int, per_request: int) -> dict[str, Any] | None:
    """Steps that resume with a batch whose requests have all missed `per_request` positions.

    `step_ms` is the time of such a step, `median_step_ms` that of a speculative step of the same
    batch without draft sync, `fill_ms` and `propose_ms` the two draft forwards. None when there
    was no such step.
    """
    mine = [s for s in steps if s.batch == batch and s.speculates and s.ms is not None]
    resumed = [s for s in mine if s.switched and s.synced == batch * per_request]
    plain = [s.ms for s in mine if not s.parts and s.ms is not None]
    if not resumed or not plain:
        return None
    usual = statistics.median(plain)
    took = statistics.median(s.ms for s in resumed if s.ms is not None)
    return {
        "positions": batch * per_request,
        "catch_ups": len(resumed),
        "fill_ms": _median(p.ms for s in resumed for p in s.parts if p.name == "fill"),
        "propose_ms": _median(p.ms for s in resumed for p in s.parts if p.name == "propose"),
        "catch_up_ms": _median(s.sync_ms for s in resumed),
        "step_ms": round(took, 4),
        "median_step_ms": round(usual, 4),
        "ratio": round(took / usual, 4),
    }


def flush_times(steps: Sequence[Step], batch: int) -> dict[str, Any] | None:
    """Target-only steps of this batch with a flush against those without; None without any."""
    mine = [s for s in steps if s.batch == batch and not s.speculates and s.ms is not None]
    flushed = [s for s in mine if s.parts]
    plain = [s.ms for s in mine if not s.parts and s.ms is not None]
    if not flushed or not plain:
        return None
    return {
        "flushes": len(flushed),
        "steps": len(mine),
        "positions": _median(s.synced for s in flushed),
        "largest": max(s.synced for s in flushed),
        "flush_ms": _median(s.sync_ms for s in flushed),
        "step_ms": _median(s.ms for s in flushed),
        "median_step_ms": _median(plain),
        "share": round(
            sum(s.sync_ms for s in flushed) / sum(s.ms for s in mine if s.ms is not None), 5
        ),
    }


def _median(values: Iterable[float | None]) -> float:
    return round(statistics.median(value for value in values if value is not None), 4)
