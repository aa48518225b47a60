"""Reads an event log back: the file, and what was set aside when it grew too large."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from specswitch.timeline.model import Moment, SwitchAt, Timeline
from specswitch.timeline.shapes import EVENT, ConfigShown, Event, Marks, SampleEvent

#: Speed is averaged over at least a second, and in a long log over so large a part of it.
_LEAST_WINDOW_S = 1.0
_WINDOWS = 300


class EventLogError(Exception):
    """There is nothing to be read. The message says what to change."""


def read_event_log(path: Path) -> Timeline:
    """The recording in an event log, the files FILE.1, FILE.2, ... beside it included.

    Lines that are no events are passed over: a full disk or a crash may have cut one off.

    Raises:
        EventLogError: no such file, or no sample in it.
    """
    try:
        events = [event for file in _parts(path) for event in _events(file)]
    except OSError as error:
        raise EventLogError(f"{path}: {error.strerror}") from None
    if not events:
        raise EventLogError(
            f"{path}: holds no event; is it an event log, and of this version of specswitch?"
        )
    reader = _Reader(events[0]["time"])
    for event in events:
        reader.take(event)
    if not reader.moments:
        raise EventLogError(
            f"{path}: holds no sample of load and speed; set event_log.sample_steps above 0, or "
            "let the server decode something"
        )
    # A name may hold bytes that are no text.
    return reader.timeline(path.name.encode(errors="replace").decode())


def _parts(path: Path) -> list[Path]:
    """Oldest first.

    Raises:
        EventLogError: a directory, or a device, which may never end.
    """
    if path.exists() and not (path.is_file() or path.is_fifo()):
        raise EventLogError(f"{path}: not a file; name the event log itself")
    older: list[Path] = []
    while (part := path.with_name(f"{path.name}.{len(older) + 1}")).is_file():
        older.append(part)
    return [*reversed(older), path]


def _events(file: Path) -> Iterator[Event]:
    with file.open("rb") as lines:
        for line in lines:
            try:
                yield EVENT.validate_json(line)
            except ValidationError:
                continue


class _Reader:
    def __init__(self, begun: datetime) -> None:
        self.moments: list[Moment] = []
        self._begun = begun
        self._now = 0.0
        self._switches: list[SwitchAt] = []
        self._starts: list[float] = []
        self._marks: Marks = {}
        self._steps: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        #: Steps and tokens of the event before; None at the beginning of a cut-off log.
        self._before: tuple[dict[str, int], dict[str, int]] | None = None
        #: Tokens so far, at the time of each moment.
        self._totals: list[int] = []

    def take(self, event: Event) -> None:
        # A clock that is set back, or a log that goes on from another machine's, must not turn the
        # order of the lines.
        self._now = max(self._now, (event["time"] - self._begun).total_seconds())
        seconds = self._now
        if event["event"] == "start":
            self._start(seconds, event["config"])
        elif event["event"] == "switch":
            self._switches.append(SwitchAt.from_entry(seconds, event))
        else:
            self._sample(seconds, event)

    def _start(self, seconds: float, config: ConfigShown) -> None:
        self._starts.append(seconds)
        self._marks = config["policy"].get("waiting") or {}
        self._before = {}, {}
        if self.moments:
            # Whatever ran before has ended.
            self._add(Moment(seconds, -1, self.moments[-1].mode, 0, 0, 0.0, None, None))

    def _sample(self, seconds: float, event: SampleEvent) -> None:
        now = event["steps"], event["tokens"]
        steps, tokens = self._before or now
        self._steps.update(_grown(now[0], steps))
        self._tokens.update(_grown(now[1], tokens))
        self._before = now
        self._add(
            Moment(
                seconds,
                event["step"],
                event["mode"],
                event["waiting"],
                event["running"],
                event["kv_use"],
                event["acceptance_length"],
                None,
            )
        )

    def _add(self, moment: Moment) -> None:
        self.moments.append(moment)
        self._totals.append(sum(self._tokens.values()))

    def timeline(self, title: str) -> Timeline:
        times = [moment.seconds for moment in self.moments]
        window = max(_LEAST_WINDOW_S, times[-1] / _WINDOWS)
        speeds = _speeds(times, self._totals, window)
        return Timeline(
            title,
            [
                replace(moment, tokens_per_second=speed)
                for moment, speed in zip(self.moments, speeds, strict=True)
            ],
            self._switches,
            begun=self._begun,
            starts=self._starts,
            enter=self._marks.get("enter"),
            resume=self._marks.get("resume"),
            steps=dict(self._steps),
            tokens=dict(self._tokens),
        )


def _speeds(times: list[float], totals: list[int], window: float) -> Iterator[float | None]:
    """Tokens per second over the `window` seconds that end at each time.

    Samples can be a single step apart, so from one to the next would say little.
    """
    for now, total in zip(times, totals, strict=True):
        then = max(now - window, times[0])
        after = bisect_left(times, then)
        before: float = totals[after]
        if times[after] > then:
            share = (then - times[after - 1]) / (times[after] - times[after - 1])
            before = totals[after - 1] + share * (totals[after] - totals[after - 1])
        yield (total - before) / (now - then) if now > then else None


def _grown(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {mode: count - before.get(mode, 0) for mode, count in now.items()}
