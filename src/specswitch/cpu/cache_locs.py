"""The small Triton kernels of speculative decoding in PyTorch: slot lists and the request table.

Each function has the arguments of the kernel it stands for (SGLang 0.5.12.post1:
speculative/eagle_info_v2.py and speculative/spec_utils.py) and writes the same memory.
``req_to_token`` is [requests, context] int32: the KV slot of each position of each request.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch


def assign_draft_cache_locs_page_size_1(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Reads the slots of the next ``topk * speculative_num_steps`` positions of each request.

    Args:
        req_pool_indices: [bs] int, row of each request in the table.
        req_to_token: the table.
        seq_lens: [bs] int, first position to read.
        out_cache_loc: [bs * topk * speculative_num_steps] int64, written.
        pool_len: width of the table.
        topk: beam width.
        speculative_num_steps: draft steps.
    """
    count = topk * speculative_num_steps
    positions = seq_lens.view(-1, 1) + torch.arange(count)
    out_cache_loc.copy_(req_to_token[req_pool_indices.view(-1, 1), positions].view(-1))


def assign_extend_cache_locs(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    bs_upper: int,
) -> None:
    """Reads the slots of positions start..end-1 of each request, request after request.

    Args:
        req_pool_indices: [bs] int, row of each request in the table.
        req_to_token: the table.
        start_offset: [bs] int, first position.
        end_offset: [bs] int, one past the last position.
        out_cache_loc: flat int64, written from the left; what lies beyond is left alone.
        pool_len: width of the table.
        bs_upper: the kernel's block size.
    """
    for request, positions, run in _runs(req_pool_indices, start_offset, end_offset):
        out_cache_loc[run] = req_to_token[request, positions].to(out_cache_loc.dtype)


def assign_req_to_token_pool(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    bs_upper: int,
) -> None:
    """Writes a flat list of slots to positions start..end-1 of each request: the inverse of
    `assign_extend_cache_locs`.

    Args:
        req_pool_indices: [bs] int, row of each request in the table.
        req_to_token: the table, written.
        start_offset: [bs] int, first position.
        end_offset: [bs] int, one past the last position.
        out_cache_loc: flat int64, read from the left.
        pool_len: width of the table.
        bs_upper: the kernel's block size.
    """
    for request, positions, run in _runs(req_pool_indices, start_offset, end_offset):
        req_to_token[request, positions] = out_cache_loc[run].to(req_to_token.dtype)


def fill_bonus_tokens(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    num_draft_tokens: int,
) -> None:
    """Picks each request's last accepted token, from which the next draft starts.

    Args:
        accept_tokens: [bs, num_draft_tokens] int32 in row-major order, accepted tokens from the
            left.
        accept_lens: [bs] int32, accepted tokens, at least 1.
        bonus_tokens: [bs] int32, written.
        num_draft_tokens: row length of `accept_tokens`.
    """
    last = torch.arange(accept_lens.numel()) * num_draft_tokens + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.reshape(-1)[last])


def fill_accepted_out_cache_loc(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accepted_out_cache_loc: torch.Tensor,
    size_upper: int,
) -> None:
    """Compacts the slots of accepted nodes to the left.

    Args:
        accept_index: flat int, index into `out_cache_loc` of each accepted node, -1 for a gap.
        out_cache_loc: flat int64, slot of every verified node.
        accepted_out_cache_loc: flat int64, written from the left; what lies beyond is left alone.
        size_upper: the kernel's block size.
    """
    flat = accept_index.reshape(-1)
    slots = out_cache_loc[flat[flat >= 0].long()]
    accepted_out_cache_loc[: slots.numel()] = slots


def _runs(
    req_pool_indices: torch.Tensor, start_offset: torch.Tensor, end_offset: torch.Tensor
) -> Iterator[tuple[int, slice, slice]]:
    """Yields (row of the table, its positions, their place in the flat list) for each request."""
    at = 0
    for request, start, end in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        yield request, slice(start, end), slice(at, at + end - start)
        at += end - start
