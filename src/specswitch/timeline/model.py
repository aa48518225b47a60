"""The shape of a recording: moments, switches, and the stretches of a mode between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Moment:
    """A server at one moment.

    Attributes:
        seconds: since the recording began.
        step: number of the last decode step; counts from 0 again when a server restarts.
        mode: mode of that step.
        waiting: requests in the waiting queue.
        running: requests in the decode batch.
        kv_use: fraction of the KV pool in use.
        acceptance_length: tokens per request and speculative step, bonus token included; None
            before the first.
        tokens_per_second: over the time up to this moment; None where it is not known.
    """

    seconds: float
    step: int
    mode: str
    waiting: int
    running: int
    kv_use: float
    acceptance_length: float | None
    tokens_per_second: float | None


@dataclass(frozen=True)
class SwitchAt:
    """A switch, its cause and its time.

    Attributes:
        seconds: since the recording began.
        others: see `Moment`; the load is what was decided on.
    """

    seconds: float
    step: int
    source: str
    target: str
    reason: str
    waiting: int
    running: int
    kv_use: float

    @classmethod
    def from_entry(cls, seconds: float, entry: Mapping[str, Any]) -> SwitchAt:
        """From an entry of `switches.recent` of a server's state, or of an event log."""
        return cls(
            seconds,
            entry["step"],
            entry["from"],
            entry["to"],
            entry["reason"],
            entry["waiting"],
            entry["running"],
            entry["kv_use"],
        )


@dataclass(frozen=True)
class Band:
    """A stretch of time with a name, drawn above the picture."""

    start: float
    end: float
    name: str


@dataclass(frozen=True)
class Timeline:
    """A recording.

    Attributes:
        title: what it is of.
        moments: at least one, in order of time.
        switches: in order of time.
        begun: wall time of second 0; None where it does not matter.
        starts: when a server started, in seconds.
        bands: named stretches.
        enter, resume: marks of the waiting queue; None where the policy has none.
        steps, tokens: decode steps and tokens within the recording, by mode.
    """

    title: str
    moments: Sequence[Moment]
    switches: Sequence[SwitchAt]
    begun: datetime | None = None
    starts: Sequence[float] = ()
    bands: Sequence[Band] = ()
    enter: int | None = None
    resume: int | None = None
    steps: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Length of the recording."""
        last = self.moments[-1].seconds
        return max(last, self.switches[-1].seconds) if self.switches else last

    def stretches(self) -> list[tuple[float, float, str]]:
        """Start, end (seconds) and mode of each stretch of one mode.

        A mode that changed without a recorded switch, as after a restart, begins with the first
        moment that has it.
        """
        changes = list(_changes(self.moments, self.switches))
        ends = [*(start for start, _ in changes[1:]), self.seconds]
        return [(start, end, mode) for (start, mode), end in zip(changes, ends, strict=True)]


def _changes(
    moments: Iterable[Moment], switches: Iterable[SwitchAt]
) -> Iterator[tuple[float, str]]:
    # The sort is stable: at equal times the switch explains the moment's mode.
    events: list[Moment | SwitchAt] = [*switches, *moments]
    events.sort(key=lambda event: event.seconds)
    known: str | None = None
    for event in events:
        if known is None:
            known = event.source if isinstance(event, SwitchAt) else event.mode
            yield event.seconds, known
        now = event.target if isinstance(event, SwitchAt) else event.mode
        if now != known:
            known = now
            yield event.seconds, known


def seconds_of_step(moments: Sequence[Moment], step: int) -> float:
    """When a decode step ran, interpolated between the two moments around it; 0.0 without any."""
    earlier = max((m for m in moments if m.step < step), key=lambda m: m.step, default=None)
    later = min((m for m in moments if m.step >= step), key=lambda m: m.step, default=None)
    if earlier is None or later is None:
        known = earlier or later
        return known.seconds if known else 0.0
    # Several moments share a step while the server is idle: the last of the earlier
    # and the first of the later are the ones that enclose it.
    start = max(m.seconds for m in moments if m.step == earlier.step)
    share = (step - earlier.step) / (later.step - earlier.step)
    return start + share * (later.seconds - start)
