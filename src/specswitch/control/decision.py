"""The words a decision is made of: mode, reason, decision, switch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from specswitch.control.load import LoadSample


class Mode(str, Enum):
    """How a decode step is run. The values appear in flags, YAML and metrics."""

    # Enum's own is a Python function, and modes and reasons are keys of counters on every step.
    __hash__ = str.__hash__

    SPECULATE = "speculate"
    TARGET_ONLY = "target_only"

    def __str__(self) -> str:
        # The default of a mixed-in enum differs between Python 3.11 and 3.12.
        return self.value


class Reason(str, Enum):
    """Why a step has its mode.

    On a step that switches it names the cause; on any other step, what keeps the
    mode as it is.
    """

    __hash__ = str.__hash__

    START = "start"
    """No sample has been seen yet."""

    WAITING_HIGH = "waiting_high"
    """The waiting queue reached its enter mark."""
    RUNNING_HIGH = "running_high"
    """The decode batch reached its enter mark."""
    KV_HIGH = "kv_high"
    """The use of the KV pool reached its enter mark."""
    LOAD_LOW = "load_low"
    """Waiting, running and KV use are all at or below their resume marks."""
    STEADY = "steady"
    """No mark asks for a change."""
    FIXED = "fixed"
    """A fixed policy asks for its mode."""
    PERIODIC = "periodic"
    """A periodic policy alternates by the step number."""

    BATCH_LIMIT = "batch_limit"
    """The decode batch is larger than `max_speculative_batch`."""
    EXACTNESS = "exactness"
    """The decode batch holds a request whose answer speculation would change."""
    REQUEST_OPT_OUT = "request_opt_out"
    """The decode batch holds a request that asked not to be speculated for."""
    OVERRIDE = "override"
    """The operator chose the mode."""
    SAFE_MODE = "safe_mode"
    """The policy or a guard failed; the configured safe mode stands in for them."""

    VOTES = "votes"
    """A change is asked for, but by too few steps in a row."""
    DWELL = "dwell"
    """A change is asked for, too soon after the last switch."""
    SWITCH_CAP = "switch_cap"
    """Resuming is asked for, but no more switches fit into 1000 steps."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Decision:
    """The mode of one decode step.

    Attributes:
        step: step number of the sample that was decided on; -1 before the first.
        mode: how to run the step.
        reason: why; see `Reason`.
        switched: whether `mode` differs from that of the decision before.
    """

    step: int
    mode: Mode
    reason: Reason
    switched: bool


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of mode, as listeners are told about it.

    Attributes:
        step: the first step in the new mode.
        source: mode before.
        target: mode from this step on.
        reason: the cause.
        sample: the load that was decided on.
    """

    step: int
    source: Mode
    target: Mode
    reason: Reason
    sample: LoadSample
