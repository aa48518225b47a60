"""Rows of the page: what one request can ask for."""

from __future__ import annotations

from .verdicts import Row

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Decoding": (Row("greedy", "Greedy", "`temperature` 0"),),
}
