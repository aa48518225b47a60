"""Fills in the server arguments that a CPU needs, so that a user does not have to know them.

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

# Argument -> (values that mean "not said", what to set).
_DEFAULTS: dict[str, tuple[tuple[object, ...], object]] = {
    "device": ((None,), "cpu"),
    "attention_backend": ((None,), "torch_native"),
    # Half precision is slower than float32 on most CPUs, and greedy output must not hang on it.
    "dtype": (("auto",), "float32"),
    "max_total_tokens": ((None,), MAX_TOTAL_TOKENS),
}

# Arguments for which only one value works.
_REQUIRED = ("device", "attention_backend")


def fill(server_args: Any) -> None:
    """Sets what was not said on a ServerArgs whose own defaults have not been worked out yet.

    Raises:
        CpuEngineError: another device or attention back end was asked for.
    """
    chosen = []
    for name, (unsaid, value) in _DEFAULTS.items():
        current = getattr(server_args, name)
        if current in unsaid:
            setattr(server_args, name, value)
            chosen.append(f"{name}={value}")
        elif name in _REQUIRED and current != value:
            flag = name.replace("_", "-")
            raise CpuEngineError(
                f"--{flag} {current} does not work on the CPU engine:"
                f" drop it, or set --{flag} {value}"
            )
    if chosen:
        logger.info("specswitch CPU engine: %s", ", ".join(chosen))
