"""The bars: ratios between arms that the project promises, and whether a result meets them.

Ratios of decode throughput use the nominal values where both sides have them: there
both arms are credited with the same acceptance length, so that the ratio compares step
times and not the luck of the simulation. Raw ratios are shown beside them.

Where two arms were measured in turns, the ratio is the median over the turns of the ratio in
each, so that the drift of the machine between turns cancels; elsewhere it is that of the medians.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks import arms, turns

#: No best arm is known without these: specswitch is held against the best of them.
RIVALS = (arms.NO_SPEC, arms.STATIC, arms.UPSTREAM_ADAPTIVE)

PARITY = 0.985
PLUGIN_COST = 0.99
ENVELOPE = 0.97
SWITCH = 1.1


@dataclass(frozen=True)
class Verdict:
    """One bar at one point.

    Attributes:
        bar: what is compared.
        point: concurrency (and mode).
        value: the ratio that counts; None when something was not measured.
        raw: the ratio of the raw throughputs, where there is one.
        limit: the bar; `at_least` says on which side of it the value must be.
    """

    bar: str
    point: str
    value: float | None
    raw: float | None
    limit: float
    at_least: bool = True

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def judge(result: Mapping[str, Any]) -> list[Verdict]:
    """All verdicts a result file allows; none for a benchmark without bars."""
    if result["benchmark"] == "envelope":
        return list(_envelope(result["arms"]))
    if result["benchmark"] == "switch":
        return list(_switch(result["arms"]))
    return []


def _envelope(found: Mapping[str, Any]) -> Iterator[Verdict]:
    points = sorted({point for cells in found.values() for point in cells}, key=int)
    pairs = (
        (arms.FORCED_TARGET_ONLY, arms.NO_SPEC, PARITY),
        (arms.FORCED_SPECULATE, arms.STATIC, PLUGIN_COST),
    )
    for ours, theirs, limit in pairs:
        for point in points:
            value, raw = ratio(found, ours, theirs, point)
            yield Verdict(f"{ours} / {theirs}", point, value, raw, limit)
    for point in points:
        best = best_rival(found, point)
        value, raw = ratio(found, arms.SPECSWITCH, best, point) if best else (None, None)
        yield Verdict(f"specswitch / best ({best})", point, value, raw, ENVELOPE)


def _switch(found: Mapping[str, Any]) -> Iterator[Verdict]:
    for cells in found.values():
        for point, cell in cells.items():
            for mode in ("speculate", "target_only"):
                value = cell.get(mode, {}).get("ratio")
                name = "first step after a switch / median step"
                yield Verdict(name, f"{point} {mode}", value, None, SWITCH, at_least=False)


def ratio(
    found: Mapping[str, Any], ours: str, theirs: str, point: str
) -> tuple[float | None, float | None]:
    """(ratio that counts, raw ratio) of decode throughput of two arms at a concurrency."""
    one, other = found.get(ours, {}).get(point, {}), found.get(theirs, {}).get(point, {})
    raw = turns.ratio(one, other, "decode_tok_s")
    nominal = turns.ratio(one, other, "decode_tok_s_nominal")
    return (raw if nominal is None else nominal), raw


def best_rival(found: Mapping[str, Any], point: str) -> str | None:
    """The arm without specswitch that decodes fastest at a concurrency."""
    speeds = {
        arm: cell["decode_tok_s_nominal"] or cell["decode_tok_s"]
        for arm in RIVALS
        if (cell := found.get(arm, {}).get(point)) and cell["decode_tok_s"]
    }
    return max(speeds, key=lambda arm: speeds[arm]) if speeds else None
