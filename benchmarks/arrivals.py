"""When requests arrive: seeded Poisson phases, or a recorded trace.

Arrivals are a pure function of their inputs, so every arm meets the same burst at the
same moment.
"""

from __future__ import annotations

import csv
import datetime
import io
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.errors import BenchmarkError

TRACE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
#: In one phase; each is an object in memory, and nobody waits for so many.
MOST_ARRIVALS = 1_000_000
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(?:Z|[+-]00:?00)?")


@dataclass(frozen=True)
class Phase:
    """`seconds` of Poisson arrivals at `rate` requests per second."""

    name: str
    seconds: float
    rate: float


@dataclass(frozen=True)
class Arrival:
    """One request: `at` in seconds after the start; lengths in tokens, None for the setup's."""

    at: float
    phase: str
    input_len: int | None = None
    output_len: int | None = None


def parse_phases(text: str) -> list[Phase]:
    """`NAME:SECONDS:RATE,...` -> phases; BenchmarkError names the part that is wrong.

    A name that comes twice gets a number (calm, burst, calm-2).
    """
    phases: list[Phase] = []
    seen: dict[str, int] = {}
    for part in text.split(","):
        fields = part.split(":")
        if len(fields) != 3 or not fields[0]:
            raise BenchmarkError(f"phase {part!r} is not NAME:SECONDS:REQUESTS_PER_SECOND")
        name, *numbers = fields
        try:
            seconds, rate = (float(number) for number in numbers)
        except ValueError as error:
            raise BenchmarkError(f"phase {part!r}: {error}") from error
        if not (0 < seconds < float("inf") and 0 < rate < float("inf")):
            raise BenchmarkError(f"phase {part!r}: seconds and rate must be above 0 and finite")
        if seconds * rate > MOST_ARRIVALS:
            raise BenchmarkError(
                f"phase {part!r}: {seconds * rate:.0f} requests are more than a run can make "
                f"({MOST_ARRIVALS}); lower its seconds or its rate"
            )
        seen[name] = seen.get(name, 0) + 1
        phases.append(Phase(name if seen[name] == 1 else f"{name}-{seen[name]}", seconds, rate))
    return phases


def poisson(phases: Sequence[Phase], seed: int) -> list[Arrival]:
    """Arrivals of the phases one after the other."""
    source = random.Random(repr((seed, "arrivals")))
    arrivals: list[Arrival] = []
    start = 0.0
    for phase in phases:
        at = start + source.expovariate(phase.rate)
        while at < start + phase.seconds:
            arrivals.append(Arrival(at, phase.name))
            at += source.expovariate(phase.rate)
        start += phase.seconds
    if not arrivals:
        raise BenchmarkError("no request arrives in these phases: raise their rates or lengths")
    return arrivals


@dataclass(frozen=True)
class TraceWindow:
    """Which part of a trace to replay, and how.

    Attributes:
        start, seconds: window of the trace, in its own time.
        speed: arrivals are this many times denser.
        max_input, max_output: longer requests are cut to this many tokens.
    """

    start: float = 0.0
    seconds: float = 60.0
    speed: float = 1.0
    max_input: int = 2048
    max_output: int = 512

    def __post_init__(self) -> None:
        if not 0 <= self.start < float("inf"):
            raise BenchmarkError(f"--trace-start {self.start:g}: must be 0 or more, and finite")
        for name in ("seconds", "speed"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise BenchmarkError(f"--trace-{name} {value:g}: must be above 0 and finite")


def read_trace(path: str, window: TraceWindow) -> list[Arrival]:
    """Arrivals from a CSV with columns TIMESTAMP, ContextTokens, GeneratedTokens.

    That is the format of the Azure LLM inference trace 2023: timestamps as
    `2023-11-16 18:15:46.6805900`, in rising order.

    Raises:
        BenchmarkError: naming the row (the header is row 1) and the field that is wrong, or
            an empty window.
    """
    arrivals: list[Arrival] = []
    for second, context, generated in _rows(path):
        at = second - window.start
        if 0 <= at < window.seconds:
            length = min(context, window.max_input)
            output = min(generated, window.max_output)
            arrivals.append(Arrival(at / window.speed, "trace", length, output))
    if not arrivals:
        raise BenchmarkError(
            f"{path}: no request between second {window.start:g} and "
            f"{window.start + window.seconds:g}: move --trace-start or --trace-seconds"
        )
    return arrivals


def _rows(path: str) -> Iterator[tuple[float, int, int]]:
    """(seconds after the first row, context tokens, generated tokens) of each row."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"cannot read the trace {path}: {error}") from error
    with io.StringIO(text, newline="") as file:
        reader = csv.reader(file)
        try:
            header = next(reader, [])
            missing = [column for column in TRACE_COLUMNS if column not in header]
            if missing:
                raise BenchmarkError(f"{path}, row 1: lacks the column {', '.join(missing)}")
            places = [header.index(column) for column in TRACE_COLUMNS]
            first = last = None
            for row in reader:
                where = f"{path}, row {reader.line_num}"
                if len(row) != len(header):
                    raise BenchmarkError(f"{where}: has {len(row)} fields, not {len(header)}")
                moment = _moment(row[places[0]], where)
                if last is not None and moment < last:
                    raise BenchmarkError(f"{where}: TIMESTAMP is earlier than in the row before")
                first, last = first if first is not None else moment, moment
                yield (
                    moment - first,
                    _tokens(row[places[1]], where, TRACE_COLUMNS[1]),
                    _tokens(row[places[2]], where, TRACE_COLUMNS[2]),
                )
        except csv.Error as error:
            raise BenchmarkError(f"{path}, row {reader.line_num}: not CSV: {error}") from error


def _moment(text: str, where: str) -> float:
    # datetime takes 6 digits after the point at most; the trace has 7.
    match = _TIMESTAMP.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        base = datetime.datetime.fromisoformat(match[1]).replace(tzinfo=datetime.timezone.utc)
    except ValueError:
        raise BenchmarkError(
            f"{where}: TIMESTAMP {text!r} is not a time like 2023-11-16 18:15:46.6805900"
        ) from None
    return base.timestamp() + float(match[2] or 0)


def _tokens(text: str, where: str, column: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        tokens = 0
    if tokens < 1:
        raise BenchmarkError(f"{where}: {column} {text!r} is not a whole number above 0")
    return tokens
