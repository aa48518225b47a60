"""Puts a worker's counters onto the engine's ``/metrics``.

Per decode step only plain integers are counted. They are read and handed to Prometheus when the
engine publishes its own scheduler metrics, every ``--decode-log-interval`` decode batches, and once
when the server falls idle, so that nothing stays unsaid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from specswitch import __version__
from specswitch.control.decision import Mode
from specswitch.engine import metric_table as table
from specswitch.engine.metric_table import Kind, Metric
from specswitch.steering import AUTO, MODES


class Reading(NamedTuple):
    """The value of one metric for one set of its own labels."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def readings(worker: Any) -> Iterator[Reading]:
    """All values of a switching worker now. Those that are not known are left out."""
    yield from _mode(worker)
    yield from _totals(worker.stats, worker.controller.counters)
    yield from _inputs(worker)
    yield from _guard(worker)
    yield from _draft_sync(worker.sync)
    yield from _health(worker)


def _mode(worker: Any) -> Iterator[Reading]:
    controller, config = worker.controller, worker.steering.config
    yield Reading(table.INFO, (__version__, config.policy.kind, config.draft_sync.mode), 1)
    for mode in Mode:
        yield Reading(table.MODE, (mode.value,), mode is controller.mode)
    chosen = controller.overridden or AUTO
    for name in MODES:
        yield Reading(table.OVERRIDE, (name,), name == chosen)
    yield Reading(table.FAILED, (), controller.failure is not None)


def _totals(stats: Any, counters: Any) -> Iterator[Reading]:
    for mode in Mode:
        labels = (mode.value,)
        yield Reading(table.STEPS, labels, stats.steps[mode])
        yield Reading(table.TOKENS, labels, stats.tokens[mode])
        yield Reading(table.REQUEST_STEPS, labels, stats.request_steps[mode])
        yield Reading(table.SECONDS, labels, stats.clock.seconds[mode])
    for reason, count in counters.reasons.items():
        if count:
            yield Reading(table.DECISIONS, (reason.value,), count)
    for (source, target, reason), count in stats.switches_by_cause.items():
        yield Reading(table.SWITCHES, (source.value, target.value, reason.value), count)


def _inputs(worker: Any) -> Iterator[Reading]:
    load, acceptance = worker.load, worker.stats.acceptance
    if load is not None:
        yield Reading(table.WAITING, (), load.waiting)
        yield Reading(table.RUNNING, (), load.running)
        yield Reading(table.KV_USE, (), load.kv_use)
    if acceptance.recent is not None:
        yield Reading(table.ACCEPTANCE, (), acceptance.recent)
    for side, value in (("before", acceptance.before), ("after", acceptance.after)):
        if value is not None:
            yield Reading(table.EDGE_ACCEPTANCE, (side,), value)


_HOLDS = {
    "votes": table.VOTES,
    "votes_needed": table.VOTES_NEEDED,
    "dwell_left": table.DWELL_LEFT,
    "switches_in_window": table.WINDOW_SWITCHES,
    "switch_cap": table.SWITCH_CAP,
}


def _guard(worker: Any) -> Iterator[Reading]:
    for name, value in worker.controller.holds().items():
        yield Reading(_HOLDS[name], (), value)
    for key, value in worker.steering.numbers.items():
        yield Reading(table.THRESHOLD, (key,), value)
    yield Reading(table.MAX_RUNNING, (), worker.max_running_requests)
    graphs = worker.graphs
    yield Reading(table.GRAPH_MAX_BATCH, (Mode.SPECULATE.value,), graphs.verify_max_batch)
    yield Reading(table.GRAPH_MAX_BATCH, (Mode.TARGET_ONLY.value,), graphs.max_batch)
    yield Reading(table.CAPTURES, (), graphs.captures)


def _draft_sync(sync: Any) -> Iterator[Reading]:
    counts = sync.counts
    yield Reading(table.MISSED, (), counts.missed)
    for outcome in ("flushed", "caught_up", "discarded"):
        yield Reading(table.SYNCED, (outcome,), getattr(counts, outcome))
    yield Reading(table.SYNC_RUNS, ("flush",), counts.flushes)
    yield Reading(table.SYNC_RUNS, ("catch_up",), counts.catch_ups)
    yield Reading(table.TRUNCATED, (), counts.truncated_prefixes)
    yield Reading(table.PENDING, (), counts.pending)
    yield Reading(table.RING_BYTES, (), sync.ring_bytes)


def _health(worker: Any) -> Iterator[Reading]:
    counters = worker.controller.counters
    yield Reading(table.ERRORS, ("policy",), counters.policy_errors)
    yield Reading(table.ERRORS, ("listener",), counters.listener_errors)
    yield Reading(table.ERRORS, ("telemetry",), worker.containment.errors)
    yield Reading(table.OPT_OUTS, (), worker.opt_outs.total)
    for option, requests in worker.inexact.totals().items():
        yield Reading(table.INEXACT, (option,), requests)
    yield Reading(table.COMMANDS, ("accepted",), worker.steering.accepted)
    yield Reading(table.COMMANDS, ("refused",), worker.steering.refused)


class PrometheusExporter:
    """Hands readings on to ``prometheus_client``, those that have changed.

    In the engine's multi-process mode each value lies in a memory-mapped file of this process,
    which the HTTP process reads when it is scraped: a scrape costs the scheduler nothing. The
    engine sets that mode up in the parent (entrypoints/engine.py:1252), so the library must not be
    imported before.

    Args:
        labels: labels of the engine's own scheduler metrics.

    Raises:
        ValueError: a label of the engine (``--extra-metric-labels``) has the name of one of ours.
        OSError: the directory of the metrics cannot be written to.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        from prometheus_client import Counter, Gauge

        self._common = tuple(labels.values())
        self._families = {
            metric.name: Counter(metric.name, metric.text, (*labels, *metric.labels))
            if metric.kind is Kind.COUNTER
            else Gauge(
                metric.name,
                metric.text,
                (*labels, *metric.labels),
                # As the engine's own gauges: one process reports each set of labels.
                multiprocess_mode="mostrecent",
            )
            for metric in table.ALL
        }
        self._series: dict[tuple[str, tuple[str, ...]], _Series] = {}
        self._told: object = None

    def is_behind(self, worker: Any) -> bool:
        """Whether something has happened since the last ``publish``."""
        return _progress(worker) != self._told

    def publish(self, worker: Any) -> None:
        """Bring ``/metrics`` up to date."""
        # First: a failure is tried again with the next batch, not in every pass of an idle loop.
        self._told = _progress(worker)
        current = set()
        for metric, labels, value in readings(worker):
            key = metric.name, labels
            series = self._series.get(key)
            if series is None:
                child = self._families[metric.name].labels(*self._common, *labels)
                series = self._series[key] = _Series(metric.kind, child)
            series.put(value)
            current.add(key)
        for key in self._series.keys() - current:
            self._series[key].retire()


def _progress(worker: Any) -> tuple[int, ...]:
    steering = worker.steering
    return sum(worker.stats.request_steps.values()), steering.accepted, steering.refused


class _Series:
    """One set of labels of a metric, with the value it has in Prometheus."""

    def __init__(self, kind: Kind, child: Any) -> None:
        self._kind = kind
        self._child = child
        self._known: float | None = None

    def put(self, value: float) -> None:
        if value == self._known:
            return
        if self._kind is Kind.COUNTER:
            self._child.inc(value - (self._known or 0))
        else:
            self._child.set(value)
        # Only now: what failed is tried again with the next value, and nothing counts twice.
        self._known = value

    def retire(self) -> None:
        """There is no such value any more, as of a threshold that is no longer in effect.

        The multi-process files know no removal, so a gauge becomes NaN, which draws nothing.
        """
        if self._kind is Kind.GAUGE and self._known is not None:
            self._child.set(float("nan"))
            self._known = None
