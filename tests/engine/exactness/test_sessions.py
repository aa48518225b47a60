"""Sessions: a request that goes on from an answer goes on from the same text in every mode."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from harness import EngineDriver, Request, Result, run_scenario
from harness.step_log import StepLog
from workloads import models, text

from specswitch.control.decision import Mode

from .matrix import PATTERNS
from .recorder import check
from .verdicts import Verdict

ALGORITHM = "EAGLE3"
SESSIONS, TURNS = 3, 4
# Many, so that answers end within a step and drafts of what would follow are accepted.
STOPS = list(range(0, 685, 9))
STOCK = "the engine's own worker"


@cache
def served(pattern: str | None, streaming: bool) -> dict[str, Any]:
    """All turns of all sessions under a pattern of modes; None: without speculation.

    Returns:
        ``answers``: by turn, one result for each session; ``prompts``: by session, length of its
        last prompt; ``lost``: KV slots missing once the sessions are closed; ``modes``: of the
        decode steps.
    """
    return run_scenario(_serve, pattern, streaming)


def _serve(pattern: str | None, streaming: bool) -> dict[str, Any]:
    from sglang.srt.managers.io_struct import (
        CloseSessionReqInput,
        OpenSessionReqInput,
        SessionParams,
    )

    driver = _start(pattern, enable_streaming_session=streaming)
    log = StepLog(driver.scheduler) if pattern is not None else None
    names = [f"session {number}" for number in range(SESSIONS)]
    for name in names:
        driver.scheduler.open_session(
            OpenSessionReqInput(capacity_of_str_len=1000, session_id=name, streaming=streaming)
        )
    answers = []
    for turn in range(TURNS):
        requests = [
            Request(
                _said(turn, number),
                max_new_tokens=14 + number,
                rid=f"{name}, turn {turn}",
                sampling={"ignore_eos": False, "stop_token_ids": STOPS if 0 < turn < 3 else []},
                fields={
                    "session_params": SessionParams(
                        id=name,
                        # A streaming session knows its last request itself.
                        rid=None if streaming or turn == 0 else f"{name}, turn {turn - 1}",
                    )
                },
            )
            for number, name in enumerate(names)
        ]
        answers.append(driver.generate(requests))
    sessions = driver.scheduler.session_controller
    prompts = [
        max(len(node.req.origin_input_ids) for node in sessions.get(name).req_nodes.values())
        for name in names
    ]
    for name in names:
        driver.scheduler.close_session(CloseSessionReqInput(session_id=name))
    return {
        "answers": answers,
        "prompts": prompts,
        "lost": driver.lost_slots,
        "modes": [step.mode for step in log.steps] if log else [],
    }


def _start(pattern: str | None, **server_args: Any) -> EngineDriver:
    if pattern is None:
        return EngineDriver(None, models=models(ALGORITHM), **server_args)
    if pattern == STOCK:
        return EngineDriver(ALGORITHM, models=models(ALGORITHM), **server_args)
    config = {"policy": PATTERNS[pattern]}
    return EngineDriver(ALGORITHM, "specswitch", config, models=models(ALGORITHM), **server_args)


def _said(turn: int, number: int) -> list[int]:
    prompts = text(ALGORITHM)
    return list(prompts[number][:40] if turn == 0 else prompts[5 + turn + number][:11])


def _tokens(answers: list[list[Result]]) -> list[list[list[int]]]:
    return [[result.output_ids for result in turn] for turn in answers]


@pytest.mark.parametrize("streaming", [False, True], ids=["session", "streaming_session"])
@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_a_session_gets_the_same_answers_in_every_mode(pattern: str, streaming: bool) -> None:
    run, plain = served(pattern, streaming), served(None, streaming)
    assert run["prompts"] == plain["prompts"]
    assert _tokens(run["answers"]) == _tokens(plain["answers"])
    assert [r.finish_reason for turn in run["answers"] for r in turn] == [
        r.finish_reason for turn in plain["answers"] for r in turn
    ]
    assert run["lost"] == 0
    expected = {"target_only": {Mode.TARGET_ONLY}, "speculate": {Mode.SPECULATE}}
    assert set(run["modes"]) == expected.get(pattern, set(Mode))
    # Later turns found what was cached for the earlier ones.
    assert all(result.cached_tokens for turn in run["answers"][1:] for result in turn)
    check("streaming_session" if streaming else "session", Verdict.IDENTICAL)


def test_the_engine_alone_goes_on_from_what_was_accepted_after_the_end() -> None:
    stock, plain = served(STOCK, False), served(None, False)
    assert _tokens(stock["answers"][:2]) == _tokens(plain["answers"][:2])
    assert sum(stock["prompts"]) > sum(plain["prompts"])
