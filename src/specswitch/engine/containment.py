"""Keeps failures of what only watches away from generation: logged once, counted, survived."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Containment:
    """Runs calls whose failure must not stop the server.

    For metrics and the like, whose absence changes no token. What a step itself raises is never
    contained: it goes the way of the engine's own exceptions.

    Attributes:
        errors: exceptions so far.
    """

    def __init__(self) -> None:
        self.errors = 0
        self._logged: set[str] = set()

    def run(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T | None:
        """``call(*args, **kwargs)``; an exception is counted, and the first of each call logged.

        Returns:
            What the call returned; None after an exception.
        """
        try:
            return call(*args, **kwargs)
        except Exception:
            self.errors += 1
            name = getattr(call, "__qualname__", repr(call))
            if name not in self._logged:
                self._logged.add(name)
                logger.exception(
                    "specswitch: %s failed; generation goes on, and its further failures are only "
                    "counted",
                    name,
                )
        return None
