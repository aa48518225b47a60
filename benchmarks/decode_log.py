"""Decode throughput and step times from the server's own log.

Every `--decode-log-interval` decode steps SGLang writes one line with the running
requests, the tokens emitted since the line before divided by the time since then, and,
under speculation, the mean acceptance length
(observability/scheduler_metrics_mixin.py:645-721, 0.5.12.post1). It is the one clock
that all arms share, and it leaves HTTP and the client out.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_DECODE = re.compile(
    r"Decode batch.*?#running-req: (?P<running>\d+).*?"
    r"(?:accept len: (?P<accept>[\d.]+).*?)?"
    r"gen throughput \(token/s\): (?P<tok_s>[\d.]+)"
    r"(?:.*?#queue-req: (?P<waiting>\d+))?"
)


@dataclass(frozen=True)
class Window:
    """The decode steps between two log lines.

    Attributes:
        running: requests in the batch at its end.
        tok_s: tokens per second of the whole batch.
        accept_len: tokens per request and step (1.0 without speculation).
        clean: no prefill ran in this window or the one before, and the batch had the same
            size at its start. The window before counts because the scheduler logs a prefill
            when it is launched, a step ahead of the decode results it is still to report.
        waiting: requests in the queue at its end.
    """

    running: int
    tok_s: float
    accept_len: float
    clean: bool
    waiting: int = 0

    @property
    def step_ms(self) -> float:
        return 1000 * self.running * self.accept_len / self.tok_s


@dataclass(frozen=True)
class Steady:
    """Decode at one batch size.

    Attributes:
        tok_s: tokens / time over all windows used.
        step_ms: median time of a decode step. Unlike `tok_s` it does not move with the
            luck of simulated acceptance.
        accept_len: tokens / (requests x steps) over the windows.
        windows: how many were used.
    """

    tok_s: float
    step_ms: float
    accept_len: float
    windows: int

    def without_speculation(self) -> Steady:
        """The same decode, known to emit one token a request and step.

        A server that has left speculation goes on printing its last acceptance length.
        """
        return replace(self, step_ms=round(self.step_ms / self.accept_len, 4), accept_len=1.0)


def parse(lines: Iterable[str]) -> list[Window]:
    """All decode windows in a piece of a server's log, in order.

    A line whose throughput is 0 (nothing was emitted) is no measurement and is left out.
    """
    windows: list[Window] = []
    previous: int | None = None
    prefills = [True, False]  # in the window before, in this one; a log piece starts after idling
    for line in lines:
        if "Prefill batch" in line:
            prefills[1] = True
            continue
        match = _DECODE.search(line)
        if not match:
            continue
        running, tok_s = int(match["running"]), float(match["tok_s"])
        clean = previous == running and not any(prefills)
        previous, prefills = running, [prefills[1], False]
        if tok_s > 0 and running > 0:
            accept = float(match["accept"]) if match["accept"] else 1.0
            windows.append(Window(running, tok_s, accept, clean, int(match["waiting"] or 0)))
    return windows


def steady(windows: Sequence[Window], running: int) -> Steady | None:
    """Decode at exactly `running` requests, from clean windows only; None when there are none."""
    used = [window for window in windows if window.clean and window.running == running]
    if not used:
        return None
    steps_ms = [window.step_ms for window in used]
    accept_len = statistics.fmean(window.accept_len for window in used)
    return Steady(
        tok_s=round(1000 * running * accept_len / statistics.fmean(steps_ms), 2),
        step_ms=round(statistics.median(steps_ms), 4),
        accept_len=round(accept_len, 4),
        windows=len(used),
    )


class LogTail:
    """Reads what a growing log file has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def skip(self) -> None:
        """Forget what is there now."""
        self._offset = self._path.stat().st_size

    def read(self) -> list[str]:
        """The complete lines written since `skip` or `read`."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        end = data.rfind(b"\n") + 1
        self._offset += end
        return data[:end].decode(errors="replace").splitlines()
