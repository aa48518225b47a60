"""Empty modules for packages that SGLang imports at load time and does not call on a CPU.

``sgl_kernel`` holds CUDA code and its wheel does not import without a CUDA driver. ``torchvision``
is needed only for images, and its wheel must match torch exactly. Importing a name from a stub
works; calling it raises.
"""

from __future__ import annotations

import enum
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

# Modules of sgl_kernel that SGLang imports outside try/except. Others stay absent, so that code
# which asks whether an optional kernel is there gets the right answer.
_SGL_KERNEL = frozenset({"sgl_kernel", "sgl_kernel.kvcacheio", "sgl_kernel.speculative"})
_TORCHVISION = "torchvision"


class _StubModule(ModuleType):
    # A package without a place on disk: its submodules are found by the finder below, or not.
    __path__ = ()

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)
        qualified = f"{self.__name__}.{name}"

        def missing(*args: object, **kwargs: object) -> object:
            raise NotImplementedError(
                f"{qualified} needs a GPU: the CPU engine of specswitch does not provide it"
            )

        missing.__name__ = missing.__qualname__ = name
        return missing


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, with_torchvision: bool) -> None:
        self._with_torchvision = with_torchvision

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in _SGL_KERNEL or (
            self._with_torchvision and fullname.partition(".")[0] == _TORCHVISION
        ):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == _TORCHVISION:
            module.__version__ = "0.0"
        if module.__name__ == "torchvision.transforms":
            # Image processors of transformers read its members when they are defined.
            members = "NEAREST NEAREST_EXACT BILINEAR BICUBIC BOX HAMMING LANCZOS"
            module.InterpolationMode = enum.Enum("InterpolationMode", members)


def activate() -> None:
    """Makes the stubs importable; a ``torchvision`` that is installed is left alone."""
    absent = importlib.util.find_spec(_TORCHVISION) is None
    sys.meta_path.insert(0, _StubFinder(with_torchvision=absent))
