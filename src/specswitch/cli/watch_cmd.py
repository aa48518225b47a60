"""`specswitch watch`: a running server, live."""

from __future__ import annotations

import time
from collections import deque
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from specswitch.cli.durations import LONGEST_S, no_nan
from specswitch.cli.server_client import (
    DEFAULT_URL,
    ApiKeyOption,
    ServerClient,
    ServerError,
    UrlOption,
)
from specswitch.cli.state_view import state_table
from specswitch.timeline.follow import Follower
from specswitch.timeline.model import Moment, SwitchAt
from specswitch.timeline.text import COLOURS, describe, queue_strip

_LISTED_SWITCHES = 6
_HISTORY = 64
#: Width of the first column of `state_table`, its padding included.
_LABEL = 20


def watch(
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    interval: Annotated[
        float,
        typer.Option(
            min=0.1, max=LONGEST_S, callback=no_nan, help="Seconds between two looks at the server."
        ),
    ] = 1.0,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.0, callback=no_nan, help="End after so long; default: at Ctrl-C."),
    ] = None,
) -> None:
    """Show mode, load, acceptance, speed, guard and the last switches, live.

    On a terminal one view that is redrawn in place; elsewhere one line for each look and each
    switch.

    Exit code: 0 when stopped or done, 1 when the server cannot be asked.
    """
    console = Console(highlight=False)
    view = LiveView(console) if console.is_terminal else PlainView(console)
    try:
        with ServerClient(url, api_key) as client, view:
            _follow(client, view, interval, seconds)
    except KeyboardInterrupt:
        return
    except ServerError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def _follow(
    client: ServerClient, view: LiveView | PlainView, interval: float, seconds: float | None
) -> None:
    begun = time.monotonic()
    watched: list[Watched] = []
    look = 0
    while True:
        states = client.states()
        now = time.monotonic() - begun
        if len(watched) != len(states):
            watched = [Watched() for _ in states]
        for each, state in zip(watched, states, strict=True):
            each.take(now, state)
        view.show(watched)
        look += 1
        if seconds is not None and now >= seconds:
            return
        time.sleep(max(0.0, begun + look * interval - time.monotonic()))


class Watched:
    """One scheduler, as far as it has been watched.

    Attributes:
        state: the last one.
        moment: the same with the speed.
        fresh: switches since the state before.
        still_since: when the last decode step was first seen.
        history: the last moments.
    """

    state: dict[str, Any]
    moment: Moment

    def __init__(self) -> None:
        self.fresh: list[SwitchAt] = []
        self.still_since = 0.0
        self.history: deque[Moment] = deque(maxlen=_HISTORY)
        self._follower = Follower(keep=2)

    def take(self, seconds: float, state: dict[str, Any]) -> None:
        """One more state, `seconds` after the beginning."""
        self.moment, self.fresh = self._follower.take(seconds, state)
        self.state = state
        if not self.history or self.history[-1].step != self.moment.step:
            self.still_since = seconds
        self.history.append(self.moment)

    @property
    def speed(self) -> str:
        """Tokens per second now, or how long nothing was decoded."""
        still = self.moment.seconds - self.still_since
        if still:
            return f"no decode step for {still:.0f} s"
        return f"{self.moment.tokens_per_second:.0f}"


class LiveView:
    """One view that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, watched: list[Watched]) -> None:
        """Redraw."""
        parts: list[Text | Group] = []
        for index, each in enumerate(watched):
            if len(watched) > 1:
                parts.append(Text(f"scheduler {index}", style="bold"))
            parts.append(render(each))
        self._live.update(Group(*parts), refresh=True)


class PlainView:
    """One line at a time, for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, watched: list[Watched]) -> None:
        """A line for each new switch and one for the state, of each scheduler."""
        for index, each in enumerate(watched):
            label = f"scheduler {index}: " if len(watched) > 1 else ""
            for line in plain_lines(each):
                self._console.print(label + line, markup=False, soft_wrap=True)


def render(watched: Watched) -> Group:
    """The live view of one scheduler."""
    lines: list[Any] = [
        state_table(watched.state),
        Text.assemble((f"{'tokens/s now':<{_LABEL}}", "dim"), watched.speed),
        Text.assemble((f"{'queue depth':<{_LABEL}}", "dim"), queue_strip(watched.history)),
    ]
    recent = watched.state["switches"]["recent"][-_LISTED_SWITCHES:]
    if recent:
        lines.append(Text("last switches", style="dim"))
        lines += [_switch_line(SwitchAt.from_entry(0.0, entry)) for entry in reversed(recent)]
    return Group(*lines)


def plain_lines(watched: Watched) -> list[str]:
    """What is new, and the state in one line."""
    state, moment = watched.state, watched.moment
    acceptance = state["acceptance_length"]
    guard = state["guard"]
    parts = [
        f"mode {state['mode']} ({state['reason']})",
        f"step {state['step']}",
        f"waiting {state['waiting']}",
        f"running {state['running']}",
        f"KV use {state['kv_use']:.0%}",
        f"acceptance {'-' if acceptance is None else f'{acceptance:.2f}'}",
        f"tokens/s {watched.speed}",
        f"switches {state['switches']['total']}",
    ]
    if guard.keys() >= {"votes", "votes_needed", "dwell_left"}:
        parts.append(
            f"votes {guard['votes']}/{guard['votes_needed']}, dwell left {guard['dwell_left']}"
        )
    if state["failure"] is not None:
        parts.append(f"SAFE MODE: {state['failure']}")
    line = f"{moment.seconds:6.1f} s  " + "  ".join(parts)
    return [*(f"switch    {describe(switch)}" for switch in watched.fresh), line]


def _switch_line(switch: SwitchAt) -> Text:
    return Text(f"  {describe(switch)}", style=COLOURS.get(switch.target, ""))
