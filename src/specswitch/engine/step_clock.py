"""How much time decode steps take, by mode: what makes tokens per second comparable.

For metrics only. A clock differs from rank to rank, so no decision may depend on it.
"""

from __future__ import annotations

import time
from collections import deque

from specswitch.control.decision import Mode


class StepClock:
    """Adds up the time of decode steps.

    With the overlap scheduler a step is launched while the one before still runs. So the time of a
    step is from the end of the batch before, or from its own launch where nothing ran, to the
    moment its result has been processed. Prefills and idle time belong to no mode.

    Attributes:
        seconds: time so far, by mode.
    """

    def __init__(self) -> None:
        self.seconds: dict[Mode, float] = dict.fromkeys(Mode, 0.0)
        self._launched: deque[tuple[Mode, float]] = deque()
        self._end_before = 0.0

    def launch(self, mode: Mode) -> None:
        """A decode step is about to be launched."""
        self._launched.append((mode, time.perf_counter()))

    def end(self, *, decode: bool) -> None:
        """The result of the oldest batch that was still running has been processed."""
        now = time.perf_counter()
        if decode and self._launched:
            mode, launched = self._launched.popleft()
            self.seconds[mode] += now - max(launched, self._end_before)
        self._end_before = now
