"""How requests end while modes flip: stop tokens, end of text, length limits, clients that go."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from harness import EngineDriver, Request, Result
from runs import (
    OnTick,
    Run,
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    periodic,
    reference,
    run,
    run_plain,
)
from workloads import CHUNK, ROOM, text, workload

from specswitch.control.decision import Mode

PERIODS = [1, 2, 3, 5]


def last_steps(outcome: Run) -> dict[str, tuple[Mode, int]]:
    """Mode of the step in which each request ended, and the tokens it got from it."""
    last: dict[str, tuple[Mode, int]] = {}
    for step in outcome.steps:
        last |= {rid: (step.mode, tokens) for rid, tokens in step.kept.items()}
    return last


@pytest.mark.parametrize("period", PERIODS)
def test_a_stop_token_ends_a_request_in_either_mode(period: int) -> None:
    answers = [result.output_ids for result in reference("staggered", "EAGLE3")]
    requests, expected = [], []
    for number, (request, answer) in enumerate(
        zip(workload("staggered", "EAGLE3"), answers, strict=True)
    ):
        # The first place at or after `number` where a token comes up that was not there before.
        place = next(
            (i for i in range(number, len(answer)) if answer[i] not in answer[:i]), len(answer) - 1
        )
        sampling = {"stop_token_ids": [answer[place]], "ignore_eos": False}
        requests.append(replace(request, max_new_tokens=ROOM, sampling=sampling))
        expected.append(answer[: answer.index(answer[place]) + 1])
    outcome = run(requests, "EAGLE3", periodic(period), chunked_prefill_size=CHUNK)
    for result, answer in zip(outcome.results, expected, strict=True):
        assert result.output_ids == answer
        assert result.finish_reason == {"type": "stop", "matched": answer[-1]}
    assert_settled(outcome)
    assert_books_balance(outcome)
    endings = last_steps(outcome).values()
    assert {mode for mode, _ in endings} == set(Mode)


@pytest.mark.parametrize("period", [2, 3, 5])
def test_the_end_of_text_ends_a_request_in_either_mode(period: int) -> None:
    outcome = run("to_the_end", "EAGLE3", periodic(period))
    expected = reference("to_the_end", "EAGLE3")
    assert all(result.finish_reason["type"] == "stop" for result in expected)
    assert_same_answers(outcome, expected)
    assert_settled(outcome)
    assert_books_balance(outcome)
    assert {mode for mode, _ in last_steps(outcome).values()} == set(Mode)


@pytest.mark.parametrize("new_tokens", [1, 2, 3])
def test_very_short_answers_have_the_length_asked_for(new_tokens: int) -> None:
    requests = [
        Request(list(prompt), max_new_tokens=new_tokens, arrive=number)
        for number, prompt in enumerate(text("EAGLE3")[:10])
    ]
    # One long request keeps steps of both modes going.
    requests.append(Request(list(text("EAGLE3")[11]), max_new_tokens=60))
    outcome = run(requests, "EAGLE3", periodic(1))
    assert_same_answers(outcome, run_plain(requests, "EAGLE3").results)
    assert [len(result.output_ids) for result in outcome.results[:-1]] == [new_tokens] * 10
    assert_settled(outcome)
    assert_books_balance(outcome)


def is_part_of(mine: Result, theirs: Result) -> bool:
    """Whether an aborted answer agrees with the full one as far as it goes.

    It may go beyond: the engine does not cut what the last step accepted to the length limit
    (managers/schedule_batch.py:1217).
    """
    both = min(len(mine.output_ids), len(theirs.output_ids))
    return mine.output_ids[:both] == theirs.output_ids[:both]


def check_aborts(outcome: Run, name: str, aborted: set[str]) -> None:
    """What was not aborted is complete; what was aborted is a part of the full answer."""
    for mine, theirs in zip(outcome.results, reference(name, "EAGLE3"), strict=True):
        if mine.finish_reason["type"] == "abort":
            assert mine.rid in aborted
            assert is_part_of(mine, theirs)
        else:
            assert mine.output_ids == theirs.output_ids
    assert_settled(outcome)
    assert_books_balance(outcome)


@pytest.mark.parametrize("period", PERIODS)
def test_requests_are_aborted_while_they_wait_prefill_and_run(period: int) -> None:
    rng = random.Random(period)
    requests = [
        replace(
            request,
            rid=f"a{number:05d}",
            abort=request.arrive + rng.choice([0, 1, 2, 4, 9, 14, 22]) if number % 2 else None,
        )
        for number, request in enumerate(workload("calm_burst_calm", "EAGLE3"))
    ]
    outcome = run(
        requests, "EAGLE3", periodic(period), chunked_prefill_size=32, max_running_requests=6
    )
    kinds = []
    for request, mine, theirs in zip(
        requests, outcome.results, reference("calm_burst_calm", "EAGLE3"), strict=True
    ):
        if request.abort is None:
            assert mine.output_ids == theirs.output_ids
        elif mine.finish_reason["type"] == "abort":
            assert is_part_of(mine, theirs)
            kinds.append("running" if mine.output_ids else "waiting")
    assert {"running", "waiting"} == set(kinds)
    assert_settled(outcome)
    assert_books_balance(outcome)


@pytest.mark.parametrize("offset", [-1, 0, 1], ids=["before", "at", "after"])
@pytest.mark.parametrize("period", [2, 3, 4])
def test_requests_are_aborted_around_the_step_of_a_switch(period: int, offset: int) -> None:
    def abort_at_switches(_driver: EngineDriver, notes: dict[str, Any]) -> OnTick:
        from sglang.srt.managers.io_struct import AbortReq

        notes["aborted"] = set()
        seen = set()

        def on_tick(driver: EngineDriver) -> None:
            # The step launched last; the next one is launched in this pass.
            step = driver.worker.controller.last.step
            running = driver.scheduler.running_batch.reqs
            if step in seen or (step - offset) % period or len(running) < 2:
                return
            seen.add(step)
            victim = running[len(seen) % len(running)].rid
            notes["aborted"].add(victim)
            driver.scheduler.abort_request(AbortReq(rid=victim))

        return on_tick

    outcome = run("staggered", "EAGLE3", periodic(period), prepare=abort_at_switches)
    assert len(outcome.notes["aborted"]) >= 3
    check_aborts(outcome, "staggered", outcome.notes["aborted"])


def test_aborting_everything_leaves_an_engine_that_serves_again() -> None:
    def abort_all(_driver: EngineDriver, _notes: dict[str, Any]) -> OnTick:
        from sglang.srt.managers.io_struct import AbortReq

        def on_tick(driver: EngineDriver) -> None:
            if driver.tick == 40:
                driver.scheduler.abort_request(AbortReq(abort_all=True))

        return on_tick

    outcome = run(
        "calm_burst_calm", "EAGLE3", periodic(3), prepare=abort_all, max_running_requests=4
    )
    kinds = [result.finish_reason["type"] for result in outcome.results]
    assert kinds.count("abort") > 10
    assert kinds[-2:] == ["length", "length"]
    check_aborts(outcome, "calm_burst_calm", {result.rid for result in outcome.results})
