"""The one exception that ends a benchmark with a single clear line, and what becomes one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BenchmarkError(Exception):
    """Something the person at the keyboard can change; its text says what."""


@contextmanager
def reading(file: str | Path) -> Iterator[None]:
    """While the numbers of a result file are read: what does not fit is the file's fault.

    Raises:
        BenchmarkError: naming the file and what is wrong with it.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise BenchmarkError(
            f"{file}: a value in it is missing or not of its kind ({type(error).__name__}: "
            f"{error}); was it changed by hand, or made by another version?"
        ) from error
