"""What is read back from an event log or a server, and in which shape.

Another process has written it, maybe of another version, maybe only in part. So it is checked once,
where it comes in, and nothing behind that has to doubt a key or a type.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AwareDatetime, Field, TypeAdapter
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

Time = Annotated[AwareDatetime, Field(strict=True)]
ModeName = Annotated[str, Field(pattern="^(speculate|target_only)$")]
#: Beyond that JSON of other languages does not go, and arithmetic with floats overflows.
_LARGEST = 2**63 - 1
Count = Annotated[int, Field(strict=True, ge=0, le=_LARGEST)]
#: Number of the last decode step; -1 before the first.
Step = Annotated[int, Field(strict=True, ge=-1, le=_LARGEST)]
Number = Annotated[float, Field(strict=True, ge=0, le=_LARGEST, allow_inf_nan=False)]
#: Decode steps or tokens of each of the two modes.
CountByMode = Annotated[dict[ModeName, Count], Field(min_length=2)]


class Load(TypedDict):
    """What a decision was, or would be, taken on."""

    step: Step
    reason: str
    waiting: Count
    running: Count
    kv_use: Number


#: `from` is no name that a class could have.
_Ends = TypedDict("_Ends", {"from": ModeName, "to": ModeName})


class SwitchEntry(Load, _Ends):
    """A switch, in `switches.recent` of a server's state and in an event log."""


class Progress(Load):
    """Where a scheduler stands."""

    mode: ModeName
    acceptance_length: Number | None
    steps: CountByMode
    tokens: CountByMode


class Marks(TypedDict, total=False):
    """Of the waiting queue."""

    enter: Count
    resume: Count


class PolicyShown(TypedDict, total=False):
    """The part of a configuration that is drawn."""

    waiting: Marks | None


class ConfigShown(TypedDict):
    """See `PolicyShown`."""

    policy: PolicyShown


class StartEvent(TypedDict):
    """A server began to serve."""

    event: Literal["start"]
    time: Time
    config: ConfigShown


class SwitchEvent(SwitchEntry):
    """It changed its mode."""

    event: Literal["switch"]
    time: Time


class SampleEvent(Progress):
    """What it was doing."""

    event: Literal["sample"]
    time: Time


Event: TypeAlias = StartEvent | SwitchEvent | SampleEvent

#: One line of an event log.
EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


class Switches(TypedDict):
    """All there were, and the last of them."""

    total: Count
    recent: list[SwitchEntry]


class Watched(Progress):
    """A scheduler's state as far as it is followed over time."""

    switches: Switches
    config: ConfigShown
