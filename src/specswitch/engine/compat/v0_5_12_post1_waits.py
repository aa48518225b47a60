"""SGLang 0.5.12.post1: where its scheduler waits for a verification, and where it has to.

Reached as ``compat.release().waits``. Line numbers are those of the released wheel, relative to
``sglang/srt/``.

How many tokens a verification accepts is known when it has run, and with it the sequence lengths
that the next step starts from. The engine waits for them as soon as it turns to the running batch
(managers/schedule_batch.py:2415, speculative/eagle_info_v2.py:97), and so prepares a step only
when the device has nothing left to verify. The preparation itself does not need the lengths:
slots are allocated from what the host knows (speculative/eagle_info_v2.py:127).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ModelWorkerBatch, ScheduleBatch
    from sglang.srt.speculative.eagle_info import EagleDraftInput

_LATE = "specswitch_waits_late"
_LENGTHS_DUE = "specswitch_lengths_due"


def read_lengths_late() -> None:
    """Let the scheduler prepare and decide a decode step while the one before it is verified.

    It then waits once, where the batch is handed to the worker. On the device the preparation
    alone, which allocates KV slots and writes them to the request table, is no longer ordered after
    the verification. It touches nothing that one reads: table columns from ``kv_allocated_len`` on,
    and slots that are free. After it the schedule stream waits for the verification.

    Replaces three functions of the engine. To be called once a process, before the first batch;
    further calls do nothing.
    """
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.speculative.eagle_info_v2 import EagleDraftInputV2Mixin

    filter_now = ScheduleBatch.filter_batch
    prepare = EagleDraftInputV2Mixin.prepare_for_decode
    hand_over = ScheduleBatch.get_model_worker_batch
    if hasattr(filter_now, _LATE):
        return

    def filter_batch(
        self: ScheduleBatch,
        chunked_req_to_exclude: Any = None,
        keep_indices: list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Without a wait where every request stays, which is where the engine's own version ends
        when it has waited (managers/schedule_batch.py:2435)."""
        excludes = chunked_req_to_exclude or keep_indices is not None
        if excludes or not _can_postpone(self) or any(r.finished() for r in self.reqs):
            filter_now(self, chunked_req_to_exclude, keep_indices, **kwargs)

    def prepare_for_decode(self: EagleDraftInput, batch: ScheduleBatch) -> None:
        """The engine's own, shown the host's old lengths in place of those that are being computed,
        and no verification to wait for."""
        if not _can_postpone(batch):
            prepare(self, batch)
            return
        verification, self.verify_done = self.verify_done, None
        try:
            with host_lengths_shown(batch):
                prepare(self, batch)
        finally:
            self.verify_done = verification
        # Not before: the preparation copies to the device, and each copy waits for this stream.
        verification.wait()
        setattr(batch, _LENGTHS_DUE, True)

    def get_model_worker_batch(self: ScheduleBatch, *args: Any, **kwargs: Any) -> ModelWorkerBatch:
        """With the lengths on the host; this is where the scheduler waits."""
        if vars(self).pop(_LENGTHS_DUE, False):
            self.seq_lens_cpu = self.seq_lens.cpu()
            self.seq_lens_sum = self.seq_lens_cpu.sum().item()
        return hand_over(self, *args, **kwargs)

    setattr(filter_batch, _LATE, True)
    ScheduleBatch.filter_batch = filter_batch
    EagleDraftInputV2Mixin.prepare_for_decode = prepare_for_decode
    ScheduleBatch.get_model_worker_batch = get_model_worker_batch


@contextmanager
def host_lengths_shown(batch: ScheduleBatch) -> Iterator[None]:
    """While ``prepare_for_decode`` runs, ``batch.seq_lens`` is the host's own tensor.

    The engine reads the lengths at one place there, to copy them to the host
    (speculative/eagle_info_v2.py:174), and that copy waits for the device. Of a tensor of the host
    it is free.
    """
    device_lengths = batch.seq_lens
    batch.seq_lens = batch.seq_lens_cpu
    try:
        yield
    finally:
        batch.seq_lens = device_lengths


def _can_postpone(batch: ScheduleBatch) -> bool:
    """Whether a verification makes this batch's lengths (managers/schedule_batch.py:2400), and the
    preparation touches nothing that it may still read.

    With penalties the emitted tokens are counted there (speculative/eagle_info_v2.py:100), with
    sliding windows KV slots are taken back (managers/schedule_batch.py:2655).
    """
    return (
        batch.is_spec_v2
        and getattr(batch.spec_info, "verify_done", None) is not None
        and not batch.sampling_info.penalizer_orchestrator.is_required
        and not batch.tree_cache.supports_swa()
    )
