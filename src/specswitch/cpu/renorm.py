"""Top-k and top-p renormalisation of probabilities, in place of ``sgl_kernel.top_k_renorm_prob``
and ``top_p_renorm_prob``.

Called by speculative/eagle_info_v2.py:419 in SGLang 0.5.12.post1, top-k first. Where SGLang samples
without speculation on a CPU it uses its own PyTorch code for the same two cuts, and the results
here match it.
"""

from __future__ import annotations

import torch


def top_k_renorm_prob(probs: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """Keeps the `top_k` most probable tokens of each row, and those tied with the last of them.

    Args:
        probs: [rows, vocabulary] float32, each row summing to 1.
        top_k: [rows] int, at least 1; larger than the vocabulary keeps everything.

    Returns:
        [rows, vocabulary] float32, each row summing to 1.
    """
    k = top_k.clamp(max=probs.shape[-1]).long().view(-1, 1)
    least = probs.sort(dim=-1, descending=True).values.gather(1, k - 1)
    return _renormalise(probs.masked_fill(probs < least, 0.0))


def top_p_renorm_prob(probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keeps the shortest run of most probable tokens of each row that reaches `top_p`.

    Args:
        probs: [rows, vocabulary] float32, each row summing to 1.
        top_p: [rows] float32 in (0, 1].

    Returns:
        [rows, vocabulary] float32, each row summing to 1.
    """
    descending, order = probs.sort(dim=-1, descending=True)
    before = descending.cumsum(dim=-1) - descending
    limit = top_p.view(-1, 1)
    # Rounding takes the running sum past 1; without a limit no token may fall to that.
    kept = descending.masked_fill((before > limit) & (limit < 1), 0.0)
    return _renormalise(torch.zeros_like(probs).scatter_(1, order, kept))


def _renormalise(probs: torch.Tensor) -> torch.Tensor:
    return probs / probs.sum(dim=-1, keepdim=True)
