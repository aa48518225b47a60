"""Hooks on the scheduler: load in, lengths kept on the host, results counted, state shown.

The worker does not see the scheduler, and the scheduler must not wait for a target-only step: that
is all that is hooked on the step itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specswitch.control.decision import Mode
from specswitch.engine import compat
from specswitch.engine.relay import announce_target_only

STATE_KEY = "specswitch"


def is_switching(worker: Any) -> bool:
    """Whether a scheduler's worker is one of ours; told by its interface, so that a server without
    specswitch never imports it."""
    return hasattr(worker, "begin_step")


def decide_step(worker: Any, batch: Any, waiting: int, running: int, kv_use: float) -> Mode:
    """The mode in which to run a decode batch that is about to be launched; takes the load as
    ``begin_step`` does."""
    return worker.begin_step(
        waiting,
        running,
        kv_use,
        worker.opt_outs.count(batch.reqs),
        worker.inexact.count(batch.reqs),
    )


def run_batch(
    original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND ``Scheduler.run_batch``: decide the mode; do what target-only needs on this stream.

    That is what the engine itself does here for plain decode, and leaves to the forward stream for
    speculation. The KV slots are read from the request table now, because the next iteration may
    give a finished request's row away while the step is still running. And the new lengths, which
    the engine otherwise takes from a tensor that is still to be computed
    (managers/scheduler.py:3066), are the old ones plus one, here and on the host, so that nothing
    has to wait for them.
    """
    release = compat.release()
    worker = release.scheduler_worker(scheduler)
    if not is_switching(worker) or not release.is_decode(batch):
        return original(scheduler, batch, *args, **kwargs)
    mode = decide_step(worker, batch, *release.read_load(scheduler, batch))
    if mode is Mode.SPECULATE:
        return original(scheduler, batch, *args, **kwargs)
    batch.out_cache_loc = release.kv_slots(batch)
    # The engine makes this ``batch.seq_lens`` once the step is launched.
    announce_target_only(batch, batch.seq_lens + 1)
    result = original(scheduler, batch, *args, **kwargs)
    # Out of place: the step in flight holds the old tensor.
    batch.seq_lens_cpu = batch.seq_lens_cpu + 1
    batch.seq_lens_sum += len(batch.reqs)
    return result


def count_result(_tokens: Any, scheduler: Any, result: Any, batch: Any) -> None:
    """AFTER ``Scheduler._resolve_spec_overlap_tokens``: tokens and acceptance of a finished step.

    Here the counts have reached the host (managers/scheduler_output_processor_mixin.py:405).
    """
    worker = compat.release().scheduler_worker(scheduler)
    if is_switching(worker):
        worker.containment.run(worker.record_result, result, batch)


def show_state(reply: Any, scheduler: Any, _request: Any) -> Any:
    """AFTER ``Scheduler.get_internal_state``: add our state.

    ``GET /server_info`` shows it as ``internal_states[i]["specswitch"]``; null: see the log.
    """
    worker = compat.release().scheduler_worker(scheduler)
    if is_switching(worker):
        reply.internal_state.update(state(worker))
    return reply


def state(worker: Any) -> dict[str, Any]:
    """What ``/server_info`` says of a switching worker."""
    return {STATE_KEY: worker.containment.run(worker.snapshot)}
