"""Makes a recording out of the states that a running server tells when it is asked."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from specswitch.timeline.model import Moment, SwitchAt, Timeline, seconds_of_step

_RATE_WINDOW_S = 1.0
#: Without a decode step for so long, a server is taken to be idle; a long prefill takes less.
_IDLE_AFTER_S = 2.0


class TokenRate:
    """Tokens per second over the last second, from totals."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()

    def at(self, seconds: float, tokens: int) -> float:
        """The rate up to now.

        Args:
            seconds: now.
            tokens: so far.
        """
        if self._recent and tokens < self._recent[-1][1]:
            self._recent.clear()  # the server has restarted
        self._recent.append((seconds, tokens))
        while len(self._recent) > 2 and seconds - self._recent[1][0] >= _RATE_WINDOW_S:
            self._recent.popleft()
        then, before = self._recent[0]
        return (tokens - before) / (seconds - then) if seconds > then else 0.0


def new_switches(state: dict[str, Any], known: int, around: Sequence[Moment]) -> list[SwitchAt]:
    """Switches that came after the first `known`, as far as the server still lists them.

    Args:
        state: specswitch's state of a scheduler.
        around: the moments between which they happened, for their times.
    """
    new = state["switches"]["total"] - known
    entries = state["switches"]["recent"][-new:] if new > 0 else []
    return [SwitchAt.from_entry(seconds_of_step(around, each["step"]), each) for each in entries]


class Follower:
    """Takes the states of one scheduler as they come.

    The load in a state is that of the last decode step. A server that has made no step for two
    seconds is taken to have no load.

    Args:
        keep: moments and switches to remember; None for all.

    Attributes:
        moments, found: so far.
    """

    def __init__(self, keep: int | None = None) -> None:
        self._keep = keep
        self.moments: list[Moment] = []
        self.found: list[SwitchAt] = []
        self._begun = datetime.now(timezone.utc)
        self._rate = TokenRate()
        self._first: dict[str, Any] | None = None
        self._last: dict[str, Any] = {}
        self._known = 0
        self._stepped = 0.0

    def take(self, seconds: float, state: dict[str, Any]) -> tuple[Moment, list[SwitchAt]]:
        """One more state.

        Args:
            seconds: when it was asked for, since the beginning.
            state: specswitch's state of a scheduler.

        Returns:
            The moment, and the switches since the state before; none for the first.
        """
        if self._first is None or state["step"] < self._last["step"]:
            self._first, self._known = self._first or state, state["switches"]["total"]
        if not self._last or state["step"] != self._last["step"]:
            self._stepped = seconds
        still = seconds - self._stepped >= _IDLE_AFTER_S
        moment = Moment(
            seconds=seconds,
            step=state["step"],
            mode=state["mode"],
            waiting=0 if still else state["waiting"],
            running=0 if still else state["running"],
            kv_use=state["kv_use"],
            acceptance_length=state["acceptance_length"],
            tokens_per_second=self._rate.at(seconds, sum(state["tokens"].values())),
        )
        self.moments.append(moment)
        found = new_switches(state, self._known, self.moments[-2:])
        self.found += found
        if self._keep is not None:
            del self.moments[: -self._keep], self.found[: -self._keep]
        self._known, self._last = state["switches"]["total"], state
        return moment, found

    def timeline(self, title: str) -> Timeline:
        """All of it; after at least one state."""
        assert self._first is not None, "no state was taken"
        marks = self._last["config"]["policy"].get("waiting") or {}
        return Timeline(
            title,
            self.moments,
            self.found,
            begun=self._begun,
            enter=marks.get("enter"),
            resume=marks.get("resume"),
            steps=_since(self._first["steps"], self._last["steps"]),
            tokens=_since(self._first["tokens"], self._last["tokens"]),
        )


def _since(first: dict[str, int], last: dict[str, int]) -> dict[str, int]:
    """Counts between two states; after a restart, those since then."""
    grown = {mode: count - first[mode] for mode, count in last.items()}
    return dict(last) if min(grown.values()) < 0 else grown
