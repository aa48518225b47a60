"""Ratios between two cells of a result, from measurements made in turns where there are any.

The speed of a machine drifts by a few percent within minutes. Two measurements of one turn are
seconds apart, so that the drift cancels in their ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.stats import median_or_none


def ratio(one: Mapping[str, Any], other: Mapping[str, Any], key: str) -> float | None:
    """`key` of `one` over that of `other`.

    The median, over the turns that both have in their `repeats`, of the ratio in each; where there
    is no such turn, the ratio of the cells' own values or medians. None when one side has no value.
    """
    ours, theirs = _measured(one, key), _measured(other, key)
    pairs = [
        mine[key] / its[key]
        for mine in ours
        for its in theirs
        if mine.get("turn") is not None and mine["turn"] == its.get("turn")
    ]
    if pairs:
        return median_or_none(pairs, digits=4)
    above, below = _middle(one, key), _middle(other, key)
    return round(above / below, 4) if above is not None and below else None


def _measured(cell: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [repeat for repeat in cell.get("repeats", []) if repeat.get(key)]


def _middle(cell: Mapping[str, Any], key: str) -> float | None:
    if key in cell:
        value: float | None = cell[key]
        return value
    return median_or_none((one[key] for one in _measured(cell, key)), digits=6)
