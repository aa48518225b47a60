"""The picture of a demo run: a recording like any other, with the phases of the traffic."""

from __future__ import annotations

from pathlib import Path

from specswitch.demo.outcome import Outcome
from specswitch.timeline.figure import draw as draw_timeline
from specswitch.timeline.model import Band, Timeline


def draw(file: Path, outcome: Outcome, *, enter: int | None, resume: int | None) -> None:
    """Write the PNG.

    Args:
        file: where to.
        outcome: with at least one sample.
        enter, resume: the marks of the waiting queue; None where the policy has none.
    """
    timeline = Timeline(
        "specswitch demo: the mode follows the load",
        outcome.samples,
        outcome.switches,
        bands=[
            Band(phase.start, phase.end, f"{phase.name}: {phase.requests} requests")
            for phase in outcome.phases
        ],
        enter=enter,
        resume=resume,
    )
    draw_timeline(timeline, file)
