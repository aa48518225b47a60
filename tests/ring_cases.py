"""Writes random positions into a ring by the kernel and by indexing, and compares.

python ring_cases.py DEVICE WIDTH
"""

from __future__ import annotations

import sys

import torch

from specswitch.engine.draft_sync.ring_kernel import write_ring

ROWS, WINDOW, REQUESTS = 8, 16, 5


def compare(device: str, width: int, dtype: torch.dtype = torch.float32) -> None:
    """Raise AssertionError where the kernel wrote something else, or somewhere else."""
    generator = torch.Generator().manual_seed(width)
    rows = torch.randperm(ROWS, generator=generator)[:REQUESTS].to(device)
    positions = torch.randint(0, 5 * WINDOW, (REQUESTS,), generator=generator).to(device)
    tokens = torch.randint(0, 1000, (REQUESTS,), generator=generator, dtype=torch.int32).to(device)
    # A padded graph output: more rows than requests.
    hidden = torch.randn(REQUESTS + 3, width, generator=generator).to(device, dtype)[:REQUESTS]
    ring_tokens = torch.full((ROWS, WINDOW), -1, device=device)
    ring_hidden = torch.full((ROWS, WINDOW, width), -1.0, device=device, dtype=dtype)
    right_tokens, right_hidden = ring_tokens.clone(), ring_hidden.clone()
    right_tokens[rows, positions % WINDOW] = tokens.long()
    right_hidden[rows, positions % WINDOW] = hidden

    write_ring(ring_tokens, ring_hidden, rows, positions, tokens, hidden)

    assert torch.equal(ring_tokens, right_tokens)
    assert torch.equal(ring_hidden, right_hidden)


if __name__ == "__main__":
    compare(sys.argv[1], int(sys.argv[2]))
