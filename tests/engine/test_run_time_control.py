"""Commands of the operator, as the scheduler gets them between two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import EngineDriver, Request
from runs import Run, assert_same_answers, assert_settled, fixed, periodic, reference, run
from workloads import text

from specswitch.control.decision import Mode


def send(driver: EngineDriver, **values: Any) -> Any:
    from sglang.srt.managers.io_struct import SetInternalStateReq

    return driver.scheduler.set_internal_state(SetInternalStateReq(server_args=values)).updated


def at_steps(commands: dict[int, Any]) -> Callable[[EngineDriver, dict[str, Any]], Any]:
    """For `run(prepare=...)`: send each command before the step of its number is decided on."""

    def prepare(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        notes["answers"] = []
        waiting = dict(commands)

        def on_tick(driver: EngineDriver) -> None:
            for step in [
                each for each in waiting if each <= driver.worker.controller.last.step + 1
            ]:
                notes["answers"].append(send(driver, specswitch=waiting.pop(step)))

        return on_tick

    return prepare


def served_right(outcome: Run, name: str = "staggered") -> None:
    assert_same_answers(outcome, reference(name, "EAGLE3"))
    assert_settled(outcome)


def test_each_mode_is_forced_at_the_next_step_and_given_back() -> None:
    outcome = run(
        "staggered",
        "EAGLE3",
        fixed(Mode.SPECULATE),
        prepare=at_steps(
            {5: {"mode": "target_only"}, 11: {"mode": "speculate"}, 20: {"mode": "auto"}}
        ),
    )
    served_right(outcome)
    assert outcome.modes[:12] == [Mode.SPECULATE] * 5 + [Mode.TARGET_ONLY] * 6 + [Mode.SPECULATE]
    assert [reason for _, reason in outcome.decisions[4:22]] == (
        ["fixed"] + ["override"] * 15 + ["fixed"] * 2
    )
    assert [answer["accepted"] for answer in outcome.notes["answers"]] == [True] * 3
    assert outcome.notes["answers"][0]["changed"] == ["override: auto -> target_only"]
    assert outcome.notes["answers"][0]["specswitch"]["override"] == "target_only"


def test_thresholds_take_effect_while_requests_are_served() -> None:
    policy = {"kind": "queue_depth", "running": {"enter": 30, "resume": 0}, "kv_use": None}
    config = {"guard": {"dwell_steps": 0, "votes": 1}}
    outcome = run(
        "staggered",
        "EAGLE3",
        policy,
        config=config,
        prepare=at_steps({8: {"set": {"policy.running.enter": 1}}, 20: {"reset": True}}),
    )
    served_right(outcome)
    assert set(outcome.modes[:8]) == {Mode.SPECULATE}
    assert outcome.decisions[8] == ("target_only", "running_high")
    assert outcome.snapshot["changed"] == {}
    assert outcome.notes["answers"][0]["specswitch"]["changed"] == {"policy.running.enter": [30, 1]}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({"set": {"policy.waiting.enter": -3}}, "policy.waiting.enter: must be at least 1"),
        ({"set": {"max_speculative_batch": 65}}, "max_speculative_batch: 65 is above 64"),
        ({"mode": "off"}, "mode: expected auto, speculate, target_only"),
        ({"set": {"guard.votes": 1, "draft_sync.mode": "off"}}, "fixed at start-up"),
        (None, "expected a mapping"),
        ("target_only", "expected a mapping"),
    ],
)
def test_what_is_refused_changes_nothing(command: Any, message: str) -> None:
    outcome = run("at_once", "EAGLE3", {}, prepare=at_steps({4: command}))
    served_right(outcome, "at_once")
    (answer,) = outcome.notes["answers"]
    assert not answer["accepted"]
    assert message in answer["error"]
    assert outcome.snapshot["changed"] == {}
    assert outcome.snapshot["override"] == "auto"
    assert set(outcome.modes) == {Mode.SPECULATE}


def test_a_command_that_fails_inside_does_not_end_the_scheduler() -> None:
    def prepare(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        def fail(command: Any) -> None:
            raise RecursionError("too deep")

        driver.worker.steering.apply = fail
        return at_steps({4: {"mode": "auto"}})(driver, notes)

    outcome = run("at_once", "EAGLE3", {}, prepare=prepare)
    served_right(outcome, "at_once")
    (answer,) = outcome.notes["answers"]
    assert not answer["accepted"]
    assert "too deep" in answer["error"]


def test_the_engines_own_settings_still_work_but_not_beside_ours() -> None:
    def prepare(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        notes["own"] = send(driver, speculative_accept_threshold_single=0.5)
        notes["beside"] = send(
            driver, specswitch={"mode": "target_only"}, speculative_accept_threshold_single=0.6
        )
        notes["value"] = driver.server_args.speculative_accept_threshold_single

    outcome = run("at_once", "EAGLE3", {}, config={"exactness": "warn"}, prepare=prepare)
    assert outcome.notes["own"] is True
    assert outcome.notes["value"] == 0.5
    assert "holds nothing else" in outcome.notes["beside"]["error"]
    assert outcome.snapshot["override"] == "auto"


def test_settings_of_the_engine_that_make_answers_inexact_are_refused() -> None:
    def prepare(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        notes["loose"] = send(driver, speculative_accept_threshold_acc=0.5)
        notes["exact"] = send(driver, speculative_accept_threshold_acc=1.0)
        notes["value"] = driver.server_args.speculative_accept_threshold_acc

    outcome = run("at_once", "EAGLE3", {}, prepare=prepare)
    assert outcome.notes["loose"]["accepted"] is False
    assert "set it to 1.0" in outcome.notes["loose"]["error"]
    assert outcome.notes["exact"] is True
    assert outcome.notes["value"] == 1.0


def test_a_server_without_specswitch_says_so() -> None:
    def prepare(driver: EngineDriver, notes: dict[str, Any]) -> Any:
        notes["answer"] = send(driver, specswitch={"mode": "auto"})

    outcome = run("at_once", "EAGLE3", worker=None, prepare=prepare)
    assert "without specswitch" in outcome.notes["answer"]["error"]


# --- requests that opt out


def requests(wishes: list[Any]) -> list[Request]:
    """A request of equal length for each wish, 6 ticks apart."""
    return [
        Request(
            list(prompt),
            max_new_tokens=30,
            arrive=6 * number,
            sampling={} if wish is None else {"custom_params": {"specswitch": wish}},
        )
        for number, (prompt, wish) in enumerate(zip(text("EAGLE3"), wishes, strict=False))
    ]


def test_a_batch_with_a_request_that_opted_out_is_target_only() -> None:
    asked = requests([None, {"speculate": False}, None])
    outcome = run(asked, "EAGLE3", fixed(Mode.SPECULATE), config={"guard": {"dwell_steps": 0}})
    plain = run(asked, "EAGLE3", fixed(Mode.TARGET_ONLY))
    assert_same_answers(outcome, plain.results)
    assert_settled(outcome)
    rid = outcome.results[1].rid
    for step, (mode, reason) in zip(outcome.steps, outcome.decisions, strict=True):
        holds_it = rid in step.kept or rid in step.discarded
        assert (reason == "request_opt_out") == holds_it
        assert (step.mode is Mode.TARGET_ONLY) >= holds_it
        assert str(step.mode) == mode
    assert outcome.results[1].verify_steps == 0
    assert outcome.results[0].verify_steps > 0
    assert outcome.snapshot["opt_outs"] == 1


@pytest.mark.parametrize("wish", [{"speculate": True}, {"speculate": 0}, {"speculat": False}, 3])
def test_any_other_wish_is_served_as_if_it_were_absent(wish: Any) -> None:
    outcome = run(requests([wish]), "EAGLE3", fixed(Mode.SPECULATE))
    assert set(outcome.modes) == {Mode.SPECULATE}
    assert outcome.snapshot["opt_outs"] == 0


def test_a_request_that_opted_out_stays_so_when_it_is_retracted() -> None:
    asked = [
        Request(
            list(prompt[:24]),
            max_new_tokens=90 + number,
            arrive=number,
            sampling={"ignore_eos": False, "custom_params": {"specswitch": {"speculate": False}}},
        )
        for number, prompt in enumerate(text("EAGLE3")[:8])
    ]
    outcome = run(asked, "EAGLE3", periodic(3), max_total_tokens=512)
    assert sum(result.retractions for result in outcome.results) > 0
    assert set(outcome.modes) == {Mode.TARGET_ONLY}
    assert outcome.snapshot["opt_outs"] == 8
