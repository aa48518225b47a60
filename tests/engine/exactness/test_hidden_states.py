"""Hidden states of a request: one row for each token, the same in every mode.

A speculative step keeps one row of a batch's hidden states for a request, whatever it accepted, and
takes it from the wrong place (managers/scheduler_output_processor_mixin.py:600 of SGLang
0.5.12.post1), so the exactness rule decodes such requests target-only.

The radix cache is off: with it, SGLang cuts the hidden states of prompts at the wrong places, as it
goes by the length of the prompt and not of what was computed (292).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from harness import Request
from workloads import text

from specswitch.control.decision import Mode

from .matrix import LOGPROB_TOLERANCE, PATTERNS, Case, Served, differences, serve, shape
from .recorder import check
from .verdicts import Verdict

TOKENS = 12
# What the mode cannot change by now is served in fewer patterns.
SERVED = {
    "EAGLE": tuple(PATTERNS),
    "EAGLE3": ("target_only", "every 3"),
    "STANDALONE": ("every 3",),
}
UNRULED = "one row a step"


@cache
def served(algorithm: str, pattern: str | None, exactness: str = "strict") -> Served:
    requests = tuple(
        Request(list(prompt[:30]), TOKENS + number, fields={"return_hidden_states": True})
        for number, prompt in enumerate(text(algorithm)[:3])
    )
    return serve(
        [Case("hidden_states", requests)],
        None if pattern is None else PATTERNS[pattern],
        algorithm=algorithm,
        config={"exactness": exactness},
        enable_return_hidden_states=True,
        disable_radix_cache=True,
    )["hidden_states"]


def assert_same_hidden_states(mine: Served, theirs: Served) -> None:
    for ours, others in zip(mine.results, theirs.results, strict=True):
        assert shape(ours.hidden_states) == shape(others.hidden_states)
        for row, other in zip(ours.hidden_states, others.hidden_states, strict=True):
            assert np.allclose(row, other, atol=10 * LOGPROB_TOLERANCE)


@pytest.mark.parametrize("algorithm", SERVED)
def test_each_mode_returns_the_same_hidden_states(algorithm: str) -> None:
    runs = [served(algorithm, pattern) for pattern in SERVED[algorithm]]
    for run in runs:
        assert not differences(run, served(algorithm, None))
        assert set(run.reasons) == {"exactness"}
        assert set(run.modes) == {Mode.TARGET_ONLY}
        assert_same_hidden_states(run, runs[0])


def test_with_eagle_they_are_those_of_a_server_without_speculation() -> None:
    assert_same_hidden_states(served("EAGLE", "every 3"), served("EAGLE", None))
    for result in served("EAGLE", "every 3").results:
        prompt, *decoded = result.hidden_states
        # A row for each token of the prompt, and one for each answered token but the last.
        assert len(prompt) == 30
        assert len(decoded) == len(result.output_ids) - 1
    check("hidden_states", Verdict.TARGET_ONLY, unruled=UNRULED)


def test_with_eagle3_they_are_those_that_the_draft_reads() -> None:
    plain, ours = served("EAGLE3", None), served("EAGLE3", "every 3")
    for theirs, mine in zip(plain.results, ours.results, strict=True):
        assert len(theirs.hidden_states) == len(mine.hidden_states)
        # Three layers side by side.
        assert {3 * np.shape(row)[-1] for row in theirs.hidden_states} == {
            np.shape(row)[-1] for row in mine.hidden_states
        }
    check("hidden_states_eagle3", Verdict.TARGET_ONLY, unruled=UNRULED)


def test_with_standalone_they_are_those_of_decoded_tokens_only() -> None:
    plain, ours = served("STANDALONE", None), served("STANDALONE", "every 3")
    for theirs, mine in zip(plain.results, ours.results, strict=True):
        assert len(theirs.hidden_states[0]) == 30
        assert len(mine.hidden_states) == len(theirs.hidden_states) - 1
        for row, other in zip(mine.hidden_states, theirs.hidden_states[1:], strict=True):
            assert np.allclose(row, other, atol=10 * LOGPROB_TOLERANCE)
    check("hidden_states_standalone", Verdict.TARGET_ONLY, unruled="no row at all")


@pytest.mark.parametrize("algorithm", SERVED)
def test_speculation_would_return_one_row_a_step(algorithm: str) -> None:
    unruled = served(algorithm, "speculate", "off")
    assert set(unruled.modes) == {Mode.SPECULATE}
    assert not differences(unruled, served(algorithm, None))
    for result in unruled.results:
        # STANDALONE keeps none at all.
        steps = 0 if algorithm == "STANDALONE" else result.verify_steps
        assert len(result.hidden_states) - (algorithm != "STANDALONE") == steps
        assert steps < len(result.output_ids) - 1


def test_the_rows_that_speculation_returns_are_not_those_of_the_tokens() -> None:
    ours = served("EAGLE", "speculate", "off").results
    theirs = served("EAGLE", None).results
    wrong = [
        not np.allclose(mine.hidden_states[1], plain.hidden_states[1], atol=1e-2)
        for mine, plain in zip(ours, theirs, strict=True)
    ]
    # The first request's first row is the only one in the right place.
    assert wrong == [False, True, True]
