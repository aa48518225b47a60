"""Hooks on the engine's future map: what one step leaves on the device for the next.

A speculative step needs the draft's proposal and hidden states of the step before; a target-only
step needs the emitted tokens alone, and the kernels that read and store the rest show at small
batches. Whatever a request lacks when it speculates again, draft sync puts in place first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specswitch.engine import compat
from specswitch.engine.debug import debug_enabled

if TYPE_CHECKING:
    import torch

# A field of the engine's where it has the native patch.
_NEXT_LENGTHS = "next_seq_lens"


def announce_target_only(batch: Any, next_lengths: torch.Tensor) -> None:
    """The step about to run on this schedule batch is target-only.

    Args:
        next_lengths: [b] int64 sequence lengths after the step, computed on the schedule stream, so
            that the step itself need not.
    """
    setattr(batch.spec_info, _NEXT_LENGTHS, next_lengths)


def next_lengths(draft_input: Any) -> torch.Tensor | None:
    """What was announced for the step that reads ``draft_input``; None for a speculative step."""
    return getattr(draft_input, _NEXT_LENGTHS, None)


def resolve_future(original: Callable[..., None], future_map: Any, batch: Any) -> None:
    """AROUND ``FutureMap.resolve_future``, on the forward stream."""
    if next_lengths(batch.spec_info) is None:
        original(future_map, batch)
    else:
        compat.release().resolve_bonus_tokens(
            future_map, batch.spec_info, with_lengths=debug_enabled()
        )


def store_future(
    original: Callable[..., None], future_map: Any, future_indices: Any, result: Any
) -> None:
    """AROUND ``FutureMap.store_to_map``, on the forward stream.

    What a target-only step does not store, nobody reads, but for one case: with a grammar in the
    batch the engine processes a step's result before it launches the next one
    (managers/scheduler.py:1585), so a request that has just ended, and with it what draft sync knew
    of it, still takes part. What it drafts is discarded; it must only not start from a token that
    does not exist. So the engine's buffers, which it does not initialise, begin as zeros.
    """
    if getattr(result.next_draft_input, "carries_proposal", True):
        with compat.release().zeroed_when_made(future_map, future_indices):
            original(future_map, future_indices, result)
    else:
        compat.release().store_bonus_tokens(
            future_map, future_indices, result.next_draft_input, with_lengths=debug_enabled()
        )
