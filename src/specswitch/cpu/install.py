"""Puts the CPU engine in place: the order of the steps is the content of this file."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping

from specswitch.cpu import environment
from specswitch.cpu.errors import CpuEngineError
from specswitch.cpu.sglang_bindings import BINDINGS, Binding

_installed = False


def is_installed() -> bool:
    """Whether `install` has run in this process."""
    return _installed


def install(force: bool = False) -> None:
    """Prepares this process, and the children it will start, to run SGLang on the CPU.

    Must run before ``sglang`` is imported. Calling it again does nothing.

    Args:
        force: hide the GPUs of this machine from the process instead of refusing where there are
            some.

    Raises:
        CpuEngineError: CUDA is present and `force` is False; ``sglang`` is already imported or is a
            release without bindings here; a variable contradicts the request.
    """
    global _installed
    if _installed:
        return
    if "sglang" in sys.modules and not _being_imported("sglang"):
        raise CpuEngineError("the CPU engine must be installed before sglang is imported")
    bindings = _bindings_for_installed_sglang()
    environment.prepare(force)
    # From here on torch is needed; its import is slow, so nothing above may depend on it.
    from specswitch.cpu import stubs, torch_gaps
    from specswitch.cpu.import_hooks import ImportHooks

    torch_gaps.refuse_cuda(forced=force)
    torch_gaps.fill()
    stubs.activate()
    ImportHooks(after=bindings).activate()
    _installed = True


def _being_imported(name: str) -> bool:
    spec = sys.modules[name].__spec__
    return bool(getattr(spec, "_initializing", False))


def _bindings_for_installed_sglang() -> Mapping[str, Binding]:

    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        raise CpuEngineError("sglang is not installed: pip install 'specswitch[engine]'") from None
    if version not in BINDINGS:
        raise CpuEngineError(
            f"no CPU kernels for sglang {version}: install one of {', '.join(BINDINGS)}"
        )
    return BINDINGS[version]
