"""One kernel for a ring write, where plain indexing takes five.

A target-only step at batch size 1 waits for every kernel on its stream, so their number shows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def _write(
    ring_tokens,
    ring_hidden,
    rows,
    positions,
    tokens,
    hidden,
    hidden_stride,
    window,
    width,
    BLOCK: tl.constexpr,
):
    request, block = tl.program_id(0), tl.program_id(1)
    place = tl.load(rows + request) * window + tl.load(positions + request) % window
    if block == 0:
        tl.store(ring_tokens + place, tl.load(tokens + request).to(tl.int64))
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < width
    values = tl.load(hidden + request * hidden_stride + offsets, mask=inside)
    tl.store(ring_hidden + place * width + offsets, values, mask=inside)


def write_ring(
    ring_tokens: torch.Tensor,
    ring_hidden: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    hidden: torch.Tensor,
) -> None:
    """Write one position per request; see ``HiddenRing.write``.

    Args:
        ring_tokens: [rows, window] int64.
        ring_hidden: [rows, window, width], contiguous.
        rows: [b] int64.
        positions: [b] int64.
        tokens: [b] integers.
        hidden: [b, width], each row contiguous.
    """
    window, width = ring_hidden.shape[1:]
    grid = (len(rows), triton.cdiv(width, _BLOCK))
    _write[grid](
        ring_tokens,
        ring_hidden,
        rows,
        positions,
        tokens,
        hidden,
        hidden.stride(0),
        window,
        width,
        BLOCK=_BLOCK,
    )
