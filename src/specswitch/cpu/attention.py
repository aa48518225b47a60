"""Attention in PyTorch that also understands the two batch shapes of speculation.

SGLang's ``torch_native`` back end computes plain prefill and decode. Verification needs a mask per
request (the tree), and each draft step needs its own KV length: the draft model runs several
single-token steps on one batch whose ``seq_lens`` do not advance
(speculative/eagle_worker_v2.py:447 in SGLang 0.5.12.post1).

Requests are computed one at a time, on purpose. Attention of a request then never depends on which
others are in the batch, so greedy output can be compared token by token between runs that batch
differently. The page size does not matter: the request table lists a slot for every position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What one request attends to in one forward pass, the same for every layer.

    Attributes:
        rows: its rows among the queries of the batch.
        slots: [kv_len] int64, KV slot of each position it may see.
        mask: [len(rows), kv_len] bool, True where a row sees a position; None when every row sees
            all of them.
    """

    rows: slice
    slots: torch.Tensor
    mask: torch.Tensor | None


class CpuAttnBackend(TorchNativeAttnBackend):
    """The ``torch_native`` back end with target-verify and draft steps.

    Args:
        model_runner: the runner whose layers this serves.
        draft_step: number of the draft step this instance serves; None for a target or draft-extend
            pass. In step i a request sees i + 1 positions more than its ``seq_lens``.
    """

    def __init__(self, model_runner: ModelRunner, draft_step: int | None = None) -> None:
        super().__init__(model_runner)
        self._positions_ahead = 0 if draft_step is None else draft_step + 1
        self._planned_for: ForwardBatch | None = None
        self._plan: list[RequestPlan] = []

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        # Only forgets: a batch may still change between this call and the first layer.
        self._planned_for = None

    def update_verify_buffers_to_fill_after_draft(
        self, spec_info: object, cuda_graph_bs: int | None
    ) -> None:
        # There are no such buffers: the mask is read from spec_info when the plan is made.
        return None

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """Attention of a prefill, draft-extend or target-verify batch.

        Args:
            q: [rows, heads * head_dim].
            k: [rows, kv_heads, head_dim], written to the KV pool first.
            v: like `k`.

        Returns:
            [rows, heads * v_head_dim].
        """
        if layer.is_cross_attention or layer.attn_type == AttentionType.ENCODER_ONLY:
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
    ) -> torch.Tensor:
        """Attention of a batch with one row per request: plain decode or a draft step.

        Shapes as in `forward_extend`.
        """
        if layer.is_cross_attention:
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)
        return self._forward(q, k, v, layer, forward_batch, save_kv_cache)

    def _forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool,
    ) -> torch.Tensor:
        _refuse_unsupported(layer)
        pool = forward_batch.token_to_kv_pool
        if save_kv_cache:
            pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = q.new_empty(q.shape[0], layer.tp_q_head_num, layer.v_head_dim)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        grouped = layer.tp_q_head_num != layer.tp_k_head_num
        for request in self._plan_of(forward_batch):
            out[request.rows] = _attend(
                q[request.rows],
                # Several times as fast as indexing, which is most of a small model's attention.
                keys.index_select(0, request.slots),
                values.index_select(0, request.slots),
                request.mask,
                layer.scaling,
                grouped,
            )
        return out.view(-1, layer.tp_q_head_num * layer.v_head_dim)

    def _plan_of(self, forward_batch: ForwardBatch) -> list[RequestPlan]:
        if self._planned_for is not forward_batch:
            self._plan = self._make_plan(forward_batch)
            self._planned_for = forward_batch
        return self._plan

    def _make_plan(self, forward_batch: ForwardBatch) -> list[RequestPlan]:
        seq_lens = forward_batch.seq_lens.tolist()
        mode = forward_batch.forward_mode
        if mode.is_target_verify():
            nodes = forward_batch.spec_info.draft_token_num
            query_lens = [nodes] * len(seq_lens)
            kv_lens = [length + nodes for length in seq_lens]
            masks = _split_tree_mask(forward_batch.spec_info.custom_mask, nodes, kv_lens)
        elif mode.is_decode():
            query_lens = [1] * len(seq_lens)
            kv_lens = [length + self._positions_ahead for length in seq_lens]
            masks = [None] * len(seq_lens)
        else:
            query_lens = forward_batch.extend_seq_lens.tolist()
            kv_lens = seq_lens
            masks = [_causal_mask(n, kv) for n, kv in zip(query_lens, kv_lens, strict=True)]
        table = forward_batch.req_to_token_pool.req_to_token
        plan, row = [], 0
        for request, n, kv_len, mask in zip(
            forward_batch.req_pool_indices.tolist(), query_lens, kv_lens, masks, strict=True
        ):
            plan.append(RequestPlan(slice(row, row + n), table[request, :kv_len].long(), mask))
            row += n
        return plan


class CpuMultiStepDraftBackend:
    """One `CpuAttnBackend` per draft step, in the shape that EagleDraftWorker expects.

    Args:
        model_runner: the draft model's runner.
        topk: beam width; only chains are supported.
        speculative_num_steps: draft steps.

    Raises:
        NotImplementedError: `topk` is above 1: sibling branches would share KV slots in this
            layout.
    """

    def __init__(self, model_runner: ModelRunner, topk: int, speculative_num_steps: int) -> None:
        if topk != 1:
            raise NotImplementedError(
                "the CPU engine drafts chains only: set --speculative-eagle-topk 1"
            )
        self.attn_backends = [
            CpuAttnBackend(model_runner, step) for step in range(speculative_num_steps)
        ]

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    grouped: bool,
) -> torch.Tensor:
    """Attention of one request.

    Args:
        q: [rows, heads, head_dim].
        k: [kv_len, kv_heads, head_dim].
        v: [kv_len, kv_heads, v_head_dim].
        mask: [rows, kv_len] bool or None.

    Returns:
        [rows, heads, v_head_dim].
    """
    out = scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.transpose(0, 1).unsqueeze(0).to(q.dtype),
        v.transpose(0, 1).unsqueeze(0).to(q.dtype),
        attn_mask=mask,
        scale=scale,
        enable_gqa=grouped,
    )
    return out.squeeze(0).transpose(0, 1)


def _causal_mask(rows: int, kv_len: int) -> torch.Tensor | None:
    """[rows, kv_len] bool: the rows are the last positions, each sees those up to its own."""
    if rows == 1:
        return None
    return torch.ones(rows, kv_len, dtype=torch.bool).tril(kv_len - rows)


def _split_tree_mask(flat: torch.Tensor, nodes: int, kv_lens: list[int]) -> list[torch.Tensor]:
    """Cuts the engine's flat mask (FULL_MASK layout) into one [nodes, kv_len] mask each."""
    masks, offset = [], 0
    for kv_len in kv_lens:
        masks.append(flat[offset : offset + nodes * kv_len].view(nodes, kv_len))
        offset += nodes * kv_len
    return masks


def _refuse_unsupported(layer: RadixAttention) -> None:
    if layer.sliding_window_size is not None and layer.sliding_window_size > -1:
        raise NotImplementedError(
            "the CPU engine has no sliding-window attention: use a model without it"
        )
    if layer.logit_cap > 0:
        raise NotImplementedError(
            "the CPU engine has no attention logit cap: use a model without it"
        )
