"""Runs a workload in an engine of its own and keeps what the tests look at.

Every run, whatever it tests, is held against the same two things: the tokens of an engine without
speculation (`assert_same_answers`), and books that must balance when the engine is idle again
(`assert_settled`, `assert_books_balance`). Runs happen in forked children, so a `Run` holds plain
values only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any

from harness import EngineDriver, Request, Result, run_scenario
from harness.invariants import Books
from harness.step_log import Step, StepLog
from workloads import models, workload

from specswitch.control.decision import Mode

OnTick = Callable[[EngineDriver], None]
Prepare = Callable[[EngineDriver, dict[str, Any]], OnTick | None]


@dataclass
class Run:
    """What one engine did.

    Attributes:
        results: answers, in the order of the requests.
        worker: class name of the worker.
        overlap: whether the overlap scheduler was on.
        page_size: tokens in a page of the KV pool.
        forwards: batches of any kind that ran.
        lost_slots: KV slots neither free nor evictable when idle.
        unavailable_slots: KV slots that are not free when idle, radix cache included.
        lost_rows: rows of the request-to-token table in use when idle.
        pending: requests that the scheduler still holds when idle.
        fullest: largest fraction of the KV slots in use, as the checks of each pass saw it.
        steps: decode steps in order; empty without a speculative worker.
        prefills: tokens from prefills, by request.
        chunks: prefills that left a part of a prompt for the next one.
        snapshot: what ``/server_info`` would show; empty for the engine's own workers.
        decisions: (mode, reason) of each decision, in order.
        notes: whatever a test's own `prepare` recorded.
    """

    results: list[Result]
    worker: str
    overlap: bool
    page_size: int
    forwards: int
    lost_slots: int
    unavailable_slots: int
    lost_rows: int
    pending: int
    fullest: float = 0.0
    steps: list[Step] = field(default_factory=list)
    prefills: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    snapshot: dict[str, Any] = field(default_factory=dict)
    decisions: list[tuple[str, str]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def modes(self) -> list[Mode]:
        """Mode of each decode step, as the forward passes tell it."""
        return [step.mode for step in self.steps]

    @property
    def stretches(self) -> list[tuple[Mode, int]]:
        """Steps in a row in each mode."""
        return [(mode, len(list(steps))) for mode, steps in groupby(self.modes)]

    def tokens(self, mode: Mode) -> int:
        """Tokens that requests got from steps of a mode."""
        return sum(sum(step.kept.values()) for step in self.steps if step.mode is mode)

    def acceptance_length(self) -> float:
        """Tokens a request got from a speculative step, on average."""
        counts = [
            tokens
            for step in self.steps
            if step.mode is Mode.SPECULATE
            for tokens in step.kept.values()
        ]
        return sum(counts) / len(counts)


def run(
    requests: str | Sequence[Request],
    algorithm: str,
    policy: dict[str, Any] | None = None,
    *,
    worker: str | None = "specswitch",
    config: dict[str, Any] | None = None,
    debug: bool = True,
    prepare: Prepare | None = None,
    **server_args: Any,
) -> Run:
    """Serve requests with an engine in a process of its own.

    Args:
        requests: name of a workload, or requests.
        algorithm: of the speculation.
        policy: the `policy` part of specswitch's configuration.
        worker: value of ``--speculative-worker``.
        config: further parts of the configuration.
        debug: SPECSWITCH_DEBUG, the worker's own checks at each step.
        prepare: called with the driver and the run's notes before the first request; may return
            what is to be called at each pass of the scheduler's loop.
        server_args: further fields of ServerArgs.
    """
    return run_scenario(
        _serve, requests, algorithm, policy, worker, config, debug, prepare, server_args
    )


def run_plain(
    requests: str | Sequence[Request],
    algorithm: str | None,
    prepare: Prepare | None = None,
    **server_args: Any,
) -> Run:
    """Serve them without speculation, with the target that goes with `algorithm`."""
    return run_scenario(_serve_plain, requests, algorithm, prepare, server_args)


def _serve(
    requests: str | Sequence[Request],
    algorithm: str,
    policy: dict[str, Any] | None,
    worker: str | None,
    config: dict[str, Any] | None,
    debug: bool,
    prepare: Prepare | None,
    server_args: dict[str, Any],
) -> Run:
    os.environ["SPECSWITCH_DEBUG"] = "1" if debug else "0"
    switching = worker == "specswitch"
    driver = EngineDriver(
        algorithm,
        worker,
        {"policy": policy or {}, **(config or {})} if switching else None,
        models=models(algorithm),
        **server_args,
    )
    books = Books(driver.scheduler)
    log = StepLog(driver.scheduler)
    decisions = _record_decisions(driver.worker.controller) if switching else []
    notes: dict[str, Any] = {}
    extra = prepare(driver, notes) if prepare is not None else None

    def on_tick(driver: EngineDriver) -> None:
        books.check()
        if extra is not None:
            extra(driver)

    outcome = _drive(driver, requests, algorithm, on_tick)
    outcome.steps, outcome.prefills, outcome.chunks = log.steps, log.prefills, log.chunks
    outcome.snapshot = driver.worker.snapshot() if switching else {}
    outcome.decisions, outcome.notes, outcome.fullest = decisions, notes, books.fullest
    return outcome


def _serve_plain(
    requests: str | Sequence[Request],
    algorithm: str | None,
    prepare: Prepare | None,
    server_args: dict[str, Any],
) -> Run:
    driver = EngineDriver(None, models=models(algorithm), **server_args)
    notes: dict[str, Any] = {}
    on_tick = prepare(driver, notes) if prepare is not None else None
    outcome = _drive(driver, requests, algorithm, on_tick)
    outcome.notes = notes
    return outcome


def _drive(
    driver: EngineDriver,
    requests: str | Sequence[Request],
    algorithm: str | None,
    on_tick: OnTick | None,
) -> Run:
    if isinstance(requests, str):
        requests = workload(requests, algorithm)
    results = driver.generate(requests, on_tick)
    scheduler = driver.scheduler
    return Run(
        results=results,
        worker=type(driver.worker).__name__,
        overlap=scheduler.enable_overlap,
        page_size=scheduler.page_size,
        forwards=scheduler.forward_ct,
        lost_slots=driver.lost_slots,
        unavailable_slots=driver.lost_slots + scheduler.tree_cache.evictable_size(),
        lost_rows=scheduler.req_to_token_pool.size - scheduler.req_to_token_pool.available_size(),
        pending=len(scheduler.waiting_queue)
        + len(scheduler.running_batch.reqs)
        + (scheduler.chunked_req is not None),
    )


def _record_decisions(controller: Any) -> list[tuple[str, str]]:
    decisions: list[tuple[str, str]] = []
    decide = controller.decide

    def recorded(sample: Any) -> Any:
        decision = decide(sample)
        decisions.append((str(decision.mode), str(decision.reason)))
        return decision

    controller.decide = recorded
    return decisions


@cache
def reference(name: str, algorithm: str | None, **server_args: Any) -> tuple[Result, ...]:
    """Answers of an engine without speculation, with the target that goes with `algorithm`.

    It has room for everything at once, one page size and no chunks, so that what a test varies
    cannot vary here too.
    """
    room = {"max_running_requests": 64, "max_total_tokens": 32768, "chunked_prefill_size": -1}
    return tuple(run_plain(name, algorithm, **(room | server_args)).results)


def periodic(period: int) -> dict[str, Any]:
    """Policy that flips every `period` steps."""
    return {"kind": "periodic", "period": period}


def fixed(mode: Mode) -> dict[str, Any]:
    """Policy that never flips."""
    return {"kind": "fixed", "mode": str(mode)}


def flip_pattern(period: int, steps: int) -> list[Mode]:
    """Modes that `periodic` must give, counted from step 0."""
    both = (Mode.SPECULATE, Mode.TARGET_ONLY)
    return [both[step // period % 2] for step in range(steps)]


def assert_same_answers(run: Run, expected: Sequence[Result]) -> None:
    """Tokens and finish reasons are those of the engine without speculation."""
    for mine, theirs in zip(run.results, expected, strict=True):
        assert mine.output_ids == theirs.output_ids, mine.rid
        assert mine.finish_reason == theirs.finish_reason, mine.rid


def assert_settled(run: Run) -> None:
    """The engine is idle, holds nothing, and is the engine that was asked for."""
    assert run.overlap
    assert run.pending == 0
    assert run.lost_rows == 0
    assert run.lost_slots == 0


def assert_books_balance(run: Run) -> None:
    """Each generated token is accounted for once, and the worker's counters agree."""
    assert run.steps, "no decode step ran"
    for result in run.results:
        kept = sum(step.kept.get(result.rid, 0) for step in run.steps)
        got = run.prefills.get(result.rid, 0) + kept
        if got and result.finish_reason["type"] == "abort" and not result.output_ids:
            # Retracted, and given up while it waited again, for which the engine answers without
            # the tokens that it had (managers/scheduler.py:3574).
            continue
        # A request may end inside what a speculative step accepted; the rest is dropped.
        last = next((s for s in reversed(run.steps) if result.rid in s.kept), None)
        spare = last.kept[result.rid] - 1 if last else 0
        assert len(result.output_ids) <= got <= len(result.output_ids) + spare, result.rid
        # Overlap has launched one more step by the time a request is seen to end or to be
        # retracted.
        extra_steps = sum(result.rid in step.discarded for step in run.steps)
        assert extra_steps <= 1 + result.retractions, result.rid
    for step in run.steps:
        emitted = [*step.kept.values(), *step.discarded.values()]
        if step.mode is Mode.TARGET_ONLY:
            assert set(emitted) == {1}
        else:
            assert min(emitted) >= 1
            assert step.draft_forwards > 0
    drafted = sum(step.draft_forwards for step in run.steps if step.mode is Mode.TARGET_ONLY)
    assert drafted == run.snapshot["draft_sync"]["flushes"]
    _assert_counters_agree(run)


def _assert_counters_agree(run: Run) -> None:
    snapshot = run.snapshot
    modes = Counter(run.modes)
    assert snapshot["steps"] == {str(mode): modes[mode] for mode in Mode}
    assert snapshot["step"] == len(run.steps) - 1
    emitted = dict.fromkeys(map(str, Mode), 0)
    for step in run.steps:
        emitted[str(step.mode)] += sum(step.kept.values()) + sum(step.discarded.values())
    assert snapshot["tokens"] == emitted
    switches = [
        number for number in range(1, len(run.modes)) if run.modes[number] != run.modes[number - 1]
    ]
    # The first decision may already leave the starting mode.
    first = [0] if run.modes[0] is not Mode.SPECULATE and run.decisions[0][1] != "fixed" else []
    assert snapshot["switches"]["total"] == len(first + switches)
    assert [switch["step"] for switch in snapshot["switches"]["recent"]] == (first + switches)[-64:]
    assert [mode for mode, _ in run.decisions] == [str(mode) for mode in run.modes]
