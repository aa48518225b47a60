"""Keeps the engine's own acceptance figures true: a target-only step verifies nothing.

The engine takes every decode result of a speculative server for a verification. Left alone, each
target-only step would count as one that accepted no draft, and acceptance length and rate (in
/metrics, in the decode log, in /server_info and in a request's meta_info) would sink with the share
of target-only steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specswitch.engine import compat
from specswitch.engine.scheduler import is_switching

_LAST = "specswitch_last_result"
_INTERVAL = "specswitch_last_interval"
# Before the first verification: what target-only decode emits, one token a request and step.
_NO_INTERVAL = (1, 1)


def uncount_result(_tokens: Any, scheduler: Any, result: Any, batch: Any) -> None:
    """AFTER ``Scheduler._resolve_spec_overlap_tokens``: not a verification for its requests."""
    worker = compat.release().scheduler_worker(scheduler)
    if is_switching(worker):
        target_only = worker.is_target_only(result)
        setattr(scheduler, _LAST, target_only)
        if target_only:
            worker.containment.run(compat.release().reports.uncount_verification, batch)


def count_speculation(original: Callable[..., None], scheduler: Any, *counts: Any) -> None:
    """AROUND ``Scheduler.update_spec_metrics``: nor for the server.

    Called with the result that was resolved last, from the same function
    (managers/scheduler_output_processor_mixin.py:488 and 516).
    """
    if not getattr(scheduler, _LAST, False):
        original(scheduler, *counts)


def report_decode(original: Callable[..., None], scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """AROUND ``Scheduler.report_decode_stats``: an interval without a verification has no figures.

    The engine would divide by zero (observability/scheduler_metrics_mixin.py:681). It is shown the
    last interval that had one instead, so that its gauges stand still, and the totals stay.
    """
    reports = compat.release().reports
    if not reports.is_due(scheduler) or not is_switching(
        compat.release().scheduler_worker(scheduler)
    ):
        original(scheduler, *args, **kwargs)
        return
    interval = reports.interval_counts(scheduler)
    if interval[1]:
        setattr(scheduler, _INTERVAL, interval)
        original(scheduler, *args, **kwargs)
        return
    totals = reports.total_counts(scheduler)
    reports.set_interval_counts(scheduler, getattr(scheduler, _INTERVAL, _NO_INTERVAL))
    try:
        original(scheduler, *args, **kwargs)
    finally:
        reports.set_interval_counts(scheduler, interval)
        reports.set_total_counts(scheduler, totals)


def correct_request(_none: None, manager: Any, meta_info: dict[str, Any], *_args: Any) -> None:
    """AFTER ``TokenizerManager._calculate_spec_decoding_metrics``, in the HTTP process."""
    from specswitch.engine.settings import Settings

    if Settings.of(manager.server_args) is not None:
        compat.release().reports.correct_request_figures(meta_info)
