"""Sees to it that no CUDA graph is captured while the server serves.

The engine recaptures at run time when a batch asks for hidden states in a mode other than the
captured one (model_executor/cuda_graph_runner.py:1163), which takes seconds in which nothing is
served.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


class CaptureWhileServing(RuntimeError):
    """Debug mode: a CUDA graph was captured after start-up."""


class CaptureGuard:
    """Counts captures after start-up, or raises on the first.

    Args:
        raises: raise ``CaptureWhileServing`` instead of counting and letting the engine capture.

    Attributes:
        captures: number of captures since start-up.
    """

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises
        self.captures = 0

    def watch(self, name: str, runner: Any) -> None:
        """From now on a ``runner.capture()`` is one too many."""
        capture = runner.capture

        def caught() -> None:
            self.captures += 1
            if self._raises:
                raise CaptureWhileServing(f"the {name} graphs were captured again while serving")
            logger.warning(
                "specswitch: the engine captures its %s graphs again while serving", name
            )
            capture()

        runner.capture = caught
