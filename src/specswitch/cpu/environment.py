"""Reads the variables of the CPU engine and sets those that SGLang, torch and Triton need for it.

Everything a user would otherwise have to know is set here, before ``sglang`` is imported, so that
``SPECSWITCH_CPU=1`` is the only thing to remember. Variables pass to child processes by themselves.
"""

from __future__ import annotations

import os
import sys

from specswitch.cpu.errors import CpuEngineError

ENABLE = "SPECSWITCH_CPU"
TRITON = "SPECSWITCH_CPU_TRITON"

_OFF = ("", "0")


def requested() -> str | None:
    """Returns ``"1"`` or ``"force"`` when the environment asks for the CPU engine, else None.

    Raises:
        CpuEngineError: the variable holds anything but ``0``, ``1`` or ``force``.
    """
    value = os.environ.get(ENABLE, "").strip().lower()
    if value in _OFF:
        return None
    if value in ("1", "force"):
        return value
    raise CpuEngineError(f"{ENABLE}={os.environ[ENABLE]} is not understood: use 1, force or 0")


def triton_interpreted() -> bool:
    """Whether SGLang's Triton kernels run in Triton's interpreter instead of being replaced.

    Raises:
        CpuEngineError: the variable holds anything but ``0`` or ``1``.
    """
    value = os.environ.get(TRITON, "").strip()
    if value not in (*_OFF, "1"):
        raise CpuEngineError(f"{TRITON}={value} is not understood: use 1 or 0")
    return value == "1"


def prepare(force: bool) -> None:
    """Sets the variables that must be in place before ``sglang`` (and, for some, ``triton``) is
    imported.

    Variables a user has set are kept, except where another value cannot work.

    Raises:
        CpuEngineError: the interpreter is asked for but ``triton`` is already imported without it.
    """
    os.environ[ENABLE] = "force" if force else "1"
    # is_cpu() reads it once, at import (utils/common.py:181).
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    # move_kv_cache() otherwise launches a Triton kernel that takes raw pointers
    # (mem_cache/memory_pool.py:1087).
    os.environ["SGLANG_NATIVE_MOVE_KV_CACHE"] = "1"
    # select_top_k_tokens() and others are under torch.compile, whose CPU back end needs a C++
    # compiler at run time.
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    # Several processes share few cores, and a tiny model has no matrix worth splitting.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if triton_interpreted():
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise CpuEngineError(
                f"{TRITON}=1 came after triton was imported: set TRITON_INTERPRET=1 as well"
            )
        os.environ["TRITON_INTERPRET"] = "1"
    if force:
        # Read by the driver when CUDA is first touched, which is why the check for CUDA comes after
        # this.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
