"""The PyTorch kernels of `specswitch.cpu` and sgl_kernel do the same on random chains and trees.

Importing the kernels does not install the CPU engine, which would refuse to load beside CUDA.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from specswitch.cpu import golden, kernels  # noqa: E402
from specswitch.cpu.random_tree import random_tree_case  # noqa: E402

SEEDS = range(100, 120)

pytestmark = pytest.mark.gpu


def _both(shape: golden.Shape) -> tuple[dict[str, Any], dict[str, Any]]:
    case = random_tree_case(shape.seed, shape.bs, shape.topk, shape.depth, shape.n)
    ours = golden.run_kernels(case, shape.topk, shape.depth, kernels, "cpu")
    sgl_kernel = importlib.import_module("sgl_kernel")
    theirs = golden.run_kernels(case, shape.topk, shape.depth, sgl_kernel, "cuda")
    return ours, theirs


@pytest.mark.parametrize("shape", golden.SHAPES, ids=lambda shape: shape.name)
def test_outputs_equal_those_of_sgl_kernel(shape: golden.Shape) -> None:
    differences = []
    for seed in SEEDS:
        ours, theirs = _both(replace(shape, seed=seed))
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            # Integers and masks exactly; probabilities up to the order of a sum.
            if not torch.allclose(ours[name].double(), tensor.double(), rtol=1e-5, atol=1e-6):
                differences.append(f"seed {seed}: {name}")
    assert differences == []
