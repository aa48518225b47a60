"""Hands out KV slots when the pool is divided into pages (mem_cache/allocator.py, in PyTorch).

A request's positions fill its last page first and then whole new pages; within a page slots are
consecutive. Lines cited are of SGLang 0.5.12.post1.
"""

from __future__ import annotations

import torch


def alloc_extend_kernel(
    pre_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    bs_upper: int,
    page_size: int,
) -> None:
    """Lists the slots of positions pre..seq-1 of each request, request after request.

    With too few free pages nothing is written: the allocator only finds out afterwards and then
    discards the output (allocator.py:453).

    Args:
        pre_lens: [bs] int, positions that have a slot already.
        seq_lens: [bs] int, positions that shall have one.
        last_loc: [bs] int, slot of the last position that has one.
        free_pages: [pages] int64, numbers of free pages, taken from the left.
        out_indices: [sum(seq_lens - pre_lens)] int64, written.
        bs_upper: the kernel's block size.
        page_size: slots in a page.
    """
    slots, taken = [], 0
    for pre, seq, last in zip(pre_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), strict=True):
        owned = -(-pre // page_size)
        in_owned_page = min(seq, owned * page_size) - pre
        slots.append(torch.arange(last + 1, last + 1 + in_owned_page))
        new = -(-seq // page_size) - owned
        pages = free_pages[taken : taken + new]
        if pages.numel() < new:
            return
        fresh = pages.view(-1, 1) * page_size + torch.arange(page_size)
        slots.append(fresh.view(-1)[: seq - pre - in_owned_page])
        taken += new
    out_indices.copy_(torch.cat(slots))


def alloc_decode_kernel(
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    free_pages: torch.Tensor,
    out_indices: torch.Tensor,
    bs_upper: int,
    page_size: int,
) -> None:
    """Lists the slot of one more position for each request.

    Args:
        seq_lens: [bs] int, length of each request, the new position included.
        last_loc: [bs] int, slot of the position before it.
        free_pages: as in `alloc_extend_kernel`.
        out_indices: [bs] int64, written.
        bs_upper: the kernel's block size.
        page_size: slots in a page.
    """
    alloc_extend_kernel(
        seq_lens - 1, seq_lens, last_loc, free_pages, out_indices, bs_upper, page_size
    )
