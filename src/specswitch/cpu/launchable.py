"""Gives a function the calling form of a Triton kernel."""

from __future__ import annotations

from collections.abc import Callable


class Launchable:
    """Lets ``kernel[grid](...)`` call a plain function once.

    The grid, one program per request, has no meaning here: the function covers the batch.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._function
