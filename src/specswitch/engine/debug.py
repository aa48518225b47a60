"""Checks that cost a device sync each step, for ``SPECSWITCH_DEBUG=1``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specswitch.engine.errors import MirrorMismatch, RingMismatch, SlotMismatch

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import ModelWorkerBatch

    from specswitch.engine.draft_sync.extend import Span

VARIABLE = "SPECSWITCH_DEBUG"

#: Tokens of a request that the device has and the host does not, after a target-only step.
_IN_FLIGHT = 2


def debug_enabled() -> bool:
    """Whether ``SPECSWITCH_DEBUG`` is 1."""
    return os.environ.get(VARIABLE) == "1"


def check_mirror(batch: ModelWorkerBatch) -> None:
    """Compare the host's sequence lengths with the device's and with those the last step stored.

    Args:
        batch: decode batch after the engine resolved its draft input
            (managers/overlap_utils.py:120).

    Raises:
        MirrorMismatch: they differ; a target-only step would read and write wrong KV slots.
    """
    host = batch.seq_lens_cpu.tolist()
    for name, lengths in (
        ("device", batch.seq_lens),
        ("last step", batch.spec_info.new_seq_lens),
    ):
        if (found := lengths.tolist()) != host:
            raise MirrorMismatch(f"sequence lengths: host {host}, {name} {found}")
    if batch.seq_lens_sum != sum(host):
        raise MirrorMismatch(f"sum of sequence lengths: {batch.seq_lens_sum}, of {host}")


def check_slots(batch: ModelWorkerBatch, table: torch.Tensor, width: int) -> None:
    """Check the KV slots that a decode step is about to write.

    The scheduler allocates ahead of what it knows to be accepted
    (speculative/eagle_info_v2.py:125). A length that runs away from it would write to slots of
    others, which shows only as wrong text.

    Args:
        batch: decode batch of b requests with exact host lengths, see ``check_mirror``.
        table: [rows, context] int32, the engine's ``req_to_token``: slot of each position.
        width: positions that the step writes for each request, from its length on.

    Raises:
        SlotMismatch: a position has no slot, or two positions have the same.
    """
    slots: list[int] = []
    lengths, rows = batch.seq_lens_cpu.tolist(), batch.req_pool_indices.tolist()
    for request, length, row in zip(batch.reqs, lengths, rows, strict=True):
        committed, allocated = request.kv_committed_len, request.kv_allocated_len
        if not committed <= allocated >= length + width:
            raise SlotMismatch(
                f"request {request.rid}: {allocated} slots allocated, {committed} committed; the "
                f"step writes positions {length} to {length + width - 1}"
            )
        slots += table[row, length : length + width].tolist()
    # Slot 0 takes what padding writes, and is what an unwritten entry holds.
    if min(slots) < 1 or len(set(slots)) < len(slots):
        raise SlotMismatch(f"the step writes the slots {slots}, {width} for each request")


def check_missed_tokens(
    requests: Sequence[Any], spans: Sequence[Span], tokens: torch.Tensor
) -> None:
    """Compare the tokens that the ring kept for missed positions with those that were emitted.

    Draft position p is fed with the token at p + 1. A wrong row, an overwritten slot or a shifted
    position shows here. The last two tokens of each request are not on the host yet: results are
    processed one step behind, after the next step was launched (managers/scheduler.py:1594).

    Args:
        requests: one per span.
        tokens: [positions of all spans] int64, as they go into the draft.

    Raises:
        RingMismatch: they differ; the draft's KV would be wrong.
    """
    kept = tokens.tolist()
    for request, span in zip(requests, spans, strict=True):
        mine, kept = kept[: span.end - span.start], kept[span.end - span.start :]
        known = [*request.origin_input_ids, *request.output_ids][span.start + 1 : span.end + 1]
        if mine[: len(known)] != known or len(known) < len(mine) - _IN_FLIGHT:
            raise RingMismatch(
                f"request {request.rid}, positions {span.start} to {span.end - 1}: kept the tokens "
                f"{mine}, emitted {known}"
            )
