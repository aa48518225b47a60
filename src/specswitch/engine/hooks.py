"""Registers the hooks on the engine and proves that each one is in place.

SGLang only logs a plug-in or a hook that failed (plugins/__init__.py:134,
plugins/hook_registry.py:166), so a server would run on without it. Every process that depends on
a hook therefore looks for its own function in the wrapper chain of the target.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from specswitch.engine.errors import HookNotApplied


@dataclass(frozen=True)
class Hook:
    """One function of ours on one function of the engine.

    Attributes:
        target: dotted path of the engine's function.
        function: ours; its signature depends on ``kind`` (plugins/hook_registry.py:94).
        kind: name of the engine's ``HookType``: BEFORE, AFTER, AROUND or REPLACE.
    """

    target: str
    function: Callable[..., Any]
    kind: str

    def register(self) -> None:
        """Hand the hook to the engine's registry, which applies it after all plug-ins have run."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(self.target, self.function, HookType[self.kind])

    def is_applied(self) -> bool:
        """Whether the target, as it is now, runs our function."""
        current = self._current()
        return any(self.function is held for held in _held_functions(current))

    def engine_function(self) -> FunctionType | None:
        """The engine's own function under all wrappers; None where there is no such target."""
        current = self._current()
        function = inspect.unwrap(getattr(current, "__func__", current)) if current else None
        return function if isinstance(function, FunctionType) else None

    def _current(self) -> Any:
        """What stands at the target now; None where there is nothing."""
        owner_path, _, name = self.target.rpartition(".")
        try:
            return getattr(pkgutil.resolve_name(owner_path), name)
        except (ImportError, AttributeError):
            return None


def verify(hooks: Iterable[Hook]) -> None:
    """Check that every hook is applied in this process.

    Raises:
        HookNotApplied: names the targets without our hook.
    """
    missing = [hook.target for hook in hooks if not hook.is_applied()]
    if missing:
        raise HookNotApplied(
            f"not hooked in this process: {', '.join(missing)}; another plug-in may have replaced "
            "it: set SGLANG_PLUGINS=specswitch to load no other, or drop --speculative-worker"
        )


def _held_functions(wrapper: Any) -> Iterator[Any]:
    """The functions that a chain of the registry's wrappers closes over, outermost first.

    The registry's wrappers keep the wrapped function in ``__wrapped__``
    (plugins/hook_registry.py:345).
    """
    link = getattr(wrapper, "__func__", wrapper)
    while isinstance(link, FunctionType):
        for cell in link.__closure__ or ():
            yield cell.cell_contents
        link = getattr(link, "__wrapped__", None)
