"""The queue-depth policy under real load: what it switches on, and that it says why."""

from __future__ import annotations

from typing import Any

from harness import EngineDriver
from runs import (
    OnTick,
    Run,
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    fixed,
    reference,
    run,
)

from specswitch.control.decision import Mode

# Far beyond anything the load reaches, for the quantities that a test does not look at.
NEVER = {"enter": 1000, "resume": 999}
QUICK = {"dwell_steps": 0, "votes": 1, "max_switches_per_1000_steps": 1000}


def queue_depth(**marks: Any) -> dict[str, Any]:
    return {"kind": "queue_depth", "waiting": NEVER, "running": None, "kv_use": None} | marks


def switches(outcome: Run) -> list[dict[str, Any]]:
    return outcome.snapshot["switches"]["recent"]


def check(outcome: Run, name: str) -> None:
    assert_same_answers(outcome, reference(name, "EAGLE3"))
    assert_settled(outcome)
    assert_books_balance(outcome)


def test_a_long_queue_ends_speculation_and_a_short_one_resumes_it() -> None:
    marks = {"enter": 8, "resume": 1}
    outcome = run(
        "calm_burst_calm",
        "EAGLE3",
        queue_depth(waiting=marks),
        config={"guard": QUICK},
        max_running_requests=4,
    )
    check(outcome, "calm_burst_calm")
    leave, resume = switches(outcome)
    assert (leave["from"], leave["to"], leave["reason"]) == (
        "speculate",
        "target_only",
        "waiting_high",
    )
    assert leave["waiting"] >= marks["enter"]
    assert (resume["from"], resume["to"], resume["reason"]) == (
        "target_only",
        "speculate",
        "load_low",
    )
    assert resume["waiting"] <= marks["resume"]
    assert [mode for mode, _ in outcome.stretches] == [
        Mode.SPECULATE,
        Mode.TARGET_ONLY,
        Mode.SPECULATE,
    ]
    assert outcome.snapshot["mode"] == "speculate"
    assert outcome.snapshot["waiting"] == 0


def test_a_large_batch_ends_speculation_and_a_small_one_resumes_it() -> None:
    outcome = run(
        "calm_burst_calm",
        "EAGLE3",
        queue_depth(running={"enter": 6, "resume": 3}),
        config={"guard": QUICK},
    )
    check(outcome, "calm_burst_calm")
    first, second = switches(outcome)[:2]
    assert first["reason"] == "running_high"
    assert first["running"] >= 6
    assert second["reason"] == "load_low"
    assert second["running"] <= 3


def test_a_full_pool_ends_speculation_and_an_empty_one_resumes_it() -> None:
    outcome = run(
        "staggered",
        "EAGLE3",
        queue_depth(kv_use={"enter": 0.4, "resume": 0.2}),
        config={"guard": QUICK},
        max_total_tokens=2048,
    )
    check(outcome, "staggered")
    first, second = switches(outcome)[:2]
    assert first["reason"] == "kv_high"
    assert first["kv_use"] >= 0.4
    assert second["reason"] == "load_low"
    assert second["kv_use"] <= 0.2


def test_a_batch_above_the_limit_never_speculates() -> None:
    outcome = run(
        "staggered",
        "EAGLE3",
        fixed(Mode.SPECULATE),
        config={"guard": QUICK, "max_speculative_batch": 3},
    )
    check(outcome, "staggered")
    assert all(
        len(step.kept) + len(step.discarded) <= 3
        for step in outcome.steps
        if step.mode is Mode.SPECULATE
    )
    assert {switch["reason"] for switch in switches(outcome)} == {"batch_limit", "fixed"}
    assert set(outcome.modes) == set(Mode)


def test_the_guard_holds_back_changes_of_mode() -> None:
    dwell = 12
    outcome = run(
        "crowd",
        "EAGLE3",
        queue_depth(waiting={"enter": 2, "resume": 1}),
        config={"guard": {"dwell_steps": dwell, "votes": 3, "max_switches_per_1000_steps": 1000}},
        max_running_requests=3,
    )
    check(outcome, "crowd")
    assert switches(outcome)
    assert {"votes"} <= {reason for _, reason in outcome.decisions}
    # The first change needs no dwell, the last stretch ends with the load.
    assert all(steps >= dwell for _, steps in outcome.stretches[1:-1])


def test_an_operator_overrides_the_policy_while_requests_run() -> None:
    def override(driver: EngineDriver, _notes: dict[str, Any]) -> OnTick:
        orders = {15: Mode.TARGET_ONLY, 30: Mode.SPECULATE, 45: None}

        def on_tick(driver: EngineDriver) -> None:
            if driver.tick in orders:
                driver.worker.controller.override(orders[driver.tick])

        return on_tick

    outcome = run("staggered", "EAGLE3", fixed(Mode.SPECULATE), prepare=override)
    check(outcome, "staggered")
    assert [(s["to"], s["reason"]) for s in switches(outcome)] == [
        ("target_only", "override"),
        ("speculate", "override"),
    ]
    assert outcome.decisions[-1] == ("speculate", "fixed")


def test_waiting_and_running_requests_are_counted_as_the_scheduler_has_them() -> None:
    def watch(driver: EngineDriver, notes: dict[str, Any]) -> None:
        notes["samples"] = []
        run_batch, begin = driver.scheduler.run_batch, driver.worker.begin_step
        truth: list[tuple[int, int]] = []

        def watched_run(batch: Any) -> Any:
            truth.append((len(driver.scheduler.waiting_queue), len(batch.reqs)))
            return run_batch(batch)

        def watched_begin(waiting: int, running: int, kv_use: float, *more: int) -> Mode:
            notes["samples"].append((truth[-1], (waiting, running), kv_use))
            return begin(waiting, running, kv_use, *more)

        driver.scheduler.run_batch, driver.worker.begin_step = watched_run, watched_begin

    outcome = run("crowd", "EAGLE3", fixed(Mode.TARGET_ONLY), prepare=watch, max_running_requests=4)
    samples = outcome.notes["samples"]
    assert len(samples) == len(outcome.steps)
    assert all(truth == told for truth, told, _ in samples)
    assert max(waiting for _, (waiting, _), _ in samples) > 8
    assert all(0 < kv_use < 1 for _, _, kv_use in samples)
