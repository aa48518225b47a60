"""Which requests to flush after a target-only step, so that no gap outgrows the ring.

One draft forward costs about the same for few positions as for many, because it is bound by reading
the draft's weights, and one over all pending positions of a large batch would make a single step
long. So flushes come every few steps, each with as many requests as keeps up with the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


class FlushPlan:
    """Chooses what to flush; a function of gaps and step count alone, equal on every rank.

    After each call every gap that it left is below the window, whatever joins or leaves the batch,
    as long as each gap has grown by at most one since the call before.

    Args:
        window: positions that the ring keeps per request; at least ``SMALLEST_WINDOW``.
    """

    #: The configuration's lower bound as well.
    SMALLEST_WINDOW = 8
    #: Steps between flushes.
    EVERY = 4
    #: Fewer positions than this take a draft forward as long as this many: up to about here its
    #: matrix products wait for the weights (a GPU does some 200 operations per byte it reads).
    WORTHWHILE = 256

    def __init__(self, window: int) -> None:
        self._window = window
        self._due = window // 2
        # Gaps that become due together are spread over the flushes that come before the first of
        # them would outgrow the window. They are up to EVERY - 1 longer than due by then.
        self._rounds = max(1, (window - self._due) // self.EVERY - 1)
        self._step = 0

    def choose(self, gaps: Sequence[int]) -> list[int]:
        """After a target-only step: which requests to flush now.

        Args:
            gaps: missed positions of each request of the batch, this step's included, 0 to window.

        Returns:
            Indices into ``gaps``, ascending; of requests with something to flush.
        """
        self._step += 1
        if self._step % self.EVERY:
            # Only after a request has missed a flush, which a decode batch never does.
            return [index for index, gap in enumerate(gaps) if gap >= self._window]
        # Those that would outgrow the window before the next flush cannot wait, however many.
        urgent = sum(gap > self._window - self.EVERY for gap in gaps)
        share = math.ceil(max(len(gaps) / self._rounds, self.WORTHWHILE / self._due))
        due = sorted(
            (index for index, gap in enumerate(gaps) if gap >= self._due),
            key=lambda index: -gaps[index],
        )
        return sorted(due[: max(urgent, share)])
