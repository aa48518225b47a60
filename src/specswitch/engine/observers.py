"""Hooks that only watch: what they call may fail, and generation goes on.

Listeners of switches are attached here too, once the worker exists and the ranks are known.
"""

from __future__ import annotations

from typing import Any

from specswitch.engine import compat
from specswitch.engine.event_log import open_event_log
from specswitch.engine.scheduler import is_switching

_EXPORTER = "specswitch_exporter"
_EVENT_LOG = "specswitch_event_log"


def attach(_none: None, scheduler: Any) -> None:
    """AFTER ``Scheduler.init_model_worker``: metrics, where the engine reports its own, and
    the event log."""
    worker = compat.release().scheduler_worker(scheduler)
    if is_switching(worker):
        worker.containment.run(_attach_metrics, scheduler, worker)
        worker.containment.run(_attach_event_log, scheduler, worker)


def _attach_metrics(scheduler: Any, worker: Any) -> None:
    from specswitch.engine.telemetry import PrometheusExporter

    labels = compat.release().reports.metric_labels(scheduler)
    if labels is not None:
        exporter = PrometheusExporter(labels)
        setattr(scheduler, _EXPORTER, exporter)
        exporter.publish(worker)


def _attach_event_log(scheduler: Any, worker: Any) -> None:
    log = open_event_log(worker, compat.release().reports.replica(scheduler))
    if log is not None:
        setattr(scheduler, _EVENT_LOG, log)


def note_request(scheduler: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """BEFORE ``Scheduler._add_request_to_queue``: see whether it opts out of speculation, or asks
    for what speculation cannot give."""
    worker = compat.release().scheduler_worker(scheduler)
    if is_switching(worker):
        parameters = compat.release().reports.custom_parameters(request)
        worker.containment.run(worker.opt_outs.note, request, parameters)
        worker.containment.run(worker.inexact.note, request)


def end_batch(_none: None, scheduler: Any, batch: Any, _result: Any) -> None:
    """AFTER ``Scheduler.process_batch_result``: take the time; publish with the engine."""
    release = compat.release()
    worker = release.scheduler_worker(scheduler)
    if not is_switching(worker):
        return
    decode = release.is_decode(batch)
    worker.containment.run(worker.stats.clock.end, decode=decode)
    if not decode:
        return
    log = getattr(scheduler, _EVENT_LOG, None)
    if log is not None:
        worker.containment.run(log.after_step)
    if release.reports.is_due(scheduler):
        _publish(scheduler, worker)


def publish_when_idle(scheduler: Any) -> None:
    """BEFORE ``Scheduler.on_idle``, which is called again and again: once per idle time."""
    worker = compat.release().scheduler_worker(scheduler)
    exporter = getattr(scheduler, _EXPORTER, None)
    if exporter is not None and exporter.is_behind(worker):
        worker.containment.run(exporter.publish, worker)
    log = getattr(scheduler, _EVENT_LOG, None)
    if log is not None:
        worker.containment.run(log.idle)


def _publish(scheduler: Any, worker: Any) -> None:
    exporter = getattr(scheduler, _EXPORTER, None)
    if exporter is not None:
        worker.containment.run(exporter.publish, worker)
