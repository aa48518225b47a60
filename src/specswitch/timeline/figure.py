"""The picture of a recording: mode over load, acceptance and speed. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from specswitch.control import Mode
from specswitch.timeline.model import Moment, SwitchAt, Timeline

_SHADES = {Mode.SPECULATE.value: "#d6eaf8", Mode.TARGET_ONLY.value: "#fdebd0"}
_QUEUE, _RUNNING, _KV = "#b03a2e", "#1f618d", "#8e7cc3"
_RATE, _ACCEPTANCE, _MARK, _START = "#1e8449", "#7d3c98", "#7f8c8d", "#444444"
#: More labels than this would lie on top of each other.
_LABELLED_SWITCHES = 12
#: More lines than this would hide the curves; the shades still show the modes.
_LINED_SWITCHES = 60


def draw(timeline: Timeline, to: Path | IO[bytes]) -> None:
    """Write the PNG.

    Args:
        timeline: what to draw.
        to: a path, or a file that is open for writing bytes.
    """
    # A Figure of its own rather than pyplot's: no display and no global state.
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    load, acceptance, rate = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1.5, 2))
    unit, name = _time_unit(timeline.seconds)
    moments = timeline.moments
    times = [moment.seconds / unit for moment in moments]
    # KV use lies behind the load, and the shades of the modes behind both.
    kv_use = load.twinx()
    load.set_zorder(kv_use.get_zorder() + 1)
    load.patch.set_visible(False)
    first = min([*times[:1], *(start / unit for start in timeline.starts)])
    for axes in (load, acceptance, rate):
        axes.grid(axis="y", alpha=0.35)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(first, max(timeline.seconds / unit, first + 1 / unit))
    for axes in (kv_use, acceptance, rate):
        _shade(axes, timeline, unit)

    marks = _draw_load(load, timeline, times)
    if len(timeline.switches) <= _LABELLED_SWITCHES:
        _label_switches(load, timeline.switches, unit)
    _label_bands(load, timeline, unit)
    _draw_kv_use(kv_use, moments, times)
    _draw_acceptance(acceptance, moments, times)
    _draw_rate(rate, moments, times)
    rate.set_xlabel(_time_label(name, timeline))

    lines = [
        Line2D([], [], color=_QUEUE, lw=2, label="waiting (queue depth)"),
        Line2D([], [], color=_RUNNING, lw=2, label="running"),
        Line2D([], [], color=_KV, lw=1.2, label="KV use (right scale)"),
    ]
    shades = [Patch(color=shade, label=f"mode: {mode}") for mode, shade in _SHADES.items()]
    if timeline.starts:
        marks.append(Line2D([], [], color=_START, lw=1.5, ls="-.", label="server started"))
    figure.legend(
        handles=[*lines, *shades, *marks], loc="outside lower center", ncols=3, frameon=False
    )
    figure.suptitle(timeline.title, fontsize=14, fontweight="bold", parse_math=False)
    figure.savefig(to, dpi=130, format="png")


def _time_unit(seconds: float) -> tuple[float, str]:
    """Seconds of the unit that suits the length, and its name."""
    for unit, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * unit:
            return unit, name
    return 1.0, "seconds"


def _time_label(name: str, timeline: Timeline) -> str:
    if timeline.begun is None:
        return name
    return f"{name} since {timeline.begun:%Y-%m-%d %H:%M:%S} UTC"


def _shade(axes: Axes, timeline: Timeline, unit: float) -> None:
    for start, end, mode in timeline.stretches():
        shade = _SHADES.get(mode, "#eeeeee")
        axes.axvspan(start / unit, end / unit, color=shade, lw=0, zorder=0)
    if len(timeline.switches) <= _LINED_SWITCHES:
        for switch in timeline.switches:
            axes.axvline(switch.seconds / unit, color="black", lw=1, ls="--", zorder=1)
    for start in timeline.starts:
        axes.axvline(start / unit, color=_START, lw=1.5, ls="-.", zorder=1)


def _draw_load(axes: Axes, timeline: Timeline, times: Sequence[float]) -> list[Line2D]:
    """Queue and batch; returns what the legend says about the marks."""
    moments = timeline.moments
    axes.step(times, [m.waiting for m in moments], where="post", color=_QUEUE, lw=2)
    axes.step(times, [m.running for m in moments], where="post", color=_RUNNING, lw=2)
    axes.set_ylabel("requests")
    # Room above the curves for the labels of the switches.
    axes.set_ylim(0, max(4, *(max(m.waiting, m.running) for m in moments)) * 1.35)
    return _draw_marks(axes, timeline.enter, timeline.resume)


def _draw_kv_use(axes: Axes, moments: Sequence[Moment], times: Sequence[float]) -> None:
    axes.step(times, [m.kv_use for m in moments], where="post", color=_KV, lw=1.5)
    axes.set_ylim(0, 1.35)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("KV use", color=_KV)
    axes.tick_params(axis="y", colors=_KV)
    axes.spines["top"].set_visible(False)


def _draw_acceptance(axes: Axes, moments: Sequence[Moment], times: Sequence[float]) -> None:
    """Solid while speculating; dotted where it stands still because nothing is verified."""
    known = [m.acceptance_length for m in moments]
    values = [float("nan") if value is None else value for value in known]
    axes.plot(times, values, color=_ACCEPTANCE, lw=1, ls=":")
    speculating = [
        value if moment.mode == Mode.SPECULATE.value else float("nan")
        for value, moment in zip(values, moments, strict=True)
    ]
    axes.plot(times, speculating, color=_ACCEPTANCE, lw=2)
    axes.set_ylabel("acceptance\nlength")
    top = max((value for value in known if value is not None), default=2.0)
    axes.set_ylim(1, max(2.0, top) * 1.1)


def _draw_rate(axes: Axes, moments: Sequence[Moment], times: Sequence[float]) -> None:
    rates = [
        float("nan") if moment.tokens_per_second is None else moment.tokens_per_second
        for moment in moments
    ]
    axes.step(times, rates, where="pre", color=_RATE, lw=2)
    axes.set_ylabel("tokens/s")
    axes.set_ylim(bottom=0)


def _label_switches(axes: Axes, switches: Sequence[SwitchAt], unit: float) -> None:
    start, end = axes.get_xlim()
    for number, switch in enumerate(switches):
        when = switch.seconds / unit
        late = when > start + 0.85 * (end - start)
        axes.annotate(
            f"{switch.reason}\nstep {switch.step}, waiting {switch.waiting}",
            # Neighbours take turns in three rows, so that close switches stay readable.
            (when, 0.985 - 0.085 * (number % 3)),
            xycoords=("data", "axes fraction"),
            xytext=(-5 if late else 5, 0),
            textcoords="offset points",
            ha="right" if late else "left",
            va="top",
            fontsize=8.5,
            parse_math=False,
            bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.85},
        )


def _label_bands(axes: Axes, timeline: Timeline, unit: float) -> None:
    for band in timeline.bands:
        start, end = band.start / unit, band.end / unit
        axes.annotate(
            "",
            (start, 1.02),
            (end, 1.02),
            xycoords=axes.get_xaxis_transform(),
            arrowprops={"arrowstyle": "|-|,widthA=0.3,widthB=0.3", "color": "#777777", "lw": 1},
            annotation_clip=False,
        )
        axes.text(
            (start + end) / 2,
            1.035,
            band.name,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=9,
            color="#444444",
        )


def _draw_marks(axes: Axes, enter: int | None, resume: int | None) -> list[Line2D]:
    """Dotted lines at the marks; returns what the legend says about them.

    The marks are often close together, so they cannot be labelled in place.
    """
    if enter is None or resume is None:
        return []
    for mark in (enter, resume):
        axes.axhline(mark, color=_MARK, lw=1, ls=":")
    said = f"marks: leave at waiting >= {enter}, resume at <= {resume}"
    return [Line2D([], [], color=_MARK, lw=1, ls=":", label=said)]
