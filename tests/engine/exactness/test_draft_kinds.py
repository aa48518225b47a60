"""Every kind of draft that specswitch takes: one answer in every mode, and books that balance.

Each run is looked at as closely as the other engine tests look: modes that really ran, tokens that
went to each request, counters of worker and draft sync, KV slots and rows that are free when idle.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from harness.random_mtp import make_random_mtp_model
from runs import (
    Run,
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    run,
    run_plain,
)
from workloads import workload

from specswitch.control.decision import Mode

from .matrix import PATTERNS
from .recorder import check
from .verdicts import Verdict

WORKER = {
    "EAGLE": "SpecSwitchWorker",
    "EAGLE3": "SpecSwitchWorker",
    "STANDALONE": "SpecSwitchStandaloneWorker",
    "NEXTN": "SpecSwitchWorker",
}


@pytest.fixture(scope="module")
def mtp_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_mtp_model(tmp_path_factory.mktemp("mtp")).target


@pytest.fixture
def kind(request: pytest.FixtureRequest, mtp_model: Path) -> tuple[str, str | None]:
    """Kind of draft, and the directory of a model that brings its own."""
    return request.param, str(mtp_model) if request.param == "NEXTN" else None


@cache
def served(kind: str, own: str | None, pattern: str | None) -> Run:
    # What loads as EAGLE takes the prompts of the random models, whose vocabulary it has.
    algorithm = "EAGLE" if own else kind
    requests = workload("staggered", algorithm)[:4]
    models: dict[str, Any] = {"model_path": own} if own else {}
    if pattern is None:
        return run_plain(requests, algorithm, **models)
    if own:
        # Both names of the same algorithm (server_args.py:344).
        models |= {"speculative_draft_model_path": own, "speculative_algorithm": kind}
    return run(requests, algorithm, PATTERNS[pattern], **models)


@pytest.mark.parametrize("kind", list(WORKER), indirect=True)
def test_a_kind_of_draft_changes_no_answer_in_any_mode(kind: tuple[str, str | None]) -> None:
    expected = served(*kind, None).results
    for pattern in PATTERNS:
        outcome = served(*kind, pattern)
        assert_same_answers(outcome, expected)
        assert_settled(outcome)
        assert_books_balance(outcome)
        assert outcome.worker == WORKER[kind[0]]
    check(f"draft_{kind[0].lower()}", Verdict.IDENTICAL)


@pytest.mark.parametrize("kind", list(WORKER), indirect=True)
def test_a_kind_of_draft_runs_the_steps_that_a_pattern_asks_for(
    kind: tuple[str, str | None],
) -> None:
    never, always = served(*kind, "target_only"), served(*kind, "speculate")
    assert set(never.modes) == {Mode.TARGET_ONLY}
    assert set(always.modes) == {Mode.SPECULATE}
    assert always.acceptance_length() > 1
    assert len(always.modes) < len(never.modes)
    for period in (1, 3, 7):
        flipped = served(*kind, f"every {period}")
        assert {steps for _, steps in flipped.stretches[:-1]} == {period}
        assert len(flipped.stretches) > 2


@pytest.mark.parametrize("kind", list(WORKER), indirect=True)
def test_a_kind_of_draft_is_brought_up_to_date_before_it_drafts(
    kind: tuple[str, str | None],
) -> None:
    assert served(*kind, "speculate").snapshot["draft_sync"]["missed"] == 0
    for period in (1, 3, 7):
        outcome = served(*kind, f"every {period}")
        sync = outcome.snapshot["draft_sync"]
        # A step that was running when its request ended has missed a position as well.
        missed = outcome.tokens(Mode.TARGET_ONLY)
        assert missed <= sync["missed"] <= missed + len(outcome.results)
        assert 0 < sync["catch_ups"] <= outcome.snapshot["switches"]["total"]
        assert sync["caught_up"] > 0
        # Each missed position was written, or left with its request.
        assert (sync["pending"], sync["behind"]) == (0, 0)
