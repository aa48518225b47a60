"""The one exception that ends a demo with a message instead of a traceback."""

from __future__ import annotations


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why and, where there is one, what to change."""
