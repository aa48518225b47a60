"""What is on /metrics is what happened; and what watches may fail without harm."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from harness import EngineDriver
from metrics_watch import enabled, read_metrics, watch_until_idle
from runs import (
    Run,
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    fixed,
    periodic,
    reference,
    run,
)

from specswitch.control.decision import Mode
from specswitch.engine.metric_table import ALL


def of(metrics: dict[tuple[str, ...], float], name: str) -> dict[tuple[str, ...], float]:
    """One metric's values by its own labels."""
    return {key[1:]: value for key, value in metrics.items() if key[0] == f"specswitch_{name}"}


def by_mode(outcome: Run, count: Any) -> dict[tuple[str, ...], float]:
    return {
        (str(mode),): sum(count(step) for step in outcome.steps if step.mode is mode)
        for mode in Mode
    }


def test_metrics_agree_with_the_steps_that_ran() -> None:
    outcome = run("staggered", "EAGLE3", periodic(9), prepare=watch_until_idle, **enabled())
    metrics = outcome.notes["metrics"]
    emitted = by_mode(outcome, lambda step: sum(step.kept.values()) + sum(step.discarded.values()))
    requests = by_mode(outcome, lambda step: len(step.kept) + len(step.discarded))
    assert of(metrics, "decode_steps_total") == by_mode(outcome, lambda step: 1)
    assert of(metrics, "decode_tokens_total") == emitted
    assert of(metrics, "decode_request_steps_total") == requests
    switches = Counter(
        (before, after, reason)
        for (before, _), (after, reason) in zip(
            outcome.decisions, outcome.decisions[1:], strict=False
        )
        if before != after
    )
    # Labels in the order of their names: from, reason, to.
    assert of(metrics, "switches_total") == {
        (before, reason, after): count for (before, after, reason), count in switches.items()
    }
    assert of(metrics, "decisions_total") == {("periodic",): len(outcome.steps)}
    last = outcome.decisions[-1][0]
    assert of(metrics, "mode") == {(str(mode),): float(mode == last) for mode in Mode}
    assert of(metrics, "override") == {("auto",): 1, ("speculate",): 0, ("target_only",): 0}
    missed = requests[("target_only",)]
    assert of(metrics, "draft_sync_missed_positions_total") == {(): missed}
    assert sum(of(metrics, "draft_sync_positions_total").values()) == missed
    assert of(metrics, "draft_sync_pending_positions") == {(): 0}
    assert of(metrics, "draft_sync_ring_bytes")[()] > 0
    assert of(metrics, "errors_total") == {("policy",): 0, ("listener",): 0, ("telemetry",): 0}
    assert of(metrics, "threshold")["policy.period",] == 9
    assert of(metrics, "max_running_requests") == {(): 8}


def test_time_is_told_apart_by_mode_and_adds_up_to_less_than_the_whole() -> None:
    outcome = run("at_once", "EAGLE3", periodic(6), prepare=watch_until_idle, **enabled())
    seconds = of(outcome.notes["metrics"], "decode_seconds_total")
    assert min(seconds.values()) > 0
    # A speculative step runs the draft as well.
    steps = of(outcome.notes["metrics"], "decode_steps_total")
    assert (
        seconds[("speculate",)] / steps[("speculate",)]
        > seconds[("target_only",)] / steps[("target_only",)]
    )


def test_acceptance_is_told_on_both_sides_of_a_switch() -> None:
    outcome = run("staggered", "EAGLE3", periodic(20), prepare=watch_until_idle, **enabled())
    metrics = outcome.notes["metrics"]
    assert outcome.stretches[2][0] is Mode.SPECULATE
    sides = of(metrics, "switch_acceptance_length")
    assert set(sides) == {("before",), ("after",)}
    assert all(1 <= value <= 4 for value in sides.values())
    assert of(metrics, "acceptance_length")[()] == outcome.snapshot["acceptance_length"]


def test_load_and_guard_are_told_while_the_server_is_busy() -> None:
    def watch(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        notes["seen"] = []

        def on_tick(driver: EngineDriver) -> None:
            notes["seen"].append(read_metrics())

        return on_tick

    policy = {"kind": "queue_depth", "waiting": {"enter": 4, "resume": 0}}
    guard = {"guard": {"dwell_steps": 10, "votes": 2}}
    outcome = run(
        "crowd", "EAGLE3", policy, config=guard, prepare=watch, **enabled(max_running_requests=4)
    )
    seen = outcome.notes["seen"]
    waiting = [of(metrics, "waiting_requests").get((), 0) for metrics in seen]
    assert max(waiting) >= 4
    assert max(of(metrics, "running_requests").get((), 0) for metrics in seen) == 4
    assert 0 < max(of(metrics, "kv_use_ratio").get((), 0) for metrics in seen) < 1
    dwell = [of(metrics, "guard_dwell_steps_left").get((), 0) for metrics in seen]
    assert 0 < max(dwell) < 10
    assert {of(metrics, "guard_votes_needed")[()] for metrics in seen} == {2}
    assert max(of(metrics, "guard_window_switches").get((), 0) for metrics in seen) >= 1


def test_every_metric_of_the_table_is_exported_and_no_other() -> None:
    outcome = run("staggered", "EAGLE3", periodic(9), prepare=watch_until_idle, **enabled())
    assert {key[0] for key in outcome.notes["metrics"]} == {metric.name for metric in ALL} - {
        # Only a policy with guards has them; see the test before.
        *("specswitch_guard_votes", "specswitch_guard_votes_needed"),
        *("specswitch_guard_dwell_steps_left", "specswitch_guard_switch_cap"),
    }


def test_a_threshold_that_is_gone_leaves_no_number_behind() -> None:
    def then_drop(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        watched = watch_until_idle(driver, notes)

        def on_tick(driver: EngineDriver) -> None:
            watched(driver)
            if driver.tick == 30:
                driver.worker.steering.apply({"set": {"policy.kv_use": None}})

        return on_tick

    outcome = run("staggered", "EAGLE3", {}, prepare=then_drop, **enabled())
    thresholds = of(outcome.notes["metrics"], "threshold")
    assert math.isnan(thresholds["policy.kv_use.enter",])
    assert thresholds["policy.waiting.enter",] == 16


def test_without_enable_metrics_nothing_is_exported() -> None:
    outcome = run("at_once", "EAGLE3", periodic(9), prepare=watch_until_idle)
    assert outcome.notes["metrics"] == {}


# --- failures


def serves_on(outcome: Run, name: str = "staggered") -> None:
    assert_same_answers(outcome, reference(name, "EAGLE3"))
    assert_settled(outcome)


def disk_full(*_args: Any, **_kwargs: Any) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("broken", ["publish", "count_result", "clock", "listener"])
def test_generation_goes_on_when_telemetry_fails(broken: str) -> None:
    def break_it(driver: EngineDriver, notes: dict[str, Any]) -> None:
        worker, scheduler = driver.worker, driver.scheduler
        if broken == "publish":
            scheduler.specswitch_exporter.publish = disk_full
        elif broken == "count_result":
            worker.stats.count_result = disk_full
        elif broken == "clock":
            worker.stats.clock.launch = worker.stats.clock.end = disk_full
        else:
            worker.controller.add_listener(disk_full)

    outcome = run("staggered", "EAGLE3", periodic(5), prepare=break_it, **enabled())
    serves_on(outcome)
    part = "listener" if broken == "listener" else "telemetry"
    assert outcome.snapshot["errors"][part] > 3


class FullDisk:
    """Stands before a series of Prometheus and lets nothing through as long as it is full."""

    full = True

    def __init__(self, child: Any) -> None:
        self._child = child

    def inc(self, amount: float) -> None:
        (disk_full if self.full else self._child.inc)(amount)

    def set(self, value: float) -> None:
        (disk_full if self.full else self._child.set)(value)


def test_what_failed_to_be_published_is_made_up_for_later() -> None:
    def fail_for_a_while(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        for series in driver.scheduler.specswitch_exporter._series.values():
            series._child = FullDisk(series._child)
        watched = watch_until_idle(driver, notes)

        def on_tick(driver: EngineDriver) -> None:
            watched(driver)
            FullDisk.full = driver.tick < 40

        return on_tick

    outcome = run("staggered", "EAGLE3", periodic(5), prepare=fail_for_a_while, **enabled())
    serves_on(outcome)
    assert_books_balance(outcome)
    metrics = outcome.notes["metrics"]
    assert of(metrics, "decode_steps_total") == by_mode(outcome, lambda step: 1)
    assert of(metrics, "errors_total")["telemetry",] > 0


def test_metrics_that_cannot_be_set_up_do_not_keep_the_server_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from specswitch.engine import telemetry

    # Restored by the fixture; the scenario's process has it as it is at the fork.
    monkeypatch.setattr(telemetry.PrometheusExporter, "__init__", disk_full)
    outcome = run("at_once", "EAGLE3", periodic(5), prepare=watch_until_idle, **enabled())
    serves_on(outcome, "at_once")
    assert outcome.snapshot["errors"]["telemetry"] == 1
    assert outcome.notes["metrics"] == {}


@pytest.mark.parametrize("safe_mode", list(Mode))
def test_generation_goes_on_in_the_safe_mode_when_the_controller_fails(safe_mode: Mode) -> None:
    def break_it(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        def on_tick(driver: EngineDriver) -> None:
            if driver.worker.controller.last.step == 12:
                driver.worker.controller._policy.propose = disk_full

        return on_tick

    start = Mode.TARGET_ONLY if safe_mode is Mode.SPECULATE else Mode.SPECULATE
    outcome = run(
        "staggered",
        "EAGLE3",
        fixed(start),
        config={"safe_mode": str(safe_mode)},
        prepare=break_it,
        **enabled(),
    )
    serves_on(outcome)
    assert outcome.modes[:13] == [start] * 13
    assert set(outcome.modes[13:]) == {safe_mode}
    assert outcome.decisions[-1] == (str(safe_mode), "safe_mode")
    assert outcome.snapshot["errors"]["policy"] == 1
    assert outcome.snapshot["failure"] == "OSError: [Errno 28] No space left on device"


def test_an_exception_in_a_step_is_the_engines_own() -> None:
    def break_it(driver: EngineDriver, notes: dict[str, Any]) -> None:
        driver.worker.sync.before_speculative = disk_full

    with pytest.raises(OSError, match="No space left"):
        run("at_once", "EAGLE3", periodic(5), prepare=break_it)
