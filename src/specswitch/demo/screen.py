"""What the terminal shows: a live table, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from specswitch.control import Mode
from specswitch.demo.observe import Sample
from specswitch.timeline.model import SwitchAt
from specswitch.timeline.text import COLOURS, describe, queue_strip

__all__ = ["LiveScreen", "PlainScreen", "Screen", "describe", "screen_for"]

_PLAIN_EVERY_S = 2.0
_PLAIN_WAITING_EVERY_S = 15.0


class Screen(Protocol):
    """The demo's view of a terminal; a context that restores the terminal on exit."""

    def __enter__(self) -> Screen: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def note(self, text: str) -> None:
        """Say one thing that stays on the screen."""

    def task(self, name: str, total: int | None) -> None:
        """Begin a long step; `total` None where its length is unknown."""

    def progress(self, done: int | None = None, detail: str = "") -> None:
        """How far the current step is."""

    def finish(self, detail: str = "") -> None:
        """End the current step."""

    def sample(self, sample: Sample) -> None:
        """Show the state of the server."""

    def switch(self, switch: SwitchAt) -> None:
        """Show a switch and its reason."""


def screen_for(console: Console) -> Screen:
    """The live screen on a terminal, the plain one elsewhere."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class LiveScreen:
    """Progress bars, and below them one table that is redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[detail]}"),
            console=console,
        )
        self._task = TaskID(0)
        self._history: deque[Sample] = deque(maxlen=56)
        self._switches = 0
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self._render)

    def __enter__(self) -> LiveScreen:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def task(self, name: str, total: int | None) -> None:
        self._task = self._bars.add_task(name, total=total, detail="")

    def progress(self, done: int | None = None, detail: str = "") -> None:
        if done is not None:
            self._bars.update(self._task, completed=done)
        room = max(10, self._console.width - 80)
        self._bars.update(self._task, detail=detail.replace("[", r"\[")[:room])

    def finish(self, detail: str = "") -> None:
        if self._bars.tasks[-1].total is None:
            self._bars.update(self._task, total=1, completed=1)
        self._bars.update(self._task, detail=detail)
        self._bars.stop_task(self._task)

    def sample(self, sample: Sample) -> None:
        self._history.append(sample)

    def switch(self, switch: SwitchAt) -> None:
        self._switches += 1
        colour = COLOURS.get(switch.target, "white")
        self._console.print(Text.assemble(("switch  ", "bold"), (describe(switch), colour)))

    def _render(self) -> Group:
        return Group(self._table(), self._bars) if self._history else Group(self._bars)

    def _table(self) -> Table:
        now = self._history[-1]
        colour = COLOURS.get(now.mode, "white")
        table = Table(title=f"server with specswitch, phase: {now.phase}", title_justify="left")
        for name in ("mode", "waiting", "running", "acceptance", "tokens/s"):
            table.add_column(name, justify="left" if name == "mode" else "right", min_width=10)
        table.add_column("steps speculate / target_only", justify="right")
        table.add_column("switches", justify="right")
        accepted = "-" if now.acceptance_length is None else f"{now.acceptance_length:.2f}"
        table.add_row(
            Text(now.mode, style=f"bold {colour}"),
            str(now.waiting),
            str(now.running),
            accepted,
            f"{now.tokens_per_second:.0f}",
            " / ".join(str(now.steps.get(mode.value, 0)) for mode in Mode),
            str(self._switches),
        )
        table.caption = Text("queue depth ").append_text(queue_strip(self._history))
        table.caption_justify = "left"
        return table


class PlainScreen:
    """One line at a time, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._name = ""
        self._begun = 0.0
        self._said = 0.0

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def note(self, text: str) -> None:
        self._line(text)

    def task(self, name: str, total: int | None) -> None:
        self._name = name
        self._begun = time.monotonic()
        self._line(f"{name} ..." if total is None else f"{name}: {total} requests ...")

    def progress(self, done: int | None = None, detail: str = "") -> None:
        # A server under way says nothing else, and a silent log looks like a hang.
        now = time.monotonic()
        if detail and now - max(self._said, self._begun) >= _PLAIN_WAITING_EVERY_S:
            self._said = now
            self._line(f"  {now - self._begun:5.0f} s  {detail[:100]}")

    def finish(self, detail: str = "") -> None:
        took = time.monotonic() - self._begun
        self._line(f"{self._name}: done in {took:.1f} s{'; ' + detail if detail else ''}")

    def sample(self, sample: Sample) -> None:
        now = time.monotonic()
        if now - self._said < _PLAIN_EVERY_S:
            return
        self._said = now
        accepted = "-" if sample.acceptance_length is None else f"{sample.acceptance_length:.2f}"
        self._line(
            f"  {sample.seconds:5.1f} s  mode {sample.mode:<11}  waiting {sample.waiting:>3}  "
            f"running {sample.running:>3}  acceptance {accepted}  "
            f"tokens/s {sample.tokens_per_second:.0f}"
        )

    def switch(self, switch: SwitchAt) -> None:
        self._line(f"  switch  {describe(switch)}")

    def _line(self, text: str) -> None:
        # Rich would wrap at 80 columns where it knows no width, in the middle of a path.
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
