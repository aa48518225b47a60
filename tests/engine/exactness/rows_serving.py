"""Rows of the page: sampling, and how requests are served."""

from __future__ import annotations

from .verdicts import Row

SECTIONS: dict[str, tuple[Row, ...]] = {}
