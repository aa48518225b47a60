"""The tables of a `resume` result, from its single measurements."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.resume import off_cost
from benchmarks.resume.part import MODES, REPEATS


def summarise(data: Mapping[str, Any]) -> dict[str, Any]:
    """The top-level tables, from the single measurements.

    `acceptance` holds acceptance lengths over the first ``MEASURED`` speculative steps by mode and
    stretch, and `never_off`, the mean over what these were compared with; `resume_ratio` each of
    them over its own comparison. `off_cost` is decode throughput over that of mode `off`, medians
    over repeats; `catch_up` and `flush` are by concurrency.
    """
    arms: Mapping[str, Any] = data["arms"]
    cells = {arm: {point: cell[REPEATS] for point, cell in arms[arm].items()} for arm in arms}
    acceptance: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    references = []
    for mode in MODES:
        for stretch, repeats in cells.get(f"acceptance_{mode}", {}).items():
            value = repeats[-1]
            acceptance.setdefault(mode, {})[stretch] = value["acceptance_length"]
            ratios.setdefault(mode, {})[stretch] = value["ratio"]
            references.append(value["never_off"])
    summary: dict[str, Any] = {"acceptance_length": data["setup"]["acceptance"]}
    if references:
        summary["acceptance"] = {"never_off": round(statistics.fmean(references), 4), **acceptance}
        summary["resume_ratio"] = ratios
    for name in ("catch_up", "flush"):
        if name in cells:
            summary[name] = {point: repeats[-1] for point, repeats in cells[name].items()}
    if cost := off_cost.summarise(arms):
        summary["off_cost"] = cost
    return summary
