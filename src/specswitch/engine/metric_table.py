"""Every metric specswitch adds to the engine's ``/metrics``: name, kind, labels, meaning.

One table, so that what is exported, what is documented and what the tests look for is the same.
Names follow Prometheus: base units, ``_total`` on counters, a ratio from 0 to 1. Imports nothing of
the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """What a metric's value does."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: full name.
        kind: counters only grow.
        text: what it tells, as shown in ``# HELP``.
        labels: its own labels, besides those of the engine's scheduler metrics.
    """

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"specswitch_{name}_total", Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"specswitch_{name}", Kind.GAUGE, text, labels)


INFO = _gauge(
    "info",
    "Always 1; the labels tell the version, the policy kind and the mode of draft sync.",
    "version",
    "policy",
    "draft_sync",
)

MODE = _gauge("mode", "1 for the mode of the last decode step, 0 for the other.", "mode")
OVERRIDE = _gauge(
    "override", "1 for what the operator chose: auto, speculate or target_only.", "mode"
)
FAILED = _gauge("safe_mode_active", "1 while the safe mode stands in for a policy that failed.")
STEPS = _counter("decode_steps", "Decode steps launched, by mode.", "mode")
TOKENS = _counter(
    "decode_tokens",
    "Tokens emitted by decode steps, by mode; those for requests that had just ended included.",
    "mode",
)
REQUEST_STEPS = _counter(
    "decode_request_steps", "Decode steps times the requests in each, by mode.", "mode"
)
SECONDS = _counter(
    "decode_seconds", "Time that decode steps took, by mode; prefills are not counted.", "mode"
)
DECISIONS = _counter("decisions", "Decode steps by the reason for their mode.", "reason")
SWITCHES = _counter("switches", "Changes of mode.", "from", "to", "reason")

WAITING = _gauge("waiting_requests", "Requests in the waiting queue at the last decode step.")
RUNNING = _gauge("running_requests", "Requests in the batch of the last decode step.")
KV_USE = _gauge("kv_use_ratio", "Fraction of the KV pool in use at the last decode step.")
ACCEPTANCE = _gauge(
    "acceptance_length",
    "Tokens per request and speculative step, bonus token included, over the last 64 such steps.",
)
EDGE_ACCEPTANCE = _gauge(
    "switch_acceptance_length",
    "Acceptance length of the 16 speculative steps before the last switch to target_only, and of "
    "the first 16 after the last switch back.",
    "side",
)

VOTES = _gauge("guard_votes", "Steps in a row that have asked for a change of mode.")
VOTES_NEEDED = _gauge("guard_votes_needed", "Votes that a change of mode takes.")
DWELL_LEFT = _gauge(
    "guard_dwell_steps_left", "Decode steps for which the policy cannot change the mode yet."
)
WINDOW_SWITCHES = _gauge("guard_window_switches", "Switches in the last 1000 decode steps.")
SWITCH_CAP = _gauge("guard_switch_cap", "Switches allowed in any 1000 decode steps.")
THRESHOLD = _gauge(
    "threshold", "Number in effect for a key of the configuration, as in the YAML file.", "key"
)
MAX_RUNNING = _gauge(
    "max_running_requests", "Requests that the engine runs at a time in either mode."
)
GRAPH_MAX_BATCH = _gauge(
    "graph_max_batch_requests",
    "Largest decode batch that a CUDA graph of the mode was captured for; 0: none.",
    "mode",
)

MISSED = _counter("draft_sync_missed_positions", "Positions decoded without the draft.")
SYNCED = _counter(
    "draft_sync_positions",
    "Missed positions by what became of them: flushed, caught_up or discarded.",
    "outcome",
)
SYNC_RUNS = _counter("draft_sync_runs", "Draft forwards for missed positions, by kind.", "kind")
TRUNCATED = _counter(
    "draft_sync_truncated_prefixes",
    "Requests whose prefix was cached without the positions that the draft had missed.",
)
PENDING = _gauge("draft_sync_pending_positions", "Positions that the draft is behind with now.")
RING_BYTES = _gauge("draft_sync_ring_bytes", "Memory of the ring that keeps missed positions.")

CAPTURES = _counter(
    "graph_captures_while_serving", "CUDA graphs captured after start-up; should stay 0."
)
OPT_OUTS = _counter("opted_out_requests", "Requests that opted out of speculation.")
INEXACT = _counter(
    "inexact_requests",
    "Requests with an option that speculation answers otherwise, by option.",
    "option",
)
COMMANDS = _counter("commands", "Commands of the operator, by outcome.", "outcome")
ERRORS = _counter(
    "errors", "Exceptions that were contained, by part: policy, listener or telemetry.", "part"
)

ALL: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
