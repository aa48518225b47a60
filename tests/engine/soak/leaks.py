"""What a leak would leave behind in an engine that is idle again."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

#: What may be more at the end of the second half: at once, and for a thousand flips. Nothing of
#: ours grows with the flips, but a batch more or less is kept, and caches of Python and of the
#: allocator fill. One object kept for each request would be several hundred for a thousand flips.
_MAY_GROW = {"objects": (300, 50), "rss_mb": (8, 1), "files": (0, 0), "threads": (0, 0)}
_BATCHES_KEPT = 2


@dataclass(frozen=True)
class Reading:
    """Counted between two rounds, when nothing runs.

    Attributes:
        flips: changes of mode so far.
        slots: KV slots that are neither free nor in the prefix cache, of target and draft alike.
        rows: rows of the request table in use.
        held: requests that the scheduler still holds.
        results: steps whose result nobody has taken.
        alive: request objects in memory, beyond those of the two batches that the engine keeps
            until it has run others (managers/scheduler.py:2987).
        behind, pending: requests whose draft KV has a gap, and positions in these gaps.
        marks: step marks that wait for a result.
        objects: objects that the garbage collector knows, without those that `begin` has frozen.
        rss_mb: resident memory of the process.
        files, threads: open in the process.
    """

    flips: int
    slots: int
    rows: int
    held: int
    results: int
    alive: int
    behind: int
    pending: int
    marks: int
    objects: int
    rss_mb: float
    files: int
    threads: int


#: What must be 0 whenever nothing runs.
_NOTHING_LEFT = ("slots", "rows", "held", "results", "alive", "behind", "pending", "marks")


def begin() -> None:
    """The engine has started: what is there now is no leak, and need not be looked at again."""
    gc.collect()
    gc.freeze()


def read(driver: Any) -> Reading:
    """Count; the engine must be idle."""
    from sglang.srt.managers.schedule_batch import Req

    gc.collect()
    objects = gc.get_objects()
    alive = sum(type(one) is Req for one in objects)
    scheduler, worker = driver.scheduler, driver.worker
    process = psutil.Process()
    return Reading(
        flips=worker.controller.counters.switches,
        slots=driver.lost_slots,
        rows=scheduler.req_to_token_pool.size - scheduler.req_to_token_pool.available_size(),
        held=len(scheduler.waiting_queue)
        + len(scheduler.running_batch.reqs)
        + (scheduler.chunked_req is not None),
        results=len(scheduler.result_queue),
        alive=max(0, alive - _BATCHES_KEPT * driver.server_args.max_running_requests),
        behind=worker.sync.counts.behind,
        pending=worker.sync.counts.pending,
        marks=len(getattr(worker.timer, "_pending", ())),
        objects=len(objects),
        rss_mb=round(process.memory_info().rss / 1e6, 1),
        files=process.num_fds(),
        threads=process.num_threads(),
    )


def find_leaks(readings: Sequence[Reading]) -> list[str]:
    """What is left over at some idle time, and what grows from the middle of the soak to its end.

    Args:
        readings: in order; growth is looked for from four on.
    """
    leaks = [
        f"after {reading.flips} flips: {name} {value}, should be 0"
        for reading in readings
        for name, value in asdict(reading).items()
        if name in _NOTHING_LEFT and value
    ]
    if len(readings) < 4:
        return leaks
    middle, end = readings[len(readings) // 2], readings[-1]
    thousands = (end.flips - middle.flips) / 1000
    for name, (at_once, per_thousand) in _MAY_GROW.items():
        allowed = at_once + per_thousand * thousands
        before, after = getattr(middle, name), getattr(end, name)
        if after - before > allowed:
            leaks.append(
                f"{name}: {before} after {middle.flips} flips, {after} after {end.flips}; "
                f"{allowed:.0f} more may be"
            )
    return leaks
