"""The picture of a run: queue depth, running requests and mode over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from specswitch.control import Mode
from specswitch.demo.observe import Sample, SeenSwitch, seconds_of_step
from specswitch.demo.outcome import Outcome, PhaseTime

_SHADES = {Mode.SPECULATE.value: "#d6eaf8", Mode.TARGET_ONLY.value: "#fdebd0"}
_QUEUE, _RUNNING, _RATE, _MARK = "#b03a2e", "#1f618d", "#1e8449", "#7f8c8d"


def stretches(
    samples: Sequence[Sample], switches: Sequence[SeenSwitch]
) -> list[tuple[float, float, str]]:
    """Start, end (seconds) and mode of each stretch between switches."""
    end = samples[-1].seconds
    mode = switches[0].source if switches else samples[0].mode
    found, start = [], samples[0].seconds
    for switch in switches:
        when = seconds_of_step(list(samples), switch.step)
        found.append((start, when, mode))
        start, mode = when, switch.target
    found.append((start, end, mode))
    return found


def draw(file: Path, outcome: Outcome, *, enter: int | None, resume: int | None) -> None:
    """Write the PNG.

    Args:
        file: where to.
        outcome: with at least one sample.
        enter, resume: the marks of the waiting queue; None where the policy has none.
    """
    samples, switches = outcome.samples, outcome.switches
    # A Figure of its own rather than pyplot's: no display and no global state.
    figure = Figure(figsize=(12, 7), layout="constrained")
    load, rate = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    seconds = [sample.seconds for sample in samples]
    for axes in (load, rate):
        _shade(axes, samples, switches)
        axes.grid(axis="y", alpha=0.35)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(seconds[0], max(seconds[-1], seconds[0] + 1))

    load.step(seconds, [s.waiting for s in samples], where="post", color=_QUEUE, lw=2)
    load.step(seconds, [s.running for s in samples], where="post", color=_RUNNING, lw=2)
    load.set_ylabel("requests")
    # Room above the curves for the labels of the switches.
    load.set_ylim(0, max(4, *(max(s.waiting, s.running) for s in samples)) * 1.35)
    marks = _draw_marks(load, enter, resume)
    _label_switches(load, samples, switches)
    _label_phases(load, outcome.phases)

    rate.plot(seconds, [s.tokens_per_second for s in samples], color=_RATE, lw=2)
    rate.set_ylabel("tokens/s")
    rate.set_xlabel("seconds")
    rate.set_ylim(bottom=0)

    lines = [
        Line2D([], [], color=_QUEUE, lw=2, label="waiting (queue depth)"),
        Line2D([], [], color=_RUNNING, lw=2, label="running"),
        Line2D([], [], color=_RATE, lw=2, label="tokens/s"),
    ]
    shades = [Patch(color=shade, label=f"mode: {mode}") for mode, shade in _SHADES.items()]
    figure.legend(
        handles=[*lines, *shades, *marks], loc="outside lower center", ncols=3, frameon=False
    )
    figure.suptitle("specswitch demo: the mode follows the load", fontsize=14, fontweight="bold")
    figure.savefig(file, dpi=130)


def _shade(axes: Axes, samples: Sequence[Sample], switches: Sequence[SeenSwitch]) -> None:
    for start, end, mode in stretches(samples, switches):
        axes.axvspan(start, end, color=_SHADES.get(mode, "#eeeeee"), lw=0, zorder=0)
    for switch in switches:
        when = seconds_of_step(list(samples), switch.step)
        axes.axvline(when, color="black", lw=1, ls="--", zorder=1)


def _label_switches(axes: Axes, samples: Sequence[Sample], switches: Sequence[SeenSwitch]) -> None:
    start, end = axes.get_xlim()
    for number, switch in enumerate(switches):
        when = seconds_of_step(list(samples), switch.step)
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
            bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.85},
        )


def _label_phases(axes: Axes, phases: Sequence[PhaseTime]) -> None:
    for phase in phases:
        axes.annotate(
            "",
            (phase.start, 1.02),
            (phase.end, 1.02),
            xycoords=axes.get_xaxis_transform(),
            arrowprops={"arrowstyle": "|-|,widthA=0.3,widthB=0.3", "color": "#777777", "lw": 1},
            annotation_clip=False,
        )
        axes.text(
            (phase.start + phase.end) / 2,
            1.035,
            f"{phase.name}: {phase.requests} requests",
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
