"""When the draft's KV is brought up to date: the three modes of ``draft_sync.mode``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from specswitch.engine import compat
from specswitch.engine.draft_sync import gap
from specswitch.engine.draft_sync.extend import DraftExtender, Proposal, Span
from specswitch.engine.draft_sync.flush_plan import FlushPlan
from specswitch.engine.draft_sync.gap import SyncCounts
from specswitch.engine.draft_sync.ring import HiddenRing
from specswitch.engine.errors import StartupRefusal

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ModelWorkerBatch
    from sglang.srt.managers.utils import GenerationBatchResult

#: Share of the free memory that the ring may take; the rest is for activations.
_MEMORY_SHARE = 0.8


class DraftSync:
    """Mode ``off``: nothing is kept, a resumed request drafts cold.

    A cold request is still exact: verification rejects what it drafts wrongly. It drafts with holes
    in its KV until it ends, so a cached prefix must end before the first hole: a later request, a
    next turn of a chat say, prefills the rest anew. ``deferred`` loses at most a window of it.
    """

    def __init__(self) -> None:
        self.counts = SyncCounts()

    def after_target_only(self, batch: ModelWorkerBatch, result: GenerationBatchResult) -> None:
        """A target-only step of ``batch`` was launched, on the current stream."""
        release = compat.release()
        lengths = batch.seq_lens_cpu.tolist()
        for request, length in zip(batch.reqs, lengths, strict=True):
            # One that has left before would keep its gap for ever.
            if not release.has_left(batch, request):
                gap.widen(request, length, self.counts)

    def before_speculative(self, batch: ModelWorkerBatch) -> None:
        """``batch`` is about to speculate. Its gaps stay: nothing will ever fill them.

        A request that comes back starts from token 0 and a zero state, which verification rejects.
        """
        if not self.counts.behind:
            return
        cold = []
        for index, request in enumerate(batch.reqs):
            pending = gap.find(request)
            if pending is not None and pending.cold:
                pending.cold = False
                cold.append(index)
        if cold:
            _clear(batch.spec_info, cold)

    @property
    def ring_bytes(self) -> int:
        """Memory of the ring, 0 without one."""
        return 0

    def describe(self) -> str:
        """For the start-up summary."""
        return "off; a request that resumes speculation drafts cold"

    def snapshot(self) -> dict[str, Any]:
        """For ``/server_info``."""
        return {**asdict(self.counts), "pending": self.counts.pending}


class DeferredSync(DraftSync):
    """Mode ``deferred``: missed positions wait in a ring and are filled many at a time.

    ``FlushPlan`` says which gaps are filled before they reach the window, a few requests every few
    steps, so that no step carries all of them. What is left is caught up with on the step that
    resumes.

    Args:
        worker: the engine's speculative worker.
        window: positions kept per request; at least 8.

    Raises:
        StartupRefusal: the ring does not fit; names the window that would.
    """

    def __init__(self, worker: Any, window: int) -> None:
        super().__init__()
        rows, width, dtype = _shape(worker)
        free_gb = compat.release().free_memory_gb(worker.target_worker.model_runner)
        _require_room(window, HiddenRing.bytes_per_position(rows, width, dtype), rows, free_gb)
        self._ring = HiddenRing(rows, window, width, dtype, worker.device)
        self._extender = DraftExtender(worker)
        self._plan = FlushPlan(window)

    def after_target_only(self, batch: ModelWorkerBatch, result: GenerationBatchResult) -> None:
        super().after_target_only(batch, result)
        _keep(self._ring, batch, result)
        gaps = [gap.find(request) for request in batch.reqs]
        chosen = self._plan.choose([pending.missed if pending else 0 for pending in gaps])
        if chosen:
            spans = [Span(index, gaps[index].synced, gaps[index].decoded) for index in chosen]
            self._extender.fill(batch, self._ring, spans)
            self.counts.flushed += sum(gaps[index].fill() for index in chosen)
            self.counts.flushes += 1

    def before_speculative(self, batch: ModelWorkerBatch) -> None:
        """Fill every gap of ``batch`` and put a fresh proposal into its draft input."""
        if not self.counts.behind:
            return
        missed, last = [], []
        for index, request in enumerate(batch.reqs):
            pending = gap.find(request)
            if pending is None:
                continue
            # The last position is forwarded in full, for its logits, also when its KV is there.
            end = pending.decoded
            if pending.synced < end - 1:
                missed.append(Span(index, pending.synced, end - 1))
            last.append(Span(index, end - 1, end))
            self.counts.caught_up += pending.fill()
            gap.close(request)
        if not last:
            return
        self._extender.fill(batch, self._ring, missed)
        proposal = self._extender.propose(batch, self._ring, last)
        _put(batch.spec_info, [span.index for span in last], proposal)
        self.counts.catch_ups += 1

    @property
    def ring_bytes(self) -> int:
        return self._ring.nbytes

    def describe(self) -> str:
        return f"deferred, window {self._ring.window}, ring {self.ring_bytes / 2**30:.3f} GB"

    def snapshot(self) -> dict[str, Any]:
        return {**super().snapshot(), "ring_gb": round(self.ring_bytes / 2**30, 4)}


class EveryStepSync(DraftSync):
    """Mode ``every_step``: the draft follows each target-only step, as the engine's own adaptive
    mode does; the measure for ``deferred``, and never cold.

    Args:
        worker: the engine's speculative worker.
    """

    def __init__(self, worker: Any) -> None:
        super().__init__()
        rows, width, dtype = _shape(worker)
        self._ring = HiddenRing(rows, 1, width, dtype, worker.device)
        self._extender = DraftExtender(worker)

    def after_target_only(self, batch: ModelWorkerBatch, result: GenerationBatchResult) -> None:
        _keep(self._ring, batch, result)
        lengths: Sequence[int] = batch.seq_lens_cpu.tolist()
        spans = [Span(index, length, length + 1) for index, length in enumerate(lengths)]
        proposal = self._extender.propose(batch, self._ring, spans)
        _put(result.next_draft_input, None, proposal)
        self.counts.flushes += 1
        self.counts.missed += len(spans)
        self.counts.flushed += len(spans)

    @property
    def ring_bytes(self) -> int:
        return self._ring.nbytes

    def describe(self) -> str:
        return "every_step: the draft follows each target-only step"


def needs_hidden(worker: Any, config: Any) -> bool:
    """Whether target-only steps must return the target's hidden states."""
    return config.mode != "off" and compat.release().draft_input_width(worker) is not None


def make_sync(worker: Any, config: Any) -> DraftSync:
    """The draft sync that ``config`` (``Config.draft_sync``) asks for.

    Raises:
        StartupRefusal: it cannot be had with these models or this memory.
    """
    if config.mode != "off" and compat.release().has_image_positions(worker):
        raise StartupRefusal(
            "the draft model places text after images at positions that draft sync does not "
            "reproduce: set draft_sync.mode to off"
        )
    if config.mode == "deferred":
        return DeferredSync(worker, config.window)
    if config.mode == "every_step":
        return EveryStepSync(worker)
    return DraftSync()


def _shape(worker: Any) -> tuple[int, int | None, torch.dtype]:
    """Of a ring for this worker: pool rows, width of the hidden states (None: none), dtype."""
    runner = worker.target_worker.model_runner
    return (
        runner.req_to_token_pool.req_to_token.shape[0],
        compat.release().draft_input_width(worker),
        runner.model_config.dtype,
    )


def _keep(ring: HiddenRing, batch: ModelWorkerBatch, result: GenerationBatchResult) -> None:
    """Write what a target-only step of ``batch`` leaves for the draft."""
    ring.write(
        batch.req_pool_indices,
        batch.seq_lens,
        result.next_token_ids,
        result.logits_output.hidden_states,
    )


def _require_room(window: int, per_position: int, rows: int, free_gb: float) -> None:
    """Refuse a ring that does not fit.

    Args:
        per_position: bytes of one position of all rows.
    """
    fits = int(free_gb * _MEMORY_SHARE * 2**30 // per_position)
    if window <= fits:
        return
    change = (
        f"set draft_sync.window to {fits} or less"
        if fits >= FlushPlan.SMALLEST_WINDOW
        else "set draft_sync.mode to off"
    )
    raise StartupRefusal(
        f"the draft-sync ring of {window} positions x {rows} requests takes "
        f"{window * per_position / 2**30:.2f} GB of {free_gb:.2f} GB free: {change}, "
        "or lower --mem-fraction-static or --max-running-requests"
    )


def _clear(draft_input: Any, indices: list[int]) -> None:
    """Overwrite what the future map holds for these requests, which is left from other steps."""
    where = torch.tensor(indices, device=draft_input.topk_index.device)
    for name in ("topk_p", "topk_index", "hidden_states"):
        kept = getattr(draft_input, name)
        if kept is not None:
            kept[where] = 0


def _put(draft_input: Any, indices: list[int] | None, proposal: Proposal) -> None:
    """Put a proposal for the requests at ``indices`` (None: all) into a draft input."""
    for name in ("topk_p", "topk_index", "hidden_states"):
        fresh = getattr(proposal, name)
        if fresh is None:
            continue
        if indices is None or len(indices) == len(draft_input.bonus_tokens):
            setattr(draft_input, name, fresh)
        else:
            kept = getattr(draft_input, name)
            kept[torch.tensor(indices, device=kept.device)] = fresh.to(kept.dtype)
