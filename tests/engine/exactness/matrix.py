"""Serves cases under every pattern of modes, one engine start a pattern, and compares the answers.

A pattern is a policy: never speculating, always speculating, flipping every 1, 3 and 7 steps. The
reference is a server without speculation. Options are options of requests, so one server takes all
cases one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import EngineDriver, Request, Result, run_scenario
from harness.step_log import StepLog
from runs import fixed, periodic
from workloads import models

from specswitch.control.decision import Mode

#: Every pattern of modes, by name. None: a server without speculation.
PATTERNS: Mapping[str, dict[str, Any]] = {
    "target_only": fixed(Mode.TARGET_ONLY),
    "speculate": fixed(Mode.SPECULATE),
    "every 1": periodic(1),
    "every 3": periodic(3),
    "every 7": periodic(7),
}
# A case must not begin in a mode that the case before has left behind.
_UNGUARDED = {"dwell_steps": 0, "votes": 1, "max_switches_per_1000_steps": 1000}
# Equal sums in another order: a step of one token and a step of four run other matrix shapes. Seen:
# 1.3e-4 in answers that a grammar forces, which the model finds unlikely.
LOGPROB_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Case:
    """Requests that are served together.

    Attributes:
        key: row of the matrix.
        requests: what is served.
    """

    key: str
    requests: tuple[Request, ...]


@dataclass
class Served:
    """What came of one case under one pattern.

    Attributes:
        results: answers, in the order of the requests.
        modes: mode of each decode step; empty without speculation.
        reasons: reason of each decision.
    """

    results: list[Result]
    modes: list[Mode] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


Prepare = Callable[[EngineDriver], None]


def serve(
    cases: Sequence[Case],
    policy: dict[str, Any] | None,
    *,
    algorithm: str = "EAGLE3",
    config: Mapping[str, Any] | None = None,
    prepare: Prepare | None = None,
    **server_args: Any,
) -> dict[str, Served]:
    """Serve cases one after the other with one engine, in a process of its own.

    Args:
        policy: one of `PATTERNS`, None for a server without speculation.
        algorithm: of the speculation; decides the target too.
        config: further parts of specswitch's configuration.
        prepare: called with the driver before the first case.
        server_args: further fields of ServerArgs.

    Returns:
        What came of each case, by key.
    """
    return run_scenario(_serve, cases, policy, algorithm, config or {}, prepare, server_args)


def _serve(
    cases: Sequence[Case],
    policy: dict[str, Any] | None,
    algorithm: str,
    config: Mapping[str, Any],
    prepare: Prepare | None,
    server_args: dict[str, Any],
) -> dict[str, Served]:
    if policy is None:
        driver = EngineDriver(None, models=models(algorithm), **server_args)
    else:
        driver = EngineDriver(
            algorithm,
            "specswitch",
            {"policy": policy, "guard": _UNGUARDED, **config},
            models=models(algorithm),
            **server_args,
        )
    if prepare is not None:
        prepare(driver)
    served = {}
    log = None if policy is None else StepLog(driver.scheduler)
    reasons: list[str] = []
    if policy is not None:
        _note_reasons(driver.worker.controller, reasons)
    import torch

    for case in cases:
        # So that draws are equal wherever both sides draw in the same way.
        torch.manual_seed(1)
        before = len(log.steps) if log else 0
        reasons.clear()
        results = driver.generate(case.requests)
        modes = [step.mode for step in log.steps[before:]] if log else []
        served[case.key] = Served(results, modes, list(reasons))
        assert driver.lost_slots == 0, case.key
        if policy is not None:
            sync = driver.worker.snapshot()["draft_sync"]
            assert (sync["pending"], sync["behind"]) == (0, 0), case.key
    return served


def _note_reasons(controller: Any, reasons: list[str]) -> None:
    decide = controller.decide

    def noted(sample: Any) -> Any:
        decision = decide(sample)
        reasons.append(str(decision.reason))
        return decision

    controller.decide = noted


def differences(mine: Served, reference: Served) -> list[str]:
    """What a client could tell apart, one line a difference; empty: the answers are the same.

    Compared are tokens, reasons to finish and, where they were asked for, log-probabilities:
    their shapes exactly, their values within `LOGPROB_TOLERANCE`.
    """
    found = []
    for number, (ours, theirs) in enumerate(zip(mine.results, reference.results, strict=True)):
        found += [f"request {number}: {line}" for line in _differ(ours, theirs)]
    return found


def _differ(mine: Result, theirs: Result) -> list[str]:
    found = []
    if mine.output_ids != theirs.output_ids:
        found.append(f"tokens {mine.output_ids} != {theirs.output_ids}")
    if mine.finish_reason != theirs.finish_reason:
        found.append(f"finish {mine.finish_reason} != {theirs.finish_reason}")
    for name in LISTS:
        ours, others = getattr(mine, name), getattr(theirs, name)
        if shape(ours) != shape(others):
            found.append(f"shape of {name}: {shape(ours)} != {shape(others)}")
        elif not close(ours, others):
            found.append(f"values of {name}")
    return found


#: Fields of a `Result` that are (nested) lists of numbers.
LISTS = (
    "logprobs",
    "top_logprobs",
    "token_ids_logprobs",
    "input_logprobs",
    "input_top_logprobs",
    "input_token_ids_logprobs",
)


def shape(value: Any) -> Any:
    """Lengths of nested lists and tuples, all the way down; a number or None is ``.``."""
    if isinstance(value, (list, tuple)):
        return [shape(each) for each in value]
    return "." if value is not None else "None"


def close(mine: Any, theirs: Any) -> bool:
    """Whether nested lists of one shape hold equal integers and nearly equal fractions."""
    if isinstance(mine, (list, tuple)):
        return all(close(ours, others) for ours, others in zip(mine, theirs, strict=True))
    if isinstance(mine, float):
        return abs(mine - theirs) <= LOGPROB_TOLERANCE
    return mine == theirs
