"""What the controller is told about the server at one decode step.

A decision must come out equal on every tensor-parallel rank, so a sample holds
only counts that the ranks share: no clock, no local timing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Load of the server at one decode step.

    Not validated: one is made per decode step, on the scheduler's critical path.

    Attributes:
        step: number of the decode step; must grow from sample to sample
            (gaps are allowed). Caps and dwells are counted in these steps.
        waiting: requests in the waiting queue (the queue depth).
        running: requests in the decode batch of this step.
        kv_use: fraction of the KV pool in use, 0.0 to 1.0.
        opt_outs: requests in the decode batch that asked not to be speculated for.
        inexact: requests in the decode batch whose answer speculation would change.
    """

    step: int
    waiting: int
    running: int
    kv_use: float
    opt_outs: int = 0
    inexact: int = 0
