"""How far the draft's KV is behind, kept on the request itself.

The state lives on the engine's request object and not in a table by pool row: a row is given to
another request as soon as its own has finished, and a stale entry would speak for the wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from specswitch.engine import compat

_ATTRIBUTE = "specswitch_draft_gap"


@dataclass
class SyncCounts:
    """Totals since start-up, in positions unless said otherwise.

    Each position that a target-only step decodes for a request counts as missed, and in the end
    once as flushed, caught up or discarded; until then it is pending.

    Attributes:
        missed: decoded without the draft.
        flushed: written to the draft's KV while the target decoded alone.
        caught_up: written on the step before speculation resumed.
        discarded: never written; the request finished or was retracted before, or nothing is kept
            (mode ``off``).
        truncated_prefixes: finished requests (a count of these) whose prefix went into the prefix
            cache without the positions that the draft had missed.
        flushes, catch_ups: how many times it was done.
        behind: requests with a gap now (a count of these); tells at once that there is none.
    """

    missed: int = 0
    flushed: int = 0
    caught_up: int = 0
    discarded: int = 0
    truncated_prefixes: int = 0
    flushes: int = 0
    catch_ups: int = 0
    behind: int = 0

    @property
    def pending(self) -> int:
        """Positions that the draft is behind with now, over all requests."""
        return self.missed - self.flushed - self.caught_up - self.discarded


@dataclass
class Gap:
    """The unsynced end of one request.

    Attributes:
        synced: the draft's KV is complete for positions below this.
        decoded: the target's KV is complete for positions below this.
        missed: positions in between that the draft has missed. All of them, except in mode ``off``,
            where speculative steps fill some and leave the holes before them.
        counts: where a discarded gap is counted.
        cold: nothing has been drafted since, so the next draft has no proposal to start from.
    """

    synced: int
    decoded: int
    missed: int
    counts: SyncCounts = field(repr=False)
    cold: bool = True

    def fill(self) -> int:
        """The missed positions are being written; returns how many they are."""
        filled, self.missed = self.missed, 0
        self.synced = self.decoded
        return filled


def find(request: Any) -> Gap | None:
    """The request's gap, None when its draft KV is complete."""
    return getattr(request, _ATTRIBUTE, None)


def widen(request: Any, length: int, counts: SyncCounts) -> Gap:
    """One more position decoded without the draft.

    Args:
        length: tokens in the target's KV before this step, which decodes position ``length``.
    """
    gap = find(request)
    if gap is None:
        gap = Gap(length, length, 0, counts)
        setattr(request, _ATTRIBUTE, gap)
        counts.behind += 1
    gap.decoded = length + 1
    gap.missed += 1
    counts.missed += 1
    gap.cold = True
    return gap


def close(request: Any) -> None:
    """The draft's KV is complete again, or nobody will need it."""
    gap = find(request)
    if gap is not None:
        gap.counts.behind -= 1
        delattr(request, _ATTRIBUTE)


def leave(request: Any, tree_cache: Any, is_insert: bool = True) -> None:
    """BEFORE ``release_kv_cache``: a request finishes, or is retracted and will be computed anew.

    Every request leaves a decode batch through here (managers/schedule_batch.py:2253,
    managers/scheduler_output_processor_mixin.py:657), so none is prefilled with a gap.

    Only the synced part of a finished request may be cached. A prefix in the radix cache is used
    with the draft's KV of its slots, so a hit on unsynced positions would draft from whatever lies
    there. The engine inserts the first ``kv_committed_len`` tokens and frees the rest as
    over-allocated (mem_cache/common.py:580-610), which is also how it trims what speculation has
    allocated too much.
    """
    gap = find(request)
    if gap is None:
        return
    if is_insert:
        cacheable = compat.release().tokens_to_cache(tree_cache, gap.synced)
        if cacheable is not None and request.kv_committed_len > cacheable:
            request.kv_committed_len = cacheable
            gap.counts.truncated_prefixes += 1
    gap.counts.discarded += gap.missed
    close(request)
