"""top_k after top_p on the GPU's kernels leaves what both leave: the verification's repaired order.

The engine itself runs them the other way round. In this order top_k meets rows in which fewer than
k tokens are left.
"""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

VOCABULARY = 32_000
TOP_K_ALL = 1 << 30


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("top_k", [1, 2, 20, 1000, VOCABULARY, TOP_K_ALL])
def test_tokens_left_are_those_that_both_filters_leave(top_k: int, top_p: float) -> None:
    kernels = importlib.import_module("sgl_kernel")
    logits = 4 * torch.randn(64, VOCABULARY, generator=torch.Generator().manual_seed(1))
    probabilities = torch.softmax(logits.cuda(), dim=-1)
    top_ks = torch.full((64,), top_k, dtype=torch.int32, device="cuda")
    top_ps = torch.full((64,), top_p, device="cuda")

    left = kernels.top_k_renorm_prob(kernels.top_p_renorm_prob(probabilities, top_ps), top_ks)

    descending, order = probabilities.double().sort(dim=-1, descending=True)
    before = descending.cumsum(dim=-1) - descending
    rank = torch.arange(VOCABULARY, device="cuda")
    kept = descending * ((rank < top_k) & (before <= top_p))
    expected = torch.zeros_like(kept).scatter_(1, order, kept / kept.sum(dim=-1, keepdim=True))
    # One token at the edge may fall to either side by rounding; it carries next to nothing.
    assert (left.double() - expected).abs().sum(dim=-1).max() < 2e-3
    assert torch.allclose(left.sum(dim=-1), torch.ones(64, device="cuda"), atol=1e-4)
