"""PNGs of result files. Separate from measuring: a machine that measures needs no matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bars import best_rival, ratio
from benchmarks.errors import BenchmarkError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "no_spec": "#555555",
    "static": "#d95f02",
    "upstream_adaptive": "#7570b3",
    "specswitch": "#1b9e77",
    "forced_target_only": "#a6a6a6",
    "forced_speculate": "#e6ab02",
}
_FORCED = ("forced_target_only", "forced_speculate")


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw `result` to `path` (PNG).

    Raises BenchmarkError without matplotlib, and for a result with nothing to draw.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise BenchmarkError("plots need matplotlib: pip install specswitch[plot]") from error
    if not any(result["arms"].values()):
        raise BenchmarkError("the result holds no measurements to draw")
    matplotlib.use("agg")
    from matplotlib import pyplot

    # A measurement can go without the latency pass.
    latencies = any(
        cell.get("itl_ms") for cells in result["arms"].values() for cell in cells.values()
    )
    draw, panels = {
        "envelope": (_envelope, 2 + latencies),
        "switch": (_switch, 1),
        "bursts": (_bursts, 3),
    }[result["benchmark"]]
    figure, axes = pyplot.subplots(1, panels, figsize=(5.2 * panels, 4.2), squeeze=False)
    draw(list(axes[0]), result["arms"])
    # One narrow panel holds half of the title in a line.
    figure.suptitle(textwrap.fill(_title(result), 60 * panels), fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _title(result: Mapping[str, Any]) -> str:
    setup = result["setup"]
    simulated = f", simulated acceptance {result['acceptance']:g}" if setup["simulated"] else ""
    model = f"{setup['model']} ({setup['weights']} weights)"
    return f"{result['benchmark']}: {result['gpu']}, {result['engine']}, {model}{simulated}"


def _envelope(axes: list[Axes], arms: Mapping[str, Any]) -> None:
    throughput, relative, *rest = axes
    best = {point: best_rival(arms, point) for cells in arms.values() for point in cells}
    for arm, cells in arms.items():
        style: dict[str, Any] = {
            "color": _COLOURS[arm],
            "label": arm,
            "marker": "o",
            "markersize": 4,
        }
        style["linestyle"] = "--" if arm in _FORCED else "-"
        _line(throughput, {p: c["decode_tok_s"] for p, c in cells.items()}, style)
        _line(relative, {p: ratio(arms, arm, best[p], p)[0] for p in cells if best[p]}, style)
        for latency in rest:
            _line(latency, {p: c["itl_ms"]["p95"] for p, c in cells.items() if c["itl_ms"]}, style)
    throughput.set(ylabel="decode tok/s")
    relative.set(ylabel="decode speed / best arm without specswitch")
    relative.axhline(1.0, color="black", linewidth=0.6)
    for latency in rest:
        latency.set(ylabel="inter-token latency p95, ms")
    for ax in axes:
        ax.set_xlabel("concurrency")
        ax.grid(alpha=0.3)
        # A logarithmic axis without data cannot be drawn.
        if any(line.get_marker() == "o" for line in ax.lines):
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter("{x:g}")
            ax.set_yscale("linear" if ax is relative else "log")
    throughput.legend(fontsize=7)


def _line(ax: Axes, values: Mapping[str, float | None], style: Mapping[str, Any]) -> None:
    """Draw values by concurrency, as far as there are any."""
    known = {int(point): value for point, value in values.items() if value}
    if known:
        ax.plot(list(known), list(known.values()), **style)


def _switch(axes: list[Axes], arms: Mapping[str, Any]) -> None:
    (ax,) = axes
    bars = [
        (f"{point}\n{mode}", cell[mode]["step_ms"], cell[mode]["first_ms"])
        for cells in arms.values()
        for point, cell in cells.items()
        for mode in ("speculate", "target_only")
        if mode in cell
    ]
    places = range(len(bars))
    ax.bar([x - 0.2 for x in places], [step for _, step, _ in bars], 0.4, label="median step")
    ax.bar(
        [x + 0.2 for x in places], [first for *_, first in bars], 0.4, label="first after switch"
    )
    ax.set_xticks(list(places), [name for name, *_ in bars], fontsize=7)
    ax.set_ylabel("ms")
    ax.legend(fontsize=8)


def _bursts(axes: list[Axes], arms: Mapping[str, Any]) -> None:
    phases = list(dict.fromkeys(phase for cells in arms.values() for phase in cells))
    panels = (
        ("e2e_tok_s", "tok/s"),
        ("ttft_ms", "TTFT p95, ms"),
        ("itl_ms", "inter-token p95, ms"),
    )
    width = 0.8 / len(arms)
    for ax, (key, label) in zip(axes, panels, strict=True):
        for number, (arm, cells) in enumerate(arms.items()):
            heights = [_height(cells.get(phase, {}).get(key)) for phase in phases]
            places = [x + number * width - 0.4 + width / 2 for x in range(len(phases))]
            ax.bar(places, heights, width, color=_COLOURS[arm], label=arm)
        ax.set_xticks(range(len(phases)), phases, fontsize=8)
        ax.set_ylabel(label)
        ax.grid(axis="y", alpha=0.3)
    axes[0].legend(fontsize=7)


def _height(value: Any) -> float:
    if isinstance(value, dict):
        value = value["p95"]
    return float("nan") if value is None else float(value)
