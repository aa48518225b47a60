"""Checks that cost a device sync each step, for ``SPECSWITCH_DEBUG=1``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from specswitch.engine.errors import MirrorMismatch

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ModelWorkerBatch

VARIABLE = "SPECSWITCH_DEBUG"


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
