"""SGLang 0.5.12.post1: what the engine tells about itself, and what it can be told at run time.

Reached as ``compat.release().reports``. Line numbers are those of the released wheel,
relative to ``sglang/srt/``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

# managers/scheduler.py:717; metrics (415) exist before the worker, and both after it.
INIT_MODEL_WORKER = "sglang.srt.managers.scheduler.Scheduler.init_model_worker"
# managers/scheduler.py:2244: every request on its way into the waiting queue.
ENQUEUE = "sglang.srt.managers.scheduler.Scheduler._add_request_to_queue"
# managers/scheduler.py:3170: every batch, once its result is on the host.
PROCESS_RESULT = "sglang.srt.managers.scheduler.Scheduler.process_batch_result"
# managers/scheduler_runtime_checker_mixin.py:551, called over and over while nothing runs.
ON_IDLE = "sglang.srt.managers.scheduler.Scheduler.on_idle"
# observability/scheduler_metrics_mixin.py:332 and 613, both called for every decode batch
# (managers/scheduler_output_processor_mixin.py:516 and 628).
COUNT_SPECULATION = "sglang.srt.managers.scheduler.Scheduler.update_spec_metrics"
REPORT_DECODE = "sglang.srt.managers.scheduler.Scheduler.report_decode_stats"
# managers/scheduler.py:3495, on every tensor-parallel rank in the same iteration, because control
# requests are broadcast with the others (1759).
SET_INTERNAL_STATE = "sglang.srt.managers.scheduler.Scheduler.set_internal_state"
# managers/tokenizer_control_mixin.py:793: behind POST /set_internal_state, in the HTTP process.
SEND_INTERNAL_STATE = "sglang.srt.managers.tokenizer_manager.TokenizerManager.set_internal_state"
# managers/tokenizer_manager.py:2103, in the HTTP process, once a request has finished (1853).
REQUEST_FIGURES = (
    "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics"
)


def metric_labels(scheduler: Scheduler) -> dict[str, str] | None:
    """Labels of the engine's own scheduler metrics; None where this process reports none.

    Without the priority, which the engine fills in for its queues only
    (observability/scheduler_metrics_mixin.py:143).
    """
    if not scheduler.current_scheduler_metrics_enabled:
        return None
    labels = scheduler.metrics_collector.labels
    return {name: str(value) for name, value in labels.items() if name != "priority"}


def replica(scheduler: Scheduler) -> int | None:
    """Number of this data-parallel replica; None where there is only one
    (managers/scheduler.py:364)."""
    return scheduler.dp_rank if scheduler.server_args.dp_size > 1 else None


def is_due(scheduler: Scheduler) -> bool:
    """Whether the engine logs and publishes with the decode batch that was just counted
    (observability/scheduler_metrics_mixin.py:646)."""
    interval: int = scheduler.server_args.decode_log_interval
    return scheduler.forward_ct_decode % interval == 0


def uncount_verification(batch: ScheduleBatch) -> None:
    """Take back that the requests of a target-only step were verified.

    The engine has just counted a verification that accepted no draft, for each request that was
    still there (managers/scheduler_output_processor_mixin.py:448-452).
    """
    for request in batch.reqs:
        if not request.is_retracted and not request.finished():
            request.spec_verify_ct -= 1
            request.spec_correct_drafts_histogram[0] -= 1


def interval_counts(scheduler: Scheduler) -> tuple[int, int]:
    """(tokens, verifications) since the engine's last decode report, a verification per request
    and step (observability/scheduler_metrics_mixin.py:332)."""
    return scheduler.spec_num_accept_tokens, scheduler.spec_num_forward_ct


def set_interval_counts(scheduler: Scheduler, counts: tuple[int, int]) -> None:
    """Put other counts in place of ``interval_counts``."""
    scheduler.spec_num_accept_tokens, scheduler.spec_num_forward_ct = counts


def total_counts(scheduler: Scheduler) -> tuple[int, int]:
    """The same since start-up; ``interval_counts`` is added with each report (691)."""
    return scheduler.spec_total_num_accept_tokens, scheduler.spec_total_num_forward_ct


def set_total_counts(scheduler: Scheduler, counts: tuple[int, int]) -> None:
    """Put other counts in place of ``total_counts``."""
    scheduler.spec_total_num_accept_tokens, scheduler.spec_total_num_forward_ct = counts


def correct_request_figures(meta_info: dict[str, Any]) -> None:
    """Make a finished request's acceptance length one of its verified steps.

    The engine divides all its tokens by the number of verifications (managers/tokenizer_manager.py
    :2131), which counts target-only tokens as accepted drafts.
    """
    verified = meta_info.get("spec_verify_ct")
    if verified:
        meta_info["spec_accept_length"] = 1 + meta_info["spec_num_correct_drafts"] / verified


def custom_parameters(request: Req) -> Any:
    """``sampling_params.custom_params`` of a request, as the client sent it, None without.

    The engine carries it from /generate and the OpenAI routes (entrypoints/openai/protocol.py:851)
    to the scheduler as it is, and adds a key of its own there (managers/schedule_batch.py:673).
    """
    return request.sampling_params.custom_params


def internal_state_values(request: Any) -> dict[str, Any]:
    """What a ``SetInternalStateReq`` wants to set (managers/io_struct.py:1693)."""
    return request.server_args


def internal_state_reply(updated: Any) -> Any:
    """Reply to a ``SetInternalStateReq``; ``updated`` becomes one element of the HTTP answer, one
    per scheduler that was asked (managers/tokenizer_control_mixin.py:800)."""
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    reply = SetInternalStateReqOutput(updated=updated, server_args={})
    if hasattr(reply, "error"):  # With the native patch the engine itself answers 400.
        reply.error = updated.get("error")
    return reply
