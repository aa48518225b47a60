"""What SGLang asks of torch unconditionally and a CPU build cannot do.

Two of the functions replaced here order work between CUDA streams or wait for it. On a CPU every
operation has finished when its call returns, so doing nothing is the exact equivalent. The third
makes a tensor in memory that a GPU can read; no values depend on that.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from specswitch.cpu import environment
from specswitch.cpu.errors import CpuEngineError


def refuse_cuda(forced: bool) -> None:
    """Makes sure that the engine will not find a GPU.

    Raises:
        CpuEngineError: CUDA is present and was not hidden, or can no longer be hidden.
    """
    if not torch.cuda.is_available():
        return
    if forced:
        raise CpuEngineError(
            "CUDA is already in use in this process: start it with CUDA_VISIBLE_DEVICES="
        )
    raise CpuEngineError(
        f"CUDA is present: unset {environment.ENABLE} to use it,"
        f" or set {environment.ENABLE}=force to hide it"
    )


def fill() -> None:
    """Replaces the torch functions that need CUDA with ones that return at once."""
    # overlap_utils.py:146 and eagle_worker_v2.py:975 keep a tensor alive for another stream; torch
    # has no CPU kernel.
    torch.Tensor.record_stream = _record_stream
    # set_embed() and set_embed_and_head() in models/llama*.py call it for any device that is not an
    # XPU.
    torch.cuda.synchronize = _synchronize
    # layers/logits_processor.py:542 pins whenever log-probabilities of a prompt are asked for;
    # elsewhere the engine looks first whether it can.
    if not getattr(torch.tensor, _PAGEABLE, False):
        torch.tensor = _pageable(torch.tensor)
    # The variable is read when torch._dynamo is first imported, which may have happened already.
    dynamo_config = sys.modules.get("torch._dynamo.config")
    if dynamo_config is not None:
        dynamo_config.disable = True


_PAGEABLE = "specswitch_pageable"


def _pageable(tensor: Any) -> Any:
    """``torch.tensor`` that takes ``pin_memory`` and makes an ordinary tensor."""

    @functools.wraps(tensor)
    def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return tensor(*args, **kwargs)

    setattr(make, _PAGEABLE, True)
    return make


def _record_stream(self: torch.Tensor, stream: object) -> None:
    return None


def _synchronize(device: object = None) -> None:
    return None
