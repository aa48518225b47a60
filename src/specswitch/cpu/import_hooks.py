"""Runs functions just before or just after named modules are imported.

SGLang binds its kernels by ``from ... import name``, so a replacement must be in place after the
defining module ran and before the next module copies the name. Import time is the only moment with
that property.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType


class ImportHooks(importlib.abc.MetaPathFinder):
    """Finds nothing itself: asks the other finders and wraps the execution of the modules it is
    told about.

    Args:
        before: module name -> function called before that module runs.
        after: module name -> function called with the module after it ran.
    """

    def __init__(
        self,
        before: Mapping[str, Callable[[], None]] | None = None,
        after: Mapping[str, Callable[[ModuleType], None]] | None = None,
    ) -> None:
        self._before = dict(before or {})
        self._after = dict(after or {})

    def activate(self) -> None:
        """Puts this finder ahead of those that find a module without running its functions."""
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        before, after = self._before.get(fullname), self._after.get(fullname)
        if before is None and after is None:
            return None
        spec = self._find_elsewhere(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if before is not None:
                before()
            run(module)
            if after is not None:
                after(module)

        # On the instance rather than in a wrapping loader: a loader belongs to one module, and
        # readers of ``__spec__.loader`` (importlib.resources, inspect) must keep the type they
        # know.
        spec.loader.exec_module = exec_module
        return spec

    def _find_elsewhere(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        # Hooks of other instances stay in play: each wraps what the next one found.
        position = sys.meta_path.index(self)
        for finder in sys.meta_path[position + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None
