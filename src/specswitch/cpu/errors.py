"""The one exception of this package, apart so that every module can raise it."""

from __future__ import annotations


class CpuEngineError(RuntimeError):
    """The CPU engine cannot work as asked; the message is one line that says what to change."""
