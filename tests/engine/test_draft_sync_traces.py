"""Random traffic under random flips: whatever happens to a request, its draft KV is right.

Requests come, share prefixes, finish, are aborted and retracted, and the mode changes at any step.
After each trace answers are those of the target alone, every missed position is accounted for, no
slot is lost, and the draft's KV of each resumed request and of each cached prefix is that of a
fresh prefill.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
from draft_kv import differences, keep_all, whole_sequences
from draft_sync_cases import (
    Plan,
    Text,
    assert_each_miss_counts_once,
    assert_says_the_text,
    off_until,
    prompts,
    run_planned,
    texts,
    write,
)
from harness import Request
from runs import Run, assert_books_balance, assert_settled

from specswitch.control.decision import Mode

SEEDS = range(12)
#: Requests that may end at an end token, which these texts never reach, are admitted on a guess of
#: their length. So a small pool overflows, and requests are retracted.
TIGHT: dict[str, Any] = {
    "max_total_tokens": 512,
    "max_running_requests": 8,
    "schedule_conservativeness": 0.01,
}
MAY_END: dict[str, Any] = {"ignore_eos": False}


@cache
def short_texts() -> tuple[Text, ...]:
    """Prompts that leave most of a small pool to the answers."""
    return write(prompts(6, size=3), 180)


@dataclass(frozen=True)
class Trace:
    """What one seed stands for."""

    algorithm: str
    known: Sequence[Text]
    mode: str
    window: int
    server_args: dict[str, Any]
    requests: list[Request]
    plan: Plan


def trace(seed: int) -> Trace:
    rng = random.Random(seed)
    algorithm = ("EAGLE3", "EAGLE3", "STANDALONE", "EAGLE")[seed % 4]
    tight = algorithm != "EAGLE" and seed % 3 != 2
    # Few texts, so that prompts find each other's prefixes and answers in the cache.
    known = short_texts() if tight else texts(algorithm)[:5]
    server_args = {
        "page_size": rng.choice([1, 16]),
        "max_running_requests": rng.choice([3, 5, 8]),
        "chunked_prefill_size": rng.choice([64, -1]),
        # With STANDALONE a cached prefix is wrong at its last position, whoever made it.
        "disable_radix_cache": algorithm == "STANDALONE" or rng.random() < 0.2,
        **(TIGHT if tight else {}),
    }
    return Trace(
        algorithm,
        known,
        "deferred" if seed % 6 < 4 else ("every_step", "off")[seed % 2],
        rng.choice([8, 16, 64]),
        server_args,
        [_request(rng, known, tight, number) for number in range(14)],
        _flips(rng),
    )


def _request(rng: random.Random, known: Sequence[Text], tight: bool, number: int) -> Request:
    arrive = rng.randrange(30 if tight else 150)
    return rng.choice(known).ask(
        rng.choice([0, 0, rng.randrange(60 if tight else 120)]),
        rng.randint(40 if tight else 4, 100),
        rid=f"request {number:02d}",
        arrive=arrive,
        abort=arrive + rng.randint(1, 80) if rng.random() < 0.25 else None,
        sampling=MAY_END if tight else {},
    )


def _flips(rng: random.Random) -> Plan:
    lengths = [rng.choice([1, 1, 2, 3, 5, 9, 17, 40]) for _ in range(200)]
    ends, first = list(accumulate(lengths)), rng.random() < 0.5

    def plan(step: int) -> Mode:
        passed = sum(end <= step for end in ends)
        return Mode.SPECULATE if (passed % 2 == 0) is first else Mode.TARGET_ONLY

    return plan


@cache
def outcome(seed: int) -> Run:
    chosen = trace(seed)
    return run_planned(
        chosen.requests,
        chosen.algorithm,
        chosen.mode,
        chosen.plan,
        window=chosen.window,
        also=keep_all,
        **chosen.server_args,
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_answers_counters_and_draft_kv_are_right(seed: int) -> None:
    chosen, run = trace(seed), outcome(seed)
    assert_says_the_text(run, chosen.requests, chosen.known)
    assert_settled(run)
    assert_each_miss_counts_once(run)
    if chosen.mode != "every_step":
        assert_books_balance(run)
    kept = run.notes["cached"] + ([] if chosen.mode == "off" else run.notes["resumed"])
    # Without sync only what is cached is right, and here nothing may be.
    assert kept or (chosen.mode == "off" and chosen.server_args["disable_radix_cache"])
    answers = whole_sequences(chosen.requests, run)
    assert differences(kept, answers, chosen.algorithm) == {}


def test_the_traces_hold_all_that_they_are_meant_to_hold() -> None:
    runs = [outcome(seed) for seed in SEEDS]
    deferred = [outcome(seed) for seed in SEEDS if trace(seed).mode == "deferred"]
    for counter in ("flushes", "catch_ups", "discarded", "truncated_prefixes"):
        assert sum(run.snapshot["draft_sync"][counter] > 0 for run in deferred) >= 3, counter
    results = [result for run in runs for result in run.results]
    assert sum(result.retractions for result in results) >= 5
    assert sum(result.finish_reason["type"] == "abort" for result in results) >= 5
    assert sum(result.cached_tokens > 16 for result in results) >= 5
    assert sum(run.chunks for run in runs) >= 5
    assert sum(len(run.notes["resumed"]) for run in deferred) >= 50


@pytest.mark.parametrize("page_size", [1, 16])
def test_requests_retracted_without_the_draft_resume_with_its_whole_kv(page_size: int) -> None:
    requests = [
        text.ask(0, 90, rid=f"request {n}", sampling=MAY_END)
        for n, text in enumerate(short_texts())
    ]
    # Retracted, admitted again in chunks and decoded for some steps more before any speculation.
    run = run_planned(
        requests,
        "EAGLE3",
        "deferred",
        off_until(100),
        window=32,
        also=keep_all,
        page_size=page_size,
        **(TIGHT | {"chunked_prefill_size": 64}),
    )
    retracted = [r.rid for r in run.results if r.retractions]
    resumed = {kept.name for kept in run.notes["resumed"]}
    assert resumed & set(retracted)
    assert run.snapshot["draft_sync"]["discarded"] > 0
    assert_says_the_text(run, requests, short_texts())
    assert_settled(run)
    assert_each_miss_counts_once(run)
    kept = run.notes["resumed"] + run.notes["cached"]
    assert differences(kept, whole_sequences(requests, run), "EAGLE3") == {}


def test_a_retraction_discards_what_was_missed_and_is_no_truncated_prefix() -> None:
    requests = [
        text.ask(0, 90, rid=f"request {n}", sampling=MAY_END)
        for n, text in enumerate(short_texts())
    ]
    # Back to speculation before the first of them ends.
    run = run_planned(requests, "EAGLE3", "deferred", off_until(80), window=32, **TIGHT)
    assert sum(result.retractions for result in run.results) > 0
    assert run.snapshot["draft_sync"]["discarded"] > 0
    assert run.snapshot["draft_sync"]["truncated_prefixes"] == 0
    assert_each_miss_counts_once(run)


def test_a_row_that_was_another_request_s_gives_back_only_its_own_positions() -> None:
    """Two rows, nine requests of different lengths, most of which end while the draft is off."""
    requests = [
        text.ask(0, 10 + 7 * (n % 4), rid=f"request {n}")
        for n, text in enumerate(texts("EAGLE3")[:8])
    ]
    requests.append(texts("EAGLE3")[8].ask(0, 120, rid="request 8"))
    run = run_planned(
        requests, "EAGLE3", "deferred", off_until(110), also=keep_all, max_running_requests=2
    )
    assert {kept.name for kept in run.notes["resumed"]} == {"request 8"}
    assert run.snapshot["draft_sync"]["discarded"] > 0
    assert_each_miss_counts_once(run)
    assert differences(run.notes["resumed"], whole_sequences(requests, run), "EAGLE3") == {}
