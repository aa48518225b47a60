"""Rules replaced while the controller runs, rules that fail, and requests that opt out."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from load_samples import SPECULATE, TARGET_ONLY, Script, decide_all, load, modes

from specswitch.config import Config, resolve
from specswitch.control import (
    Controller,
    Decision,
    LoadSample,
    Mode,
    Policy,
    Proposal,
    Reason,
    Switch,
    build_controller,
    reconfigure,
)

BUSY = {"waiting": 50}


def config_of(**flags: object) -> Config:
    return resolve(None, {key.replace("__", "."): value for key, value in flags.items()}).config


QUICK = {"guard__dwell_steps": 0, "guard__votes": 1}


class Broken(Policy):
    """Proposes to stay, and raises from step `at` on; or on hearing of a switch."""

    def __init__(self, at: int = 0, *, on_switch: bool = False) -> None:
        self._at = at
        self._on_switch = on_switch

    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        if sample.step >= self._at and not self._on_switch:
            raise ZeroDivisionError("no profile")
        wanted = TARGET_ONLY if sample.waiting else SPECULATE
        return Proposal(wanted, Reason.STEADY if wanted is mode else Reason.WAITING_HIGH)

    def on_switch(self, step: int) -> None:
        if self._on_switch:
            raise ZeroDivisionError("no profile")


def broken(safe_mode: Mode | None, at: int = 0, **rules: object) -> Controller:
    return Controller(
        Broken(at),
        **{"max_speculative_batch": 8, "switch_cap": 4, "safe_mode": safe_mode, **rules},
    )


# --- replacing


def test_new_thresholds_hold_from_the_next_step_on() -> None:
    controller = build_controller(config_of(**QUICK))
    assert controller.decide(load(0, waiting=8)).mode is SPECULATE
    reconfigure(controller, config_of(**QUICK, policy__waiting__enter=8))
    assert controller.decide(load(1, waiting=8)).reason is Reason.WAITING_HIGH


def test_mode_override_counters_and_listeners_stay() -> None:
    controller = build_controller(config_of(**QUICK))
    heard: list[Switch] = []
    controller.add_listener(heard.append)
    controller.decide(load(0, **BUSY))
    controller.override(TARGET_ONLY)
    reconfigure(controller, config_of(**QUICK, policy__waiting__enter=99))
    assert controller.mode is TARGET_ONLY
    assert controller.overridden is TARGET_ONLY
    assert controller.decide(load(1)) == Decision(1, TARGET_ONLY, Reason.OVERRIDE, False)
    controller.override(None)
    controller.decide(load(2))
    assert [switch.step for switch in heard] == [0, 2]
    assert controller.counters.switches == 2
    assert sum(controller.counters.steps.values()) == 3


def test_dwell_goes_on_from_the_last_switch() -> None:
    controller = build_controller(config_of(**QUICK))
    controller.decide(load(0, **BUSY))
    reconfigure(controller, config_of(guard__dwell_steps=5, guard__votes=1))
    assert modes(decide_all(controller, (load(step) for step in range(1, 7)))) == "ttttSS"


def test_lower_cap_counts_the_switches_that_came_before_it() -> None:
    controller = build_controller(config_of(**QUICK, guard__max_switches_per_1000_steps=20))
    decide_all(controller, [load(0, **BUSY), load(1), load(2, **BUSY)])
    reconfigure(controller, config_of(**QUICK, guard__max_switches_per_1000_steps=4))
    assert controller.decide(load(3)).reason is Reason.SWITCH_CAP
    assert controller.decide(load(999)).reason is Reason.SWITCH_CAP
    assert controller.decide(load(1000)) == Decision(1000, SPECULATE, Reason.LOAD_LOW, True)


def test_higher_cap_gives_room_at_once() -> None:
    controller = build_controller(config_of(**QUICK, guard__max_switches_per_1000_steps=2))
    controller.decide(load(0, **BUSY))
    assert controller.decide(load(1)).reason is Reason.SWITCH_CAP
    reconfigure(controller, config_of(**QUICK, guard__max_switches_per_1000_steps=3))
    assert controller.decide(load(2)).reason is Reason.LOAD_LOW


def test_cap_knows_of_switches_under_a_policy_without_one() -> None:
    controller = build_controller(config_of(policy__kind="periodic", policy__period=1))
    decide_all(controller, (load(step) for step in range(100)))
    reconfigure(controller, config_of(**QUICK))
    assert controller.decide(load(100)).reason is Reason.SWITCH_CAP
    assert controller.decide(load(1081)).reason is Reason.LOAD_LOW


def test_lower_batch_limit_holds_at_the_next_step() -> None:
    controller = build_controller(config_of(**QUICK))
    assert controller.decide(load(0, running=10)).mode is SPECULATE
    reconfigure(controller, config_of(**QUICK, max_speculative_batch=9))
    assert controller.max_speculative_batch == 9
    assert controller.decide(load(1, running=10)).reason is Reason.BATCH_LIMIT


def test_rules_that_are_refused_leave_the_old_ones_in_place() -> None:
    controller = build_controller(config_of(**QUICK))
    with pytest.raises(ValueError, match="cap must be at least 2"):
        controller.replace_rules(Script("S" * 9), max_speculative_batch=1, switch_cap=1)
    assert controller.max_speculative_batch == 64
    assert controller.decide(load(0, **BUSY)).reason is Reason.WAITING_HIGH


# --- failing


@pytest.mark.parametrize("safe_mode", list(Mode))
def test_safe_mode_stands_in_for_a_policy_that_fails(safe_mode) -> None:
    controller = broken(safe_mode, at=2)
    decisions = decide_all(controller, (load(step) for step in range(5)))
    assert [each.mode for each in decisions[:2]] == [SPECULATE, SPECULATE]
    assert {(each.mode, each.reason) for each in decisions[2:]} == {(safe_mode, Reason.SAFE_MODE)}
    assert isinstance(controller.failure, ZeroDivisionError)
    assert controller.counters.policy_errors == 1


def test_failure_is_logged_once_with_its_error(caplog) -> None:
    controller = broken(TARGET_ONLY)
    with caplog.at_level(logging.ERROR):
        decide_all(controller, (load(step) for step in range(50)))
    (record,) = caplog.records
    assert "step 0" in record.getMessage()
    assert str(record.exc_info[1]) == "no profile"


def test_switch_to_the_safe_mode_is_heard_of_like_any_other() -> None:
    controller = broken(TARGET_ONLY, at=3)
    heard: list[Switch] = []
    controller.add_listener(heard.append)
    decide_all(controller, (load(step) for step in range(6)))
    assert heard == [Switch(3, SPECULATE, TARGET_ONLY, Reason.SAFE_MODE, load(3))]


def test_policy_that_fails_on_hearing_of_a_switch_is_replaced_too() -> None:
    controller = Controller(Broken(on_switch=True), max_speculative_batch=8, safe_mode=TARGET_ONLY)
    assert controller.decide(load(0, waiting=1)).switched
    assert controller.decide(load(1)) == Decision(1, TARGET_ONLY, Reason.SAFE_MODE, False)


def test_batch_limit_override_and_cap_hold_in_the_safe_mode() -> None:
    controller = broken(SPECULATE, switch_cap=2)
    assert controller.decide(load(0)).reason is Reason.SAFE_MODE
    assert controller.decide(load(1, running=9)).reason is Reason.BATCH_LIMIT
    assert controller.decide(load(2)).reason is Reason.SWITCH_CAP
    assert controller.decide(load(1001)) == Decision(1001, SPECULATE, Reason.SAFE_MODE, True)
    controller.override(TARGET_ONLY)
    assert controller.decide(load(1002)).reason is Reason.OVERRIDE


def test_override_that_was_in_place_stays_when_the_policy_fails() -> None:
    controller = broken(TARGET_ONLY, at=1)
    controller.decide(load(0))
    controller.decide(load(1))
    controller.override(SPECULATE)
    assert controller.decide(load(2)).reason is Reason.OVERRIDE
    controller.override(None)
    assert controller.decide(load(3)).reason is Reason.SAFE_MODE


def test_new_rules_end_the_safe_mode() -> None:
    controller = broken(TARGET_ONLY)
    controller.decide(load(0))
    reconfigure(controller, config_of(**QUICK))
    assert controller.failure is None
    assert controller.decide(load(1)).reason is Reason.LOAD_LOW


def test_interrupt_is_no_failure_of_the_policy() -> None:
    class Interrupted(Script):
        def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
            raise KeyboardInterrupt

    controller = Controller(Interrupted(""), max_speculative_batch=8, safe_mode=TARGET_ONLY)
    with pytest.raises(KeyboardInterrupt):
        controller.decide(load(0))


# --- opting out


def test_batch_with_a_request_that_opted_out_is_target_only_at_once() -> None:
    controller = build_controller(config_of(guard__dwell_steps=100, guard__votes=50))
    controller.decide(load(0))
    controller.override(SPECULATE)
    decision = controller.decide(replace(load(1), opt_outs=1))
    assert decision == Decision(1, TARGET_ONLY, Reason.REQUEST_OPT_OUT, True)


def test_batch_limit_is_named_before_an_opt_out() -> None:
    controller = build_controller(config_of(**QUICK))
    decision = controller.decide(replace(load(0, running=65), opt_outs=1))
    assert decision.reason is Reason.BATCH_LIMIT


def test_opt_outs_that_come_and_go_stay_under_the_cap() -> None:
    controller = build_controller(config_of(**QUICK, guard__max_switches_per_1000_steps=4))
    decisions = decide_all(
        controller, (replace(load(step), opt_outs=step % 2) for step in range(500))
    )
    assert sum(each.switched for each in decisions) == 3
    assert not any(each.mode is SPECULATE and each.step % 2 for each in decisions), (
        "speculated for a request that opted out"
    )


# --- exactness


def test_batch_that_speculation_would_answer_otherwise_is_target_only_at_once() -> None:
    controller = build_controller(config_of(guard__dwell_steps=100, guard__votes=50))
    controller.decide(load(0))
    controller.override(SPECULATE)
    decision = controller.decide(replace(load(1), inexact=1))
    assert decision == Decision(1, TARGET_ONLY, Reason.EXACTNESS, True)


@pytest.mark.parametrize(
    "policy", [{"kind": "fixed", "mode": "speculate"}, {"kind": "periodic", "period": 1}]
)
def test_exactness_goes_past_fixed_and_periodic_policies(policy) -> None:
    controller = build_controller(Config.model_validate({"policy": policy}))
    decisions = decide_all(controller, (replace(load(step), inexact=2) for step in range(20)))
    assert {(each.mode, each.reason) for each in decisions} == {(TARGET_ONLY, Reason.EXACTNESS)}


def test_exactness_is_named_after_the_batch_limit_and_before_an_opt_out() -> None:
    controller = build_controller(config_of(**QUICK))
    both = replace(load(0), inexact=1, opt_outs=1)
    assert controller.decide(both).reason is Reason.EXACTNESS
    assert controller.decide(replace(both, step=1, running=65)).reason is Reason.BATCH_LIMIT


def test_inexact_requests_that_come_and_go_stay_under_the_cap() -> None:
    controller = build_controller(config_of(**QUICK, guard__max_switches_per_1000_steps=4))
    decisions = decide_all(
        controller, (replace(load(step), inexact=step % 2) for step in range(500))
    )
    assert sum(each.switched for each in decisions) == 3
    assert not any(each.mode is SPECULATE and each.step % 2 for each in decisions), (
        "speculated for a request that it answers otherwise"
    )


# --- read-out


def test_holds_tell_votes_dwell_and_switches() -> None:
    controller = build_controller(config_of(guard__dwell_steps=10, guard__votes=3))
    controller.decide(load(0, **BUSY))
    assert controller.holds() == {
        "votes": 1,
        "votes_needed": 3,
        "dwell_left": 0,
        "switch_cap": 20,
        "switches_in_window": 0,
    }
    decide_all(controller, [load(1, **BUSY), load(2, **BUSY), load(3)])
    assert controller.holds()["dwell_left"] == 8
    assert controller.holds()["switches_in_window"] == 1
    dwelling = decide_all(controller, (load(step) for step in range(4, 13)))
    assert [each.mode for each in dwelling] == [TARGET_ONLY] * 8 + [SPECULATE]
    controller.decide(load(1003))
    assert controller.holds()["switches_in_window"] == 1
