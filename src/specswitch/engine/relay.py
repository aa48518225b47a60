"""Hooks on the engine's future map: what one step leaves on the device for the next.

A speculative step needs the draft's proposal and hidden states of the step before; a target-only
step needs the emitted tokens alone, and the kernels that read and store the rest show at small
batches. Whatever a request lacks when it speculates again, draft sync puts in place first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specswitch.engine import compat
from specswitch.engine.debug import debug_enabled

_BONUS_ONLY = "specswitch_bonus_only"


def want_bonus_only(batch: Any) -> None:
    """The step about to run on this schedule batch reads nothing but the emitted tokens."""
    setattr(batch.spec_info, _BONUS_ONLY, True)


def resolve_future(original: Callable[..., None], future_map: Any, batch: Any) -> None:
    """AROUND ``FutureMap.resolve_future``, on the forward stream."""
    if getattr(batch.spec_info, _BONUS_ONLY, False):
        compat.release().resolve_bonus_tokens(
            future_map, batch.spec_info, with_lengths=debug_enabled()
        )
    else:
        original(future_map, batch)


def store_future(
    original: Callable[..., None], future_map: Any, future_indices: Any, result: Any
) -> None:
    """AROUND ``FutureMap.store_to_map``, on the forward stream."""
    if getattr(result.next_draft_input, "carries_proposal", True):
        original(future_map, future_indices, result)
    else:
        compat.release().store_bonus_tokens(future_map, future_indices, result.next_draft_input)
