"""Break-even acceptance lengths, and the thresholds that follow from them.

The `specswitch` arm must not be tuned by hand on the run that judges it. Its
marks are computed here, from a table measured beforehand: speculation pays at a
batch size as long as the acceptance length is above the table's value there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.errors import BenchmarkError, reading

#: Speculation resumes only where it gains at least this factor, so that a load
#: that sits on the crossover does not flip the mode.
RESUME_GAIN = 1.05
#: A queue this deep never occurs: the mark for "the waiting queue does not decide".
NEVER = 1_000_000


@dataclass(frozen=True)
class BreakEvenTable:
    """Break-even acceptance length by decode batch size.

    `rows` maps a batch size (requests) to the time of a speculative step divided
    by the time of a target-only step at that size, which is the acceptance length
    (tokens per request and step, bonus token included) where both modes emit
    equally many tokens per second.
    """

    steps: int
    rows: Mapping[int, float]
    source: str

    def __post_init__(self) -> None:
        if len(self.rows) < 2:
            raise BenchmarkError(
                "a break-even table needs at least two batch sizes; "
                f"{self.source} has {len(self.rows)}"
            )

    def crossover(self, acceptance: float) -> float | None:
        """Batch size above which speculation at this acceptance length loses.

        Linear between measured sizes. 0.0: it loses everywhere. None: it still
        pays at the largest size measured. Where noise makes the curve cross more
        than once, the crossing at the largest batch counts.
        """
        sizes = sorted(self.rows)
        if acceptance > self.rows[sizes[-1]]:
            return None
        for low, high in zip(reversed(sizes[:-1]), reversed(sizes[1:]), strict=True):
            below, above = self.rows[low], self.rows[high]
            if acceptance > below:
                return low + (acceptance - below) / (above - below) * (high - low)
        return 0.0

    @classmethod
    def from_result(cls, result: Mapping[str, Any], name: str) -> BreakEvenTable:
        """The table of another machine, from an `envelope` result with arms no_spec and static.

        Raises BenchmarkError when the result lacks the step times.
        """
        with reading(name):
            plain = result["arms"].get("no_spec", {})
            static = result["arms"].get("static", {})
            rows = {
                int(size): static[size]["step_ms"] / plain[size]["step_ms"]
                for size in plain
                if plain[size].get("step_ms") and static.get(size, {}).get("step_ms")
            }
            steps = int(result["setup"]["steps"])
        if not rows:
            raise BenchmarkError(
                f"{name} holds no step times of the arms no_spec and static; "
                "make it with: envelope --arms no_spec,static"
            )
        return cls(steps=steps, rows=rows, source=name)


_SHAPE = (
    "one NVIDIA H200 with SGLang 0.5.12.post1, 8B shape (32 layers, hidden 4096), bf16, EAGLE3 "
    "head, fa3 attention"
)
_MEASURED = f"{_SHAPE}: medians over results/h200-envelope*.json"
_NOT_KEPT = f"{_SHAPE}: a run whose file was not kept"
#: By number of draft steps (topk 1).
H200_8B: dict[int, BreakEvenTable] = {
    1: BreakEvenTable(1, {1: 1.55, 16: 1.52, 64: 1.53, 128: 1.58, 256: 1.68}, _NOT_KEPT),
    3: BreakEvenTable(3, {1: 1.41, 4: 1.46, 16: 1.45, 64: 1.70, 128: 2.33, 256: 2.80}, _MEASURED),
    7: BreakEvenTable(7, {1: 1.72, 16: 1.88, 64: 2.88, 256: 4.77}, _NOT_KEPT),
}


def thresholds(acceptance: float, table: BreakEvenTable, max_running: int) -> dict[str, Any]:
    """Configuration of the specswitch worker for a known acceptance length.

    - `running.enter` is the crossover, `running.resume` the batch size below which
      speculation gains at least 5 percent, but no less than half the crossover.
    - `waiting.enter` is the same number: a queue that long becomes a batch that
      large within a few steps.
    - `max_speculative_batch` is the first measured size at or above the crossover:
      up to there the marks decide with their hysteresis, beyond it the table
      leaves no doubt and no speculative graphs are needed.

    Args:
        acceptance: tokens per request and speculative step, at least 1.
        table: break-even acceptance lengths of this machine and model.
        max_running: the server's `max_running_requests`.
    """
    if not 1 <= acceptance < math.inf:
        raise BenchmarkError(f"acceptance length is at least 1, not {acceptance}")
    guard = {"dwell_steps": 32, "votes": 3, "max_switches_per_1000_steps": 20}
    crossing = table.crossover(acceptance)
    if crossing is None or crossing >= max_running:
        policy: dict[str, Any] = {
            "kind": "queue_depth",
            "waiting": {"enter": NEVER, "resume": 0},
            "running": None,
            "kv_use": None,
        }
        return {"policy": policy, "guard": guard, "max_speculative_batch": max_running}
    enter = max(1, math.ceil(crossing))
    # Where no batch size gains that much, half the crossover still keeps the marks apart.
    gain = table.crossover(acceptance / RESUME_GAIN) or 0.0
    resume = min(max(math.floor(gain), enter // 2), enter - 1)
    limit = next((size for size in sorted(table.rows) if size >= enter), max_running)
    policy = {
        "kind": "queue_depth",
        "waiting": {"enter": enter, "resume": enter // 4},
        "running": {"enter": enter, "resume": resume},
        "kv_use": None,
    }
    return {"policy": policy, "guard": guard, "max_speculative_batch": min(limit, max_running)}
