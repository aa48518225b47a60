"""Random inputs for the speculative kernels, and what a set of kernels makes of them.

The kernels of this package were written from the semantics of ``sgl_kernel``. To hold the two
against each other, record a file of inputs and outputs with ``sgl_kernel`` on a GPU::

    python -m specswitch.cpu.golden record --kernels sgl_kernel --device cuda --out FILE

and compare it with this package on any machine::

    python -m specswitch.cpu.golden check FILE

Inputs depend on the seed alone, so both sides can also be run from nothing.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specswitch.cpu.random_tree import random_tree_case
from specswitch.cpu.tree import FULL_MASK, QLEN_ONLY

Tensors = dict[str, torch.Tensor]

_CPU_KERNELS = "specswitch.cpu.kernels"


@dataclass(frozen=True)
class Shape:
    """Arguments of `random_tree_case`."""

    seed: int
    bs: int
    topk: int
    depth: int
    n: int

    @property
    def name(self) -> str:
        return f"seed{self.seed}-bs{self.bs}-topk{self.topk}-depth{self.depth}-n{self.n}"


# Chains as specswitch uses them, one-step drafts, and trees from narrow to as wide as SGLang's own
# defaults (5 steps, 4 branches, 8 tokens). A recording of them is a file in the repository, so they
# are few; the GPU tests run the same shapes with more seeds.
SHAPES = tuple(
    Shape(seed, bs, topk, depth, n)
    for bs, topk, depth, n in (
        (1, 1, 1, 2),
        (5, 1, 3, 4),
        (8, 1, 7, 8),
        (4, 2, 3, 6),
        (8, 4, 5, 8),
        (3, 8, 4, 32),
        (4, 3, 1, 4),
    )
    for seed in range(1)
)


def run_kernels(case: Tensors, topk: int, depth: int, kernels: Any, device: str) -> Tensors:
    """Runs tree building, both verifications and both renormalisations on one case.

    Args:
        case: see `random_tree_case`.
        topk: beam width.
        depth: draft steps.
        kernels: module with the five functions, ``sgl_kernel`` or `specswitch.cpu.kernels`.
        device: where the kernels run.

    Returns:
        Every tensor the kernels wrote, on the CPU.
    """
    case = {name: tensor.to(device) for name, tensor in case.items()}
    out: Tensors = {}
    for mode, label in ((FULL_MASK, "full"), (QLEN_ONLY, "qlen")):
        out |= {f"{label}.{k}": v for k, v in _build(case, topk, depth, kernels, mode).items()}
    links = {
        "retrive_index": out["full.retrive_index"],
        "retrive_next_token": out["full.retrive_next_token"],
        "retrive_next_sibling": out["full.retrive_next_sibling"],
    }
    out |= {f"greedy.{k}": v for k, v in _verify_greedy(case, depth, kernels, links).items()}
    out |= {f"sampling.{k}": v for k, v in _verify_sampling(case, depth, kernels, links).items()}
    flat = case["target_probs"].flatten(0, 1)
    out["top_k"] = kernels.top_k_renorm_prob(flat, case["top_k"])
    out["top_p"] = kernels.top_p_renorm_prob(flat, case["top_p"])
    return {name: tensor.cpu() for name, tensor in out.items()}


def _build(case: Tensors, topk: int, depth: int, kernels: Any, mode: int) -> Tensors:
    seq_lens = case["seq_lens"]
    bs, n = case["candidates"].shape
    before = int(seq_lens.sum()) if mode == FULL_MASK else 0
    device = seq_lens.device
    links = {
        name: torch.full((bs, n), -1, dtype=torch.int64, device=device)
        for name in ("retrive_index", "retrive_next_token", "retrive_next_sibling")
    }
    mask = torch.ones(before * n + bs * n * n, dtype=torch.bool, device=device)
    positions = torch.empty(bs * n, dtype=torch.int64, device=device)
    kernels.build_tree_kernel_efficient(
        case["parent_list"],
        case["selected_index"],
        seq_lens,
        mask,
        positions,
        *links.values(),
        topk,
        depth,
        n,
        mode,
    )
    return {"tree_mask": mask, "positions": positions, **links}


def _verify_greedy(case: Tensors, depth: int, kernels: Any, links: Tensors) -> Tensors:
    out = _verify_outputs(case, depth)
    kernels.verify_tree_greedy(
        **out, candidates=case["candidates"], **links, target_predict=case["target_predict"]
    )
    return out


def _verify_sampling(case: Tensors, depth: int, kernels: Any, links: Tensors) -> Tensors:
    out = _verify_outputs(case, depth)
    draft_probs = torch.zeros_like(case["target_probs"])
    kernels.tree_speculative_sampling_target_only(
        **out,
        candidates=case["candidates"],
        **links,
        uniform_samples=case["uniform_samples"],
        uniform_samples_for_final_sampling=case["uniform_samples_for_final_sampling"],
        target_probs=case["target_probs"],
        draft_probs=draft_probs,
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
    )
    return {**out, "draft_probs": draft_probs}


def _verify_outputs(case: Tensors, depth: int) -> Tensors:
    bs, n = case["candidates"].shape
    device = case["candidates"].device
    return {
        "predicts": torch.zeros(bs * n, dtype=torch.int32, device=device),
        "accept_index": torch.full((bs, depth + 1), -1, dtype=torch.int32, device=device),
        "accept_token_num": torch.zeros(bs, dtype=torch.int32, device=device),
    }


def record(path: Path, kernels: str, device: str) -> None:
    """Runs all shapes and writes inputs and outputs to one safetensors file."""
    from safetensors.torch import save_file

    module = importlib.import_module(kernels)
    tensors: Tensors = {}
    for shape in SHAPES:
        case = random_tree_case(shape.seed, shape.bs, shape.topk, shape.depth, shape.n)
        out = run_kernels(case, shape.topk, shape.depth, module, device)
        tensors |= {f"{shape.name}/in/{name}": tensor for name, tensor in case.items()}
        tensors |= {f"{shape.name}/out/{name}": tensor for name, tensor in out.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, path, _origin(kernels, device))


def differences(path: Path) -> list[str]:
    """Runs this package on the inputs of a recorded file and names each output that differs.

    Integers and masks must be equal; probabilities may differ by rounding.
    """
    from safetensors.torch import load_file

    from specswitch.cpu import kernels

    recorded, found = load_file(path), []
    for shape in SHAPES:
        inputs = _under(recorded, f"{shape.name}/in/")
        expected = _under(recorded, f"{shape.name}/out/")
        if not expected:
            found.append(f"{shape.name}: not in the file")
            continue
        actual = run_kernels(inputs, shape.topk, shape.depth, kernels, "cpu")
        for name, tensor in expected.items():
            if not torch.allclose(actual[name].double(), tensor.double(), rtol=1e-5, atol=1e-6):
                found.append(f"{shape.name}: {name}")
    return found


def _under(tensors: Tensors, prefix: str) -> Tensors:
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def _origin(kernels: str, device: str) -> dict[str, str]:
    distribution = {"sgl_kernel": "sglang-kernel"}.get(kernels, "specswitch")
    return {
        "kernels": f"{distribution} {importlib.metadata.version(distribution)}",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m specswitch.cpu.golden", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="run kernels and write inputs and outputs")
    recorder.add_argument("--kernels", choices=("sgl_kernel", _CPU_KERNELS), default=_CPU_KERNELS)
    recorder.add_argument("--device", default="cpu")
    recorder.add_argument("--out", type=Path, required=True)
    checker = commands.add_parser("check", help="compare a recorded file with this package")
    checker.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "record":
        record(options.out, options.kernels, options.device)
        return 0
    found = differences(options.file)
    for line in found:
        print(line)
    print(f"{options.file}: {len(SHAPES)} cases, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
