"""Marks on the engine's requests, and how many of a batch bear one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RequestMark:
    """A mark that a request keeps until it ends, retracted or not.

    Batches are looked through only once a mark has been put, so that a server without such
    requests pays nothing per step.

    Args:
        name: attribute of the engine's request that stands for the mark.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._ever_put = False

    def put(self, request: Any) -> None:
        """Mark a request; once is enough."""
        setattr(request, self._name, True)
        self._ever_put = True

    def is_on(self, request: Any) -> bool:
        """Whether a request bears the mark."""
        return self._name in vars(request)

    def count(self, requests: Sequence[Any]) -> int:
        """How many of these requests bear the mark."""
        if not self._ever_put:
            return 0
        return sum(self._name in vars(request) for request in requests)
