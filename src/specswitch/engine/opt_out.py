"""Requests that opt out of speculation.

A client says so in ``sampling_params.custom_params``: ``{"specswitch": {"speculate": false}}``. All
requests of a decode batch share its steps, so a batch with one of them is target-only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

logger = logging.getLogger(__name__)

PARAMETER = "specswitch"
_MARK = "specswitch_opted_out"


class OptOuts:
    """Knows which requests have opted out.

    The mark is put on the engine's request when it arrives, and batches are looked through only
    once there has been one, so that a server without opt-outs pays nothing per step.

    Attributes:
        total: requests that opted out so far.
    """

    def __init__(self) -> None:
        self.total = 0
        self._complained = False

    def note(self, request: Any, parameters: Any) -> None:
        """A request is on its way into the waiting queue, for the first time or once more.

        Args:
            parameters: its custom parameters.
        """
        wish = parameters.get(PARAMETER) if isinstance(parameters, dict) else None
        if wish is None or hasattr(request, _MARK):
            return
        if wish == {"speculate": False} and wish["speculate"] is False:
            setattr(request, _MARK, True)
            self.total += 1
        elif wish != {"speculate": True} and not self._complained:
            self._complained = True
            logger.warning(
                "specswitch: custom_params.%s of request %s is ignored: expected "
                '{"speculate": false}; further ones are ignored without a word',
                PARAMETER,
                request.rid,
            )

    def count(self, requests: Sequence[Any]) -> int:
        """How many of a decode batch's requests have opted out."""
        if not self.total:
            return 0
        return sum(_MARK in vars(request) for request in requests)
