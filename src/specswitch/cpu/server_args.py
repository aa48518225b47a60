"""Fills in the server arguments that a CPU needs and refuses those that cannot work on one.

Left alone, SGLang 0.5.12.post1 picks the ``intel_amx`` attention back end on a CPU, falls back from
it only after it has decided to capture CUDA graphs, runs a float32 checkpoint in float16 and sizes
the KV pool to most of the machine's memory.
"""

from __future__ import annotations

import logging
from typing import Any

from specswitch.cpu.errors import CpuEngineError

logger = logging.getLogger(__name__)

# Room for 16 requests of 4096 tokens; a pool sized to the memory would take seconds to fill.
MAX_TOTAL_TOKENS = 65536

_ATTENTION = "torch_native"

# Argument -> (value that means "not said", what to set).
_DEFAULTS: dict[str, tuple[object, object]] = {
    "device": (None, "cpu"),
    "attention_backend": (None, _ATTENTION),
    # Half precision is slower than float32 on most CPUs, and greedy output must not hang on it.
    "dtype": ("auto", "float32"),
    "max_total_tokens": (None, MAX_TOTAL_TOKENS),
    # The engine would set aside several GB for activations, CUDA graphs and a draft model
    # (server_args.py:1541) and not start on a machine that has no more than that.
    "mem_fraction_static": (None, 0.8),
}

# Argument -> the one value, besides None, with which the engine can start.
_ONLY: dict[str, object] = {
    "device": "cpu",
    "attention_backend": _ATTENTION,
    "prefill_attention_backend": _ATTENTION,
    "decode_attention_backend": _ATTENTION,
    "speculative_draft_attention_backend": _ATTENTION,
}

_ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE")


def fill_defaults(server_args: Any) -> None:
    """Sets what was not said on a ServerArgs whose own defaults have not been worked out yet.

    Raises:
        CpuEngineError: another device or attention back end was asked for.
    """
    for name, value in _ONLY.items():
        current = getattr(server_args, name)
        if current not in (None, value):
            flag = _flag(name)
            raise CpuEngineError(
                f"{flag} {current} does not work on the CPU engine: drop it, or use {flag} {value}"
            )
    chosen = []
    for name, (unsaid, value) in _DEFAULTS.items():
        if getattr(server_args, name) == unsaid:
            setattr(server_args, name, value)
            chosen.append(f"{name}={value}")
    if chosen:
        logger.info("specswitch CPU engine: %s", ", ".join(chosen))


def refuse_unsupported(server_args: Any) -> None:
    """Checks the speculative arguments of a complete ServerArgs.

    Raises:
        CpuEngineError: the algorithm, the beam width or the lack of overlap needs kernels that are
            not here.
    """
    algorithm = server_args.speculative_algorithm
    if algorithm is None:
        return
    if algorithm not in _ALGORITHMS:
        raise CpuEngineError(
            f"--speculative-algorithm {algorithm} has no CPU kernels:"
            f" use one of {', '.join(_ALGORITHMS)}"
        )
    if server_args.speculative_eagle_topk != 1:
        raise CpuEngineError(
            f"--speculative-eagle-topk is {server_args.speculative_eagle_topk}: the CPU engine"
            " drafts chains, set it to 1 together with --speculative-num-steps"
            " and --speculative-num-draft-tokens"
        )
    if server_args.disable_overlap_schedule:
        raise CpuEngineError(
            "--disable-overlap-schedule selects a speculative worker without CPU kernels: drop it"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
