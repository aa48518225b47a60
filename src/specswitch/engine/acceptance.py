"""Acceptance length of speculative steps: lately, and on both sides of the last switches.

Right after a switch back to speculation is where a draft that has missed tokens would show.
"""

from __future__ import annotations

from collections import deque

from specswitch.control.decision import Mode

#: Speculative steps over which the acceptance length is averaged.
WINDOW = 64
#: Speculative steps before and after a switch that are compared with each other.
EDGE = 16


class Mean:
    """Tokens per request and step, over the last steps that were added.

    Args:
        steps: how many are kept.
    """

    def __init__(self, steps: int) -> None:
        self._kept: deque[tuple[int, int]] = deque(maxlen=steps)

    def add(self, tokens: int, requests: int) -> None:
        """A step emitted ``tokens``, bonus tokens included, for ``requests`` requests."""
        self._kept.append((tokens, requests))

    def is_full(self) -> bool:
        """Whether one more would push the oldest out."""
        return len(self._kept) == self._kept.maxlen

    def clear(self) -> None:
        """Start again."""
        self._kept.clear()

    @property
    def value(self) -> float | None:
        """None without a request."""
        requests = sum(count for _, count in self._kept)
        return sum(tokens for tokens, _ in self._kept) / requests if requests else None


class Acceptance:
    """Acceptance lengths, from results in the order of their steps.

    Attributes:
        before: over the last ``EDGE`` speculative steps before the last switch to target_only;
            None until there was one.
        after: over the first ``EDGE`` speculative steps after the last switch back, or as many as
            there have been.
    """

    def __init__(self) -> None:
        self._recent = Mean(WINDOW)
        self._edge = Mean(EDGE)
        self._first = Mean(EDGE)
        self._mode: Mode | None = None
        self._resumed = False
        self.before: float | None = None

    def add(self, mode: Mode, tokens: int, requests: int) -> None:
        """A step in ``mode`` emitted ``tokens`` for ``requests`` requests."""
        if mode is not self._mode:
            self._turn(mode)
        if mode is Mode.SPECULATE and requests:
            self._recent.add(tokens, requests)
            self._edge.add(tokens, requests)
            if self._resumed and not self._first.is_full():
                self._first.add(tokens, requests)

    def _turn(self, mode: Mode) -> None:
        if mode is Mode.TARGET_ONLY:
            self.before = self._edge.value
        elif self._mode is not None:
            self._resumed = True
            self._first.clear()
            # Steps from before the pause would otherwise count as the end of this stretch.
            self._edge.clear()
        self._mode = mode

    @property
    def recent(self) -> float | None:
        """Over the last ``WINDOW`` speculative steps; None before the first."""
        return self._recent.value

    @property
    def after(self) -> float | None:
        return self._first.value
