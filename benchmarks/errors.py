"""The one exception that ends a benchmark with a single clear line."""

from __future__ import annotations


class BenchmarkError(Exception):
    """Something the person at the keyboard can change; its text says what."""
