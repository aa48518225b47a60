"""The ring's kernel, compiled."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("width", [64, 1500, 3 * 4096])
def test_the_kernel_writes_what_indexing_writes(device: str, width: int) -> None:
    if device != "cuda":
        pytest.skip("tests/engine/test_ring_kernel.py runs it in the interpreter")
    import torch
    from tests.ring_cases import compare

    compare(device, width, torch.bfloat16)
