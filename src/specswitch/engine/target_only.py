"""One target-only step: the batch that the scheduler built, decoded by the target alone.

Plain DECODE with the plain sampler: no draft, no verify kernels, no tree mask. And no host wait:
the lengths after the step are known before it runs, so the next ``prepare_for_decode`` takes them
from the host and the scheduler can prepare the next step while this one runs, as it does without
speculation.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specswitch.engine import compat
from specswitch.engine.relay import next_lengths

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ModelWorkerBatch, ScheduleBatch
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.managers.utils import GenerationBatchResult

_engine = compat.release().types()


@dataclass
class TargetOnlyDraftInput(_engine.EagleDraftInput):
    """What a target-only step hands to the next step.

    It differs from the engine's draft input in that it carries no ``verify_done`` event, so that
    neither ``filter_batch`` nor ``merge_batch`` waits (managers/schedule_batch.py:2400), and in
    where ``prepare_for_decode`` finds the sequence lengths.
    """

    @property
    def carries_proposal(self) -> bool:
        """Whether a draft has proposed something for the next step."""
        return self.topk_p is not None

    def prepare_for_decode(self, batch: ScheduleBatch) -> None:
        """The engine's own preparation, with the lengths of the host mirror."""
        with compat.release().waits.host_lengths_shown(batch):
            super().prepare_for_decode(batch)


def run_step(
    target: TpModelWorker, batch: ModelWorkerBatch, *, capture_hidden: bool
) -> GenerationBatchResult:
    """Decode one token per request with the target model.

    Args:
        target: the target's worker.
        batch: decode batch as the scheduler built it, [b] requests; ``spec_info`` holds the token
            that each request emitted last (``bonus_tokens`` [b]), ``seq_lens`` [b] int64 does not
            count it yet, ``out_cache_loc`` [b] int64 is its KV slot. Not modified: the scheduler
            keeps it alive while the step runs (managers/scheduler.py:2987), and with it the
            tensors of the schedule stream.
        capture_hidden: return the target's hidden states, [b, hidden].

    Returns:
        The engine's result: ``next_token_ids`` [b], ``accept_lens`` [b] int32 ones on the host,
        stride (``speculative_num_draft_tokens``) 1, a draft input without a proposal, and
        ``next_token_logprobs`` [b, 1] when asked for, as the scheduler indexes it for speculative
        results (managers/scheduler_output_processor_mixin.py:551).
    """
    drafted = batch.spec_info
    size = len(batch.seq_lens)
    step = copy.copy(batch)
    step.spec_info = None
    step.spec_algorithm = _engine.NO_SPECULATION
    step.input_ids = drafted.bonus_tokens.to(torch.int64)
    # DECODE counts the token being decoded; its position is seq_lens - 1
    # (model_executor/forward_batch_info.py:553).
    step.seq_lens = next_lengths(drafted)
    step.seq_lens_cpu = batch.seq_lens_cpu + 1
    step.seq_lens_sum = batch.seq_lens_sum + size
    step.orig_seq_lens = step.seq_lens
    step.capture_hidden_mode = (
        _engine.CaptureHiddenMode.FULL if capture_hidden else _engine.CaptureHiddenMode.NULL
    )

    result = target.forward_batch_generation(step)

    logprobs = result.logits_output.next_token_logprobs
    if logprobs is not None:
        result.logits_output.next_token_logprobs = logprobs.unsqueeze(1)
    # On the host already, which is where the scheduler reads it.
    result.accept_lens = torch.ones(size, dtype=torch.int32)
    result.speculative_num_draft_tokens = 1
    result.next_draft_input = TargetOnlyDraftInput(
        bonus_tokens=result.next_token_ids,
        new_seq_lens=step.seq_lens,
    )
    return result


def is_target_only(result: GenerationBatchResult) -> bool:
    """Whether ``run_step`` made this result."""
    # An isinstance() would go through the ABC machinery of the engine's base class.
    return type(result.next_draft_input) is TargetOnlyDraftInput
