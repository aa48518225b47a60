"""The configuration: frozen models with their ranges, defaults and descriptions.

The descriptions end up in the JSON Schema, so editors show them. Every rule a value has
to keep is stated here, next to the value; how a broken rule is worded for the user is
in `config_problems`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from specswitch.control.decision import Mode

MAX_COUNT = 1_000_000
"""No count of requests or steps is sensibly larger; one that is, is a slip of the hand."""

# Strict: pydantic would otherwise take `true` for 1 and "16" for 16.
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
PositiveCount = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
# YAML 1.1 reads a bare `off` as false.
SyncMode = Annotated[
    Literal["deferred", "every_step", "off"],
    BeforeValidator(lambda mode: "off" if mode is False else mode),
]
Exactness = Annotated[
    Literal["strict", "warn", "off"],
    BeforeValidator(lambda setting: "off" if setting is False else setting),
]
Fraction = Annotated[float, Field(strict=True, ge=0.0, le=1.0, allow_inf_nan=False)]


def cross_field_error(message: str, *, about: str, places: list[str]) -> PydanticCustomError:
    """An error of two values that do not fit together.

    Args:
        message: what is wrong and what to change, without braces.
        about: key to put before the message, dotted, below the model that raises; empty: the
            model's own, none for the whole configuration.
        places: keys that could be to blame, likeliest first, in the same form.
    """
    return PydanticCustomError(
        "cross_field",
        "{message}",
        {
            "message": message,
            "about": about,
            "places": places,
        },
    )


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class _MarksModel(_Model):
    _fixed_default: ClassVar[bool] = True  # of `resume`

    @field_validator("resume", check_fields=False)
    @classmethod
    def _resume_below_enter(cls, resume: float, info: ValidationInfo) -> float:
        enter = info.data.get("enter")  # absent when it was itself refused
        if enter is not None and not resume < enter:
            default = cls._fixed_default and resume == cls.model_fields["resume"].default
            named = f"{resume}, the default" if default else f"{resume}"
            raise cross_field_error(
                f"resume ({named}) must be below enter ({enter}), or the mode would flip at "
                "one load; lower resume or raise enter",
                about="",
                places=["resume", "enter"],
            )
        return resume


class WaitingMarks(_MarksModel):
    """Marks for the waiting queue, in requests."""

    enter: PositiveCount = 16
    """Target-only from this many waiting requests on."""
    resume: Count = Field(default=2, validate_default=True)
    """Waiting requests speak against speculating until they are this few or fewer; below
    `enter`."""


class RunningMarks(_MarksModel):
    """Marks for the decode batch, in requests."""

    _fixed_default: ClassVar[bool] = False

    enter: PositiveCount = 65
    """Target-only from this many running requests on; at most `max_speculative_batch` + 1,
    which is also the default."""
    resume: Count = Field(default=48, validate_default=True)
    """Running requests speak against speculating until they are this few or fewer; below
    `enter`. Default: three quarters of `enter` - 1."""


class KvUseMarks(_MarksModel):
    """Marks for the KV pool, as the fraction of its tokens that is in use."""

    enter: Annotated[Fraction, Field(gt=0.0)] = 0.90
    """Target-only from this fraction of the KV pool on, above 0 and up to 1."""
    resume: Fraction = Field(default=0.75, validate_default=True)
    """KV use speaks against speculating until it is this fraction or less; below `enter`."""


class QueueDepthConfig(_Model):
    """Target-only while the server is busy. Any quantity at its enter mark is enough to leave
    speculation; to resume, all must be at or below their resume marks."""

    kind: Literal["queue_depth"] = "queue_depth"
    """Switch by queue depth, batch size and KV use."""
    waiting: WaitingMarks = WaitingMarks()
    """Marks for the waiting queue, in requests."""
    running: RunningMarks | None = RunningMarks()
    """Marks for the decode batch, in requests; null: not looked at. When left out they follow
    from `max_speculative_batch`."""
    kv_use: KvUseMarks | None = KvUseMarks()
    """Marks for the fraction of the KV pool in use; null: not looked at."""


class FixedConfig(_Model):
    """Always one mode: baselines and tests. Only `max_speculative_batch` and the operator's
    override still change it."""

    kind: Literal["fixed"]
    """Always one mode."""
    mode: Mode
    """The mode: speculate or target_only."""


class PeriodicConfig(_Model):
    """Alternates the mode whatever the load: tests and benchmarks of switching itself. The
    guard does not apply."""

    kind: Literal["periodic"]
    """Alternate every `period` decode steps."""
    period: PositiveCount
    """Decode steps in each mode before the other one; starts with speculate."""


PolicyConfig = Annotated[
    QueueDepthConfig | FixedConfig | PeriodicConfig, Field(discriminator="kind")
]

POLICY_MODELS: dict[str, type[BaseModel]] = {
    "queue_depth": QueueDepthConfig,
    "fixed": FixedConfig,
    "periodic": PeriodicConfig,
}


class GuardConfig(_Model):
    """What holds back a change of mode. Not for policy kind periodic."""

    dwell_steps: Count = 32
    """Least number of decode steps in a mode before the policy may change it; 0: none."""
    votes: PositiveCount = 3
    """Decode steps in a row that must ask for a change before it happens; 1: the first one is
    enough."""
    max_switches_per_1000_steps: Annotated[int, Field(strict=True, ge=2, le=1000)] = 20
    """Most switches in any 1000 decode steps in a row, 2 to 1000. It can only delay resuming,
    never leaving speculation."""


class DraftSyncConfig(_Model):
    """How the draft's KV follows what was decoded without it."""

    mode: SyncMode = "deferred"
    """deferred: many positions at a time and before resuming; every_step: after each target-only
    step; off: never, resumed requests draft cold."""
    window: Annotated[int, Field(strict=True, ge=8, le=65536)] = 64
    """Positions kept per request for mode deferred, 8 to 65536; memory grows with it, and the
    start-up log says how much it takes."""


class EventLogConfig(_Model):
    """A file of JSON lines for later: every switch, and the load and speed in between."""

    path: Annotated[str, Field(strict=True, min_length=1)] | None = None
    """File to append to, relative to the server's working directory; null: no event log."""
    max_bytes: Annotated[int, Field(strict=True, ge=4096, le=1 << 40)] = 10_000_000
    """Size in bytes at which the file is set aside as FILE.1 and a new one begun; at least
    4096."""
    backups: Annotated[int, Field(strict=True, ge=1, le=1000)] = 4
    """Files kept besides the current one, 1 to 1000; the oldest is deleted."""
    sample_steps: Count = 100
    """Decode steps between two samples of load and speed; 0: switches only."""


class Config(_Model):
    """How specswitch chooses between speculation and target-only decode."""

    policy: PolicyConfig = Field(default_factory=QueueDepthConfig)
    """What the load asks for; `kind` is queue_depth, fixed or periodic."""
    guard: GuardConfig = GuardConfig()
    """What holds back a change of mode. Not for policy kind periodic."""
    draft_sync: DraftSyncConfig = DraftSyncConfig()
    """How the draft's KV follows what was decoded without it."""
    max_speculative_batch: PositiveCount = Field(default=64, validate_default=True)
    """Largest decode batch, in requests, that may speculate; a larger one is target_only at
    once, whatever the policy, the guard or the operator says."""
    exactness: Exactness = "strict"
    """What to do about requests whose answer would depend on the mode (penalties, min_p and the
    like). strict: target_only as long as the batch holds one, whatever the policy, the guard or
    the operator says; warn: speculate, and log each such option once; off: speculate."""
    safe_mode: Mode = Mode.TARGET_ONLY
    """Mode to stay in should the policy or a guard fail with an error: speculate or target_only.
    max_speculative_batch and the operator's override still hold."""
    event_log: EventLogConfig = EventLogConfig()
    """A file of JSON lines for later: every switch, and the load and speed in between."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Fill in the defaults that depend on other values: the kind, and the running marks."""
        if not isinstance(data, Mapping):
            return data
        policy = data.get("policy", {})
        if isinstance(policy, QueueDepthConfig):
            policy = policy.model_dump(exclude_unset=True)
        if not isinstance(policy, Mapping):
            return data
        policy = {"kind": "queue_depth", **policy}
        if policy["kind"] == "queue_depth":
            limit = data.get("max_speculative_batch", 64)
            policy["running"] = _complete_running(policy.get("running", {}), limit)
        return {**data, "policy": policy}

    @field_validator("max_speculative_batch")
    @classmethod
    def _running_mark_within_limit(cls, limit: int, info: ValidationInfo) -> int:
        policy = info.data.get("policy")  # absent when it was itself refused
        if isinstance(policy, QueueDepthConfig) and policy.running:
            enter = policy.running.enter
            if enter > limit + 1:
                raise cross_field_error(
                    f"policy.running.enter ({enter}) is never reached: a batch above "
                    f"max_speculative_batch ({limit}) is always target_only; lower enter to "
                    f"{limit + 1} or less, or raise max_speculative_batch to {enter - 1} or more",
                    about="",
                    places=["policy.running.enter", "max_speculative_batch"],
                )
        return limit


def _complete_running(running: Any, limit: Any) -> Any:
    """Running marks, what is missing derived from the limit; wrong types are left to pydantic."""
    if not isinstance(running, Mapping) or not _is_positive_int(limit):
        return running
    running = {"enter": min(limit + 1, MAX_COUNT), **running}
    if _is_positive_int(running["enter"]):
        running.setdefault("resume", (running["enter"] - 1) * 3 // 4)
    return running


def _is_positive_int(value: Any) -> bool:
    return type(value) is int and value >= 1
