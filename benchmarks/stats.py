"""Small statistics that every result file is made of.

They live in one place so that "spread" and "p95" mean the same in every
benchmark and in every table.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import numpy as np

QUANTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0}


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p95 and p99 of `values` (linear interpolation), or None when there are none."""
    if not values:
        return None
    points = np.percentile(np.asarray(values, dtype=float), list(QUANTILES.values()))
    return {name: round(float(value), 3) for name, value in zip(QUANTILES, points, strict=True)}


def spread(values: Sequence[float]) -> float | None:
    """(max - min) / median, the repeatability shown beside every number.

    None for fewer than two values: one measurement has no spread, and 0 would
    read as "perfectly repeatable".
    """
    if len(values) < 2:
        return None
    middle = statistics.median(values)
    return round((max(values) - min(values)) / middle, 4) if middle else None


def median_or_none(values: Iterable[float | None], digits: int = 3) -> float | None:
    """Median of the values that are there; None when none is."""
    present = [value for value in values if value is not None]
    return round(statistics.median(present), digits) if present else None


def median_percentiles(
    groups: Iterable[dict[str, float] | None],
) -> dict[str, float] | None:
    """Median of each percentile over several passes (percentiles cannot be pooled)."""
    present = [group for group in groups if group]
    if not present:
        return None
    return {
        name: round(statistics.median(group[name] for group in present), 3) for name in QUANTILES
    }
