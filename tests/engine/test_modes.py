"""Servers that never flip, and servers that never asked for specswitch."""

from __future__ import annotations

from typing import Any

import pytest
from harness import EngineDriver
from runs import (
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    fixed,
    periodic,
    reference,
    run,
    run_plain,
)

from specswitch.control.decision import Mode
from specswitch.engine.errors import MirrorMismatch

ALGORITHMS = ["EAGLE", "EAGLE3", "STANDALONE"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_always_speculating_runs_the_very_steps_of_the_engines_own_worker(algorithm: str) -> None:
    stock = run("staggered", algorithm, worker=None)
    ours = run("staggered", algorithm, fixed(Mode.SPECULATE))
    assert stock.worker in ("EAGLEWorkerV2", "StandaloneWorkerV2")
    assert ours.worker.startswith("SpecSwitch")
    assert set(ours.modes) == {Mode.SPECULATE}
    assert ours.steps == stock.steps
    assert ours.acceptance_length() > 1
    assert ours.snapshot["switches"]["total"] == 0
    assert_same_answers(ours, stock.results)
    assert_same_answers(ours, reference("staggered", algorithm))
    assert_settled(ours)
    assert_books_balance(ours)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_never_speculating_runs_as_many_batches_as_an_engine_without_speculation(
    algorithm: str,
) -> None:
    plain = run_plain("at_once", algorithm)
    ours = run("at_once", algorithm, fixed(Mode.TARGET_ONLY))
    assert set(ours.modes) == {Mode.TARGET_ONLY}
    assert ours.tokens(Mode.SPECULATE) == 0
    assert ours.snapshot["acceptance_length"] is None
    assert ours.snapshot["switches"]["total"] == 0
    assert ours.forwards == plain.forwards
    assert_same_answers(ours, reference("at_once", algorithm))
    assert_settled(ours)
    assert_books_balance(ours)


@pytest.mark.parametrize("worker", [None, "eagle"], ids=["no flag", "--speculative-worker eagle"])
def test_without_the_flag_the_engine_keeps_its_worker_and_its_answers(worker: str | None) -> None:
    outcome = run("staggered", "EAGLE3", worker=worker)
    assert outcome.worker == "EAGLEWorkerV2"
    assert set(outcome.modes) == {Mode.SPECULATE}
    assert_same_answers(outcome, reference("staggered", "EAGLE3"))
    assert_settled(outcome)


@pytest.mark.parametrize("mode", list(Mode))
def test_checks_of_debug_mode_change_nothing(mode: Mode) -> None:
    checked = run("staggered", "EAGLE3", fixed(mode))
    unchecked = run("staggered", "EAGLE3", fixed(mode), debug=False)
    assert unchecked.steps == checked.steps
    assert_same_answers(unchecked, checked.results)


def test_debug_mode_stops_a_server_whose_lengths_differ_from_the_devices() -> None:
    def corrupt(driver: EngineDriver, _notes: dict[str, Any]) -> None:
        run_batch = driver.scheduler.run_batch

        def corrupted(batch: Any) -> Any:
            if batch.forward_mode.is_decode() and driver.tick == 20:
                batch.seq_lens_cpu = batch.seq_lens_cpu + 1
            return run_batch(batch)

        driver.scheduler.run_batch = corrupted

    with pytest.raises(MirrorMismatch, match="sequence lengths: host"):
        run("staggered", "EAGLE3", periodic(2), prepare=corrupt)
