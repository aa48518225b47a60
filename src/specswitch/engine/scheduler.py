"""Hooks on the scheduler: load in, lengths kept on the host, results counted, state shown.

The worker does not see the scheduler, and the scheduler must not wait for a target-only step;
these two facts are all that is hooked on the step itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specswitch.engine import compat

STATE_KEY = "specswitch"


def run_batch(
    original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any
) -> Any:
    """AROUND ``Scheduler.run_batch``: load in before a decode step, lengths on after target-only.

    The engine sets ``batch.seq_lens`` to a tensor that the forward stream is still to compute
    (managers/scheduler.py:3066) and waits for it in the next ``prepare_for_decode``. After a
    target-only step the new lengths are the old ones plus one, so they are computed here on the
    schedule stream, from a tensor that is already there, and on the host.
    """
    release = compat.release()
    worker = release.scheduler_worker(scheduler)
    if not hasattr(worker, "observe_load") or not release.is_decode(batch):
        return original(scheduler, batch, *args, **kwargs)
    worker.observe_load(*release.read_load(scheduler, batch))
    lengths, lengths_cpu = batch.seq_lens, batch.seq_lens_cpu
    result = original(scheduler, batch, *args, **kwargs)
    if worker.is_target_only(result):
        # Out of place: the step in flight holds the old tensors.
        batch.seq_lens = lengths + 1
        batch.seq_lens_cpu = lengths_cpu + 1
        batch.seq_lens_sum += len(lengths_cpu)
    return result


def count_result(_tokens: Any, scheduler: Any, result: Any, batch: Any) -> None:
    """AFTER ``Scheduler._resolve_spec_overlap_tokens``: tokens and acceptance of a finished step.

    Here the counts have reached the host (managers/scheduler_output_processor_mixin.py:405).
    """
    worker = compat.release().scheduler_worker(scheduler)
    if hasattr(worker, "record_result"):
        worker.record_result(result, len(batch.reqs))


def show_state(reply: Any, scheduler: Any, _request: Any) -> Any:
    """AFTER ``Scheduler.get_internal_state``: add our state.

    ``GET /server_info`` shows it as ``internal_states[i]["specswitch"]``.
    """
    worker = compat.release().scheduler_worker(scheduler)
    if hasattr(worker, "snapshot"):
        reply.internal_state[STATE_KEY] = worker.snapshot()
    return reply
