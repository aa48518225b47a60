"""The engine's own acceptance figures count verifications only, whatever share is target-only."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from harness import EngineDriver
from harness.step_log import Step
from metrics_watch import INTERVAL, enabled, read_metrics
from runs import Run, assert_same_answers, fixed, periodic, reference, run

from specswitch.control.decision import Mode

ALGORITHMS = ["EAGLE3", "STANDALONE"]


def verifications(outcome: Run, rid: str) -> tuple[int, int]:
    """(speculative steps, accepted drafts) that a request took part in, by the step log."""
    kept = [
        step.kept[rid] for step in outcome.steps if step.mode is Mode.SPECULATE and rid in step.kept
    ]
    return len(kept), sum(kept) - len(kept)


def keep_log(lines: list[str]) -> None:
    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("sglang.srt.observability.scheduler_metrics_mixin")
    logger.setLevel(logging.INFO)
    logger.addHandler(Keep())


def watch(driver: EngineDriver, notes: dict[str, Any]) -> Any:
    """Notes the engine's totals, its decode log and its gauges, as they are at the end."""
    notes["log"] = []
    keep_log(notes["log"])
    gauges = notes["gauges"] = []

    def on_tick(driver: EngineDriver) -> None:
        scheduler = driver.scheduler
        notes["totals"] = (
            scheduler.spec_total_num_accept_tokens + scheduler.spec_num_accept_tokens,
            scheduler.spec_total_num_forward_ct + scheduler.spec_num_forward_ct,
        )
        found = read_metrics("sglang:spec_")
        if found:
            gauges.append((found["sglang:spec_accept_length",], found["sglang:spec_accept_rate",]))

    return on_tick


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("period", [1, 5])
def test_flips_do_not_dilute_acceptance(algorithm: str, period: int) -> None:
    outcome = run("staggered", algorithm, periodic(period), prepare=watch, **enabled())
    assert_same_answers(outcome, reference("staggered", algorithm))
    for result in outcome.results:
        assert (result.verify_steps, result.accepted_drafts) == verifications(outcome, result.rid)
    emitted = [verified(step) for step in outcome.steps]
    assert outcome.notes["totals"] == (sum(map(sum, emitted)), sum(map(len, emitted)))
    reported = [
        float(number)
        for line in outcome.notes["log"]
        for number in re.findall(r"accept len: ([\d.]+)", line)
    ]
    assert reported == pytest.approx(interval_means(emitted), abs=0.006)


def verified(step: Step) -> list[int]:
    """Tokens per request of a speculative step."""
    if step.mode is Mode.TARGET_ONLY:
        return []
    return [*step.kept.values(), *step.discarded.values()]


def interval_means(emitted: list[list[int]]) -> list[float]:
    """Acceptance length of each stretch of steps that the engine reports on, whole ones only."""
    stretches = [
        [tokens for step in emitted[first : first + INTERVAL] for tokens in step]
        for first in range(0, len(emitted) - INTERVAL + 1, INTERVAL)
    ]
    assert all(stretches), "the case of none is another test's"
    return [sum(stretch) / len(stretch) for stretch in stretches]


def test_a_server_that_never_speculates_reports_and_counts_no_verification() -> None:
    outcome = run("staggered", "EAGLE3", fixed(Mode.TARGET_ONLY), prepare=watch, **enabled())
    assert_same_answers(outcome, reference("staggered", "EAGLE3"))
    assert outcome.notes["totals"] == (0, 0)
    assert {result.verify_steps for result in outcome.results} == {0}
    assert any("accept len: 1.00, accept rate: 0.00" in line for line in outcome.notes["log"])


def test_gauges_stand_still_while_nothing_is_verified() -> None:
    def then_target_only(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        on_tick = watch(driver, notes)

        def tick(driver: EngineDriver) -> None:
            on_tick(driver)
            if driver.worker.controller.last.step == 15:
                driver.worker.controller.override(Mode.TARGET_ONLY)
                notes["turned"] = len(notes["gauges"])

        return tick

    outcome = run(
        "staggered", "EAGLE3", fixed(Mode.SPECULATE), prepare=then_target_only, **enabled()
    )
    assert outcome.modes.count(Mode.TARGET_ONLY) > 3 * INTERVAL
    # Two steps were under way, and the interval that they end has a report of its own.
    after = outcome.notes["gauges"][outcome.notes["turned"] + INTERVAL + 2 :]
    assert len(after) > INTERVAL
    assert len(set(after)) == 1
    assert 1 < after[0][0] <= 4


def test_without_specswitch_the_engine_counts_as_it_always_did() -> None:
    outcome = run("staggered", "EAGLE3", worker=None, prepare=watch, **enabled())
    for result in outcome.results:
        assert (result.verify_steps, result.accepted_drafts) == verifications(outcome, result.rid)
