"""The shape of a server's answers, as far as the commands show them; see `timeline.shapes`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from specswitch.timeline.shapes import Count, ModeName, Number, Watched


class AcceptanceAtSwitch(TypedDict):
    """On both sides of the switches."""

    before: Number | None
    after: Number | None


class GuardParts(TypedDict, total=False):
    """What holds a policy back; a policy without a guard has none of it."""

    votes: Count
    votes_needed: Count
    dwell_left: Count
    switch_cap: Count


class Guard(GuardParts):
    """What stands between the next step and a change of mode."""

    switches_in_window: Count


class Exactness(TypedDict):
    """Requests, by option, that speculation would answer otherwise."""

    setting: str
    requests: dict[str, Count]


class DraftSyncCounts(TypedDict):
    """In positions."""

    pending: Count
    missed: Count
    flushed: Count
    caught_up: Count
    discarded: Count


class State(Watched):
    """specswitch's state of one scheduler."""

    seconds: Annotated[dict[ModeName, Number], Field(min_length=2)]
    acceptance_at_switch: AcceptanceAtSwitch
    override: str
    changed: dict[str, tuple[Any, Any]]
    guard: Guard
    exactness: Exactness
    failure: str | None
    errors: dict[str, Count]
    draft_sync: DraftSyncCounts
    max_running_requests: Count


class Accepted(TypedDict):
    """A command was carried out."""

    accepted: Literal[True]
    changed: list[str]


class Refusal(TypedDict):
    """A command was refused, and nothing has changed."""

    accepted: Literal[False]
    error: str


class ShapeError(ValueError):
    """An answer has another shape; the message names the field and what is wrong with it."""


_STATES: TypeAdapter[list[State]] = TypeAdapter(list[State])
_ANSWERS: TypeAdapter[list[Accepted | Refusal]] = TypeAdapter(
    list[Annotated[Accepted | Refusal, Field(discriminator="accepted")]]
)


def check_states(states: object) -> None:
    """
    Raises:
        ShapeError: not a list of `State`.
    """
    _check(_STATES, states)


def check_answers(answers: object) -> None:
    """
    Raises:
        ShapeError: not a list of `Accepted` and `Refusal`.
    """
    _check(_ANSWERS, answers)


def _check(shape: TypeAdapter[Any], value: object) -> None:
    try:
        shape.validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # The place in the list says nothing to whoever reads it. A key may be no text to print.
        field = ".".join(str(part) for part in first["loc"][1:]) or "the answer"
        shown = field.encode("unicode_escape").decode()
        raise ShapeError(f"{shown}: {first['msg'].lower()}") from None
