"""Memory of CUDA graphs before any is captured: an estimate from what was measured.

Measured with an 8B Llama shape (vocabulary 128256) and 3 draft steps on one H200, SGLang
0.5.12.post1: verify graphs up to 128 requests (512 tokens) took 0.76 GiB, up to 256 (1024 tokens)
1.44 GiB. That is a constant and an amount for each token of the largest graph, mostly logits, so it
is scaled by the vocabulary. Target-only graphs up to 256 tokens come out as 0.42 GiB by this and
took 0.36.
"""

from __future__ import annotations

_FIXED_GIB = 0.08
_BYTES_PER_TOKEN_AND_WORD = 11.1

BASIS = (
    "scaled by vocabulary and tokens from an 8B shape on one H200, where it was within a fifth; "
    "the start-up log tells what it is"
)


def graphs_gib(tokens: int, vocabulary: int) -> float:
    """Memory of one set of CUDA graphs of the target.

    Args:
        tokens: of the largest graph: requests, for verification times the draft tokens.
        vocabulary: size of the target's.
    """
    return _FIXED_GIB + tokens * vocabulary * _BYTES_PER_TOKEN_AND_WORD / 2**30
