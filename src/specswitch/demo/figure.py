"""The picture of a demo run: its samples and phases as a recording like any other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specswitch.demo.observe import Sample, SeenSwitch, seconds_of_step
from specswitch.demo.outcome import Outcome
from specswitch.timeline.figure import draw as draw_timeline
from specswitch.timeline.model import Band, Moment, SwitchAt, Timeline


def stretches(
    samples: Sequence[Sample], switches: Sequence[SeenSwitch]
) -> list[tuple[float, float, str]]:
    """Start, end (seconds) and mode of each stretch between switches."""
    return Timeline("", _moments(samples), _switches(samples, switches)).stretches()


def draw(file: Path, outcome: Outcome, *, enter: int | None, resume: int | None) -> None:
    """Write the PNG.

    Args:
        file: where to.
        outcome: with at least one sample.
        enter, resume: the marks of the waiting queue; None where the policy has none.
    """
    timeline = Timeline(
        "specswitch demo: the mode follows the load",
        _moments(outcome.samples),
        _switches(outcome.samples, outcome.switches),
        bands=[
            Band(phase.start, phase.end, f"{phase.name}: {phase.requests} requests")
            for phase in outcome.phases
        ],
        enter=enter,
        resume=resume,
    )
    draw_timeline(timeline, file)


def _moments(samples: Sequence[Sample]) -> list[Moment]:
    return [
        Moment(
            sample.seconds,
            sample.step,
            sample.mode,
            sample.waiting,
            sample.running,
            sample.kv_use,
            sample.acceptance_length,
            sample.tokens_per_second,
        )
        for sample in samples
    ]


def _switches(samples: Sequence[Sample], switches: Sequence[SeenSwitch]) -> list[SwitchAt]:
    return [
        SwitchAt(
            seconds_of_step(samples, switch.step),
            switch.step,
            switch.source,
            switch.target,
            switch.reason,
            switch.waiting,
            switch.running,
            switch.kv_use,
        )
        for switch in switches
    ]
