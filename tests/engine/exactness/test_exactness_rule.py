"""The rule in a running scheduler: when it holds, what passes it by, and what it says."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from harness import EngineDriver, Request, run_scenario
from runs import (
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    fixed,
    periodic,
    run,
    run_plain,
)
from workloads import models, text

from specswitch.control.decision import Mode
from specswitch.engine.errors import StartupRefusal

PENALTY = {"presence_penalty": 1.5}
UNGUARDED = {"guard": {"dwell_steps": 0, "votes": 1}}


def requests(*asked: dict[str, Any] | None) -> list[Request]:
    """A request of equal length for each wish, 6 ticks apart."""
    return [
        Request(list(prompt), max_new_tokens=30, arrive=6 * number, sampling=wish or {})
        for number, (prompt, wish) in enumerate(zip(text("EAGLE"), asked, strict=False))
    ]


@pytest.mark.parametrize("policy", [fixed(Mode.SPECULATE), periodic(2)], ids=["fixed", "periodic"])
def test_a_batch_is_target_only_as_long_as_it_holds_such_a_request(policy: dict[str, Any]) -> None:
    asked = requests(None, PENALTY, None)
    outcome = run(asked, "EAGLE", policy, config=UNGUARDED)
    assert_same_answers(outcome, run_plain(asked, "EAGLE").results)
    assert_settled(outcome)
    assert_books_balance(outcome)
    rid = outcome.results[1].rid
    for step, (mode, reason) in zip(outcome.steps, outcome.decisions, strict=True):
        holds_it = rid in step.kept or rid in step.discarded
        assert (reason == "exactness") == holds_it
        assert (step.mode is Mode.TARGET_ONLY) >= holds_it
        assert str(step.mode) == mode
    assert outcome.results[1].verify_steps == 0
    # Before it came and after it had gone.
    assert outcome.modes[0] is Mode.SPECULATE
    assert Mode.SPECULATE in outcome.modes[-6:]
    assert outcome.snapshot["exactness"] == {
        "setting": "strict",
        "requests": {"presence_penalty": 1},
    }


def test_the_operator_cannot_override_it() -> None:
    def prepare(driver: EngineDriver, _notes: dict[str, Any]) -> None:
        driver.worker.controller.override(Mode.SPECULATE)

    outcome = run(requests(PENALTY), "EAGLE", fixed(Mode.SPECULATE), prepare=prepare)
    assert {reason for _, reason in outcome.decisions} == {"exactness"}
    assert set(outcome.modes) == {Mode.TARGET_ONLY}


def test_a_request_that_is_retracted_is_still_kept_from_speculation() -> None:
    asked = [
        Request(
            list(prompt[:24]), max_new_tokens=90 + number, arrive=number, sampling={"min_p": 1.0}
        )
        for number, prompt in enumerate(text("EAGLE")[:8])
    ]
    for request in asked:
        request.sampling["temperature"] = 2.0
    outcome = run(asked, "EAGLE", periodic(3), max_total_tokens=512)
    assert sum(result.retractions for result in outcome.results) > 0
    assert set(outcome.modes) == {Mode.TARGET_ONLY}
    assert outcome.snapshot["exactness"]["requests"] == {"min_p": 8}
    # Only the likeliest token is left.
    greedy = [Request(each.input_ids, each.max_new_tokens) for each in asked]
    assert_same_answers(outcome, run_plain(greedy, "EAGLE").results)


def test_warn_speculates_and_says_each_option_once() -> None:
    def prepare(driver: EngineDriver, notes: dict[str, Any]) -> None:
        logger = logging.getLogger("specswitch.engine.exactness")
        notes["said"] = said = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())
        logger.addHandler(handler)

    asked = requests(PENALTY, PENALTY, {"min_p": 1.0, "temperature": 1.0})
    config = {"exactness": "warn"}
    outcome = run(asked, "EAGLE", fixed(Mode.SPECULATE), config=config, prepare=prepare)
    assert set(outcome.modes) == {Mode.SPECULATE}
    assert {reason for _, reason in outcome.decisions} == {"fixed"}
    assert outcome.snapshot["exactness"] == {
        "setting": "warn",
        "requests": {"presence_penalty": 2, "min_p": 1},
    }
    assert len(outcome.notes["said"]) == 2
    assert "asks for presence_penalty" in outcome.notes["said"][0]
    assert "asks for min_p, and speculation ignores it" in outcome.notes["said"][1]


def start(**server_args: Any) -> None:
    def scenario() -> None:
        EngineDriver("EAGLE", "specswitch", {}, models=models("EAGLE"), **server_args)

    run_scenario(scenario)


def test_a_server_that_accepts_drafts_too_readily_does_not_start() -> None:
    with pytest.raises(StartupRefusal, match=r"set it to 1\.0, or set exactness: warn"):
        start(speculative_accept_threshold_single=0.7)


def test_verification_filters_by_top_k_and_top_p_as_plain_decode_does() -> None:
    def scenario() -> tuple[list[float], list[float], set[int]]:
        import torch
        from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch
        from sglang.srt.speculative import eagle_info_v2

        from specswitch.engine.exactness import repair

        probabilities = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
        top_ks, top_ps = torch.tensor([2]), torch.tensor([0.5])

        def filtered() -> list[float]:
            # As the verification does, one after the other (speculative/eagle_info_v2.py:419).
            left = eagle_info_v2.top_k_renorm_prob(probabilities.clone(), top_ks)
            return eagle_info_v2.top_p_renorm_prob(left, top_ps)[0].tolist()

        before = filtered()
        repair()
        repair()
        drawn = {
            int(
                top_k_top_p_min_p_sampling_from_probs_torch(
                    probabilities.clone(), top_ks, top_ps, torch.zeros(1), False, None, None
                )
            )
            for _ in range(200)
        }
        return before, filtered(), drawn

    before, after, drawn = run_scenario(scenario)
    assert before == [1.0, 0.0, 0.0, 0.0], "the engine filters as plain decode does by itself"
    assert after == pytest.approx([4 / 7, 3 / 7, 0.0, 0.0])
    assert drawn == {0, 1}
