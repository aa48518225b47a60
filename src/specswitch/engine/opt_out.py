"""Requests that opt out of speculation.

A client says so in ``sampling_params.custom_params``: ``{"specswitch": {"speculate": false}}``. All
requests of a decode batch share its steps, so a batch with one of them is target-only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from specswitch.engine.request_mark import RequestMark

logger = logging.getLogger(__name__)

PARAMETER = "specswitch"


class OptOuts:
    """Knows which requests have opted out; they are marked when they arrive.

    Attributes:
        total: requests that opted out so far.
    """

    def __init__(self) -> None:
        self.total = 0
        self._mark = RequestMark("specswitch_opted_out")
        self._complained = False

    def note(self, request: Any, parameters: Any) -> None:
        """A request is on its way into the waiting queue, for the first time or once more.

        Args:
            parameters: its custom parameters.
        """
        wish = parameters.get(PARAMETER) if isinstance(parameters, dict) else None
        if wish is None or self._mark.is_on(request):
            return
        if wish == {"speculate": False} and wish["speculate"] is False:
            self._mark.put(request)
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
        return self._mark.count(requests)
