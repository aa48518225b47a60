"""Ragged draft-extend: fills the draft's KV for missed positions of several requests at once.

The recipe is the engine's own draft prefill (speculative/eagle_worker_v2.py:504): an EXTEND batch
whose input ids are the tokens that followed, with the target's hidden states beside them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from specswitch.engine import compat
from specswitch.engine.debug import check_missed_tokens, debug_enabled

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ModelWorkerBatch

    from specswitch.engine.draft_sync.ring import HiddenRing

_release = compat.release()
_engine = _release.types()


class Span(NamedTuple):
    """Positions ``start`` to ``end`` - 1 of the request at ``index`` in its batch."""

    index: int
    start: int
    end: int


@dataclass
class Proposal:
    """What the draft proposes next, for the requests that were asked.

    Attributes:
        topk_p: [n, topk] float32 probabilities.
        topk_index: [n, topk] int64 token ids in the draft's vocabulary.
        hidden_states: [n, draft hidden] the draft's own; None for a draft that takes none.
    """

    topk_p: torch.Tensor
    topk_index: torch.Tensor
    hidden_states: torch.Tensor | None


class DraftExtender:
    """Runs the draft model over positions whose inputs are in the ring.

    Args:
        worker: the engine's speculative worker, draft model loaded.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._runner = worker.draft_worker.draft_runner
        self._kv_only = _KvOnly.for_runner(self._runner)
        self._debug = debug_enabled()

    def fill(self, batch: ModelWorkerBatch, ring: HiddenRing, spans: Sequence[Span]) -> None:
        """Write the draft's KV of ``spans``; nothing is proposed.

        Where the draft's KV pool is a plain one the forward ends as soon as the last layer's keys
        and values are written: what comes after (attention, MLP, LM head) only serves a proposal.
        """
        if not spans:
            return
        with self._measured("fill", spans):
            step = self._extend_batch(batch, ring, spans)
            if self._kv_only is None:
                self._forward(step)
                return
            with _release.draft_context(self._worker):
                self._kv_only.run(_release.forward_batch(step, self._runner))

    def propose(self, batch: ModelWorkerBatch, ring: HiddenRing, spans: Sequence[Span]) -> Proposal:
        """Write the draft's KV of ``spans`` and return what the draft proposes after each."""
        with self._measured("propose", spans):
            logits_output = self._forward(self._extend_batch(batch, ring, spans))
            probabilities = torch.softmax(logits_output.next_token_logits, dim=-1)
            topk_p, topk_index = _engine.fast_topk(probabilities, self._worker.topk, dim=-1)
        return Proposal(topk_p, topk_index, logits_output.hidden_states)

    def _measured(self, name: str, spans: Sequence[Span]) -> AbstractContextManager[None]:
        return self._worker.timer.part(name, sum(span.end - span.start for span in spans))

    def _forward(self, step: ModelWorkerBatch) -> Any:
        with _release.draft_context(self._worker):
            forward_batch = _release.forward_batch(step, self._runner)
            forward_batch.return_logprob = False
            return self._runner.forward(forward_batch).logits_output

    def _extend_batch(
        self, batch: ModelWorkerBatch, ring: HiddenRing, spans: Sequence[Span]
    ) -> ModelWorkerBatch:
        requests = [batch.reqs[span.index] for span in spans]
        starts = [span.start for span in spans]
        ends = np.array([span.end for span in spans])
        lengths = ends - starts
        total = int(lengths.sum())
        rows = np.array([request.req_pool_idx for request in requests])
        # Position of each flat element: its offset in its span, plus the span's start.
        first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        positions = np.arange(total) - first + np.repeat(starts, lengths)
        flat = torch.from_numpy(np.stack([np.repeat(rows, lengths), positions]))
        per_request = torch.from_numpy(np.stack([rows, ends]))
        flat_rows, flat_positions = _to_device(flat, batch.seq_lens.device)
        pool_rows, seq_lens = _to_device(per_request, batch.seq_lens.device)
        tokens, hidden = ring.read(flat_rows, flat_positions)
        if self._debug:
            check_missed_tokens(requests, spans, tokens)

        step = copy.copy(batch)
        step.reqs = requests
        step.lora_ids = [None] * len(requests)
        # What decode has produced is text; the rest is left on the batch from the prefill.
        step.multimodal_inputs = [None] * len(requests)
        step.replace_embeds = step.replace_positions = step.token_type_ids = None
        step.forward_mode = _engine.ForwardMode.EXTEND
        step.capture_hidden_mode = (
            _engine.CaptureHiddenMode.NULL
            if self._runner.spec_algorithm.is_standalone()
            else _engine.CaptureHiddenMode.LAST
        )
        step.return_logprob = False
        step.input_ids = tokens
        step.req_pool_indices = pool_rows
        step.out_cache_loc = self._runner.req_to_token_pool.req_to_token[
            flat_rows, flat_positions
        ].long()
        step.seq_lens = step.orig_seq_lens = seq_lens
        step.seq_lens_cpu = per_request[1]
        step.seq_lens_sum = int(ends.sum())
        step.extend_num_tokens = total
        step.extend_prefix_lens = starts
        step.extend_seq_lens = lengths.tolist()
        step.extend_logprob_start_lens = None
        step.spec_info = _engine.EagleDraftInput(
            hidden_states=hidden,
            num_tokens_per_req=1,
            num_tokens_for_logprob_per_req=1,
        )
        return step


class _KvOnly:
    """Attention backend that ends a forward once the last layer's keys and values are written.

    A draft layer writes its keys and values through its attention backend, so this is where the end
    of the useful part shows, whatever the model. Earlier layers attend as usual.
    """

    def __init__(self, runner: Any, last_layer: int, first_layer: int) -> None:
        self._runner = runner
        self._last_layer = last_layer
        self._attends = last_layer != first_layer

    @classmethod
    def for_runner(cls, runner: Any) -> _KvOnly | None:
        """None where keys and values are not written by a plain ``set_kv_buffer`` (MLA drafts)."""
        if not _release.has_plain_kv_pool(runner):
            return None
        layers = _release.attention_layers(runner.model)
        return cls(runner, max(layers), min(layers))

    def run(self, forward_batch: Any) -> None:
        """Forward ``forward_batch`` up to the last write."""
        if self._attends:
            self._runner.attn_backend.init_forward_metadata(forward_batch)
        forward_batch.attn_backend = self
        try:
            self._runner.model.forward(
                forward_batch.input_ids, forward_batch.positions, forward_batch
            )
        except _Written:
            return
        raise RuntimeError("the draft model did not reach its last attention layer")

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The engine's attention interface (layers/attention/base_attn_backend.py:73)."""
        if layer.layer_id != self._last_layer:
            return self._runner.attn_backend.forward(
                q, k, v, layer, forward_batch, save_kv_cache, **kwargs
            )
        if save_kv_cache:
            forward_batch.token_to_kv_pool.set_kv_buffer(
                layer, forward_batch.out_cache_loc, k, v, layer.k_scale, layer.v_scale
            )
        raise _Written


class _Written(Exception):
    """Ends a forward from within; never leaves this module."""


def _to_device(pair: torch.Tensor, device: torch.device) -> torch.Tensor:
    """[2, n] int64 to the device, without waiting for it."""
    if device.type == "cuda":
        pair = pair.pin_memory()
    return pair.to(device, non_blocking=True)
