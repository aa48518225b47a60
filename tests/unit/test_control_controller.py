"""The controller: order of what it asks, override, listeners, counters, building from a config."""

from __future__ import annotations

import logging

import pytest
from load_samples import SPECULATE, TARGET_ONLY, Script, decide_all, load, modes

from specswitch.config import Config, resolve
from specswitch.control import (
    Controller,
    Decision,
    FixedPolicy,
    LoadSample,
    Mode,
    Reason,
    Switch,
    build_controller,
)


def controller_of(**flags: object) -> Controller:
    """A controller with the default configuration, but for these flags (`__` stands for a dot)."""
    return build_controller(
        resolve(None, {key.replace("__", "."): value for key, value in flags.items()}).config
    )


def quick(**flags: object) -> Controller:
    """The same without dwell and votes."""
    return controller_of(**{"guard__dwell_steps": 0, "guard__votes": 1, **flags})


BUSY = {"waiting": 50}
BIG = {"running": 65}


# --- decisions


def test_before_the_first_sample_there_is_a_starting_decision() -> None:
    controller = Controller(Script(""), max_speculative_batch=8)
    assert controller.mode is SPECULATE
    assert controller.last == Decision(-1, SPECULATE, Reason.START, False)


def test_decision_names_step_mode_and_reason_and_whether_it_switched() -> None:
    controller = quick()
    assert controller.decide(load(3)) == Decision(3, SPECULATE, Reason.STEADY, False)
    assert controller.decide(load(4, **BUSY)) == Decision(4, TARGET_ONLY, Reason.WAITING_HIGH, True)
    assert controller.decide(load(5, **BUSY)) == Decision(5, TARGET_ONLY, Reason.STEADY, False)
    assert controller.decide(load(6)) == Decision(6, SPECULATE, Reason.LOAD_LOW, True)
    assert controller.last.step == 6
    assert controller.mode is SPECULATE


@pytest.mark.parametrize("step", [4, 5, -1])
def test_step_that_does_not_follow_the_last_one_is_refused(step) -> None:
    controller = quick()
    controller.decide(load(5))
    with pytest.raises(ValueError, match=f"got {step} after 5"):
        controller.decide(load(step))
    assert controller.last.step == 5


def test_failing_policy_reaches_the_caller_and_changes_nothing() -> None:
    controller = Controller(Script("t"), max_speculative_batch=8)
    controller.decide(load(0))
    before = controller.last
    with pytest.raises(StopIteration):
        controller.decide(load(1))
    assert controller.last is before
    assert sum(controller.counters.steps.values()) == 1


# --- batch limit


def test_batch_above_the_limit_is_target_only_at_once() -> None:
    controller = controller_of(guard__dwell_steps=100, guard__votes=50)
    assert controller.decide(load(0, running=64)).mode is SPECULATE
    assert controller.decide(load(1, **BIG)) == Decision(1, TARGET_ONLY, Reason.BATCH_LIMIT, True)


def test_batch_limit_goes_past_a_dwell_that_has_just_begun() -> None:
    controller = controller_of(guard__dwell_steps=10, guard__votes=1)
    samples = [load(0, **BUSY), *(load(step) for step in range(1, 11)), load(11, **BIG)]
    decisions = decide_all(controller, samples)
    assert modes(decisions) == "t" * 10 + "S" + "t"
    assert decisions[-1].reason is Reason.BATCH_LIMIT


def test_limit_moves_with_the_configuration() -> None:
    controller = quick(max_speculative_batch=4)
    assert controller.decide(load(0, running=4)).mode is SPECULATE
    assert controller.decide(load(1, running=5)).reason is Reason.BATCH_LIMIT


def test_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_speculative_batch must be at least 1"):
        Controller(Script(""), max_speculative_batch=0)


# --- override


def test_override_goes_past_dwell_and_votes() -> None:
    controller = controller_of(guard__dwell_steps=100, guard__votes=50)
    controller.override(TARGET_ONLY)
    assert controller.decide(load(0)) == Decision(0, TARGET_ONLY, Reason.OVERRIDE, True)
    controller.override(SPECULATE)
    assert controller.decide(load(1, **BUSY)) == Decision(1, SPECULATE, Reason.OVERRIDE, True)


def test_override_holds_against_any_load_until_it_is_lifted() -> None:
    controller = quick()
    controller.override(SPECULATE)
    assert modes(decide_all(controller, (load(step, **BUSY) for step in range(5)))) == "SSSSS"
    assert controller.overridden is SPECULATE
    controller.override(None)
    assert controller.overridden is None
    assert controller.decide(load(5, **BUSY)).reason is Reason.WAITING_HIGH


def test_override_changes_nothing_before_the_next_step() -> None:
    controller = quick()
    controller.override(TARGET_ONLY)
    assert controller.mode is SPECULATE
    controller.override(None)
    assert controller.decide(load(0)) == Decision(0, SPECULATE, Reason.STEADY, False)


def test_batch_limit_is_above_the_override() -> None:
    controller = quick()
    controller.override(SPECULATE)
    assert controller.decide(load(0, **BIG)).reason is Reason.BATCH_LIMIT
    assert controller.decide(load(1)) == Decision(1, SPECULATE, Reason.OVERRIDE, True)


def test_override_to_speculate_waits_for_room_under_the_cap() -> None:
    controller = controller_of(guard__max_switches_per_1000_steps=2)
    controller.override(TARGET_ONLY)
    controller.decide(load(0))
    controller.override(SPECULATE)
    assert controller.decide(load(1)) == Decision(1, TARGET_ONLY, Reason.SWITCH_CAP, False)
    assert controller.decide(load(999)).reason is Reason.SWITCH_CAP
    assert controller.decide(load(1000)) == Decision(1000, SPECULATE, Reason.OVERRIDE, True)
    controller.override(TARGET_ONLY)
    assert controller.decide(load(1001)) == Decision(1001, TARGET_ONLY, Reason.OVERRIDE, True)


def test_policy_dwells_after_an_override_is_lifted() -> None:
    controller = controller_of(guard__dwell_steps=4, guard__votes=1)
    controller.override(TARGET_ONLY)
    controller.decide(load(0))
    controller.override(None)
    decisions = decide_all(controller, (load(step) for step in range(1, 6)))
    assert modes(decisions) == "tttSS"


def test_mode_can_be_overridden_by_its_name() -> None:
    controller = quick()
    controller.override("target_only")  # type: ignore[arg-type]
    assert controller.overridden is TARGET_ONLY


@pytest.mark.parametrize("unknown", ["auto", "", 1])
def test_unknown_override_is_refused_and_the_old_one_stays(unknown) -> None:
    controller = quick()
    controller.override(TARGET_ONLY)
    with pytest.raises(ValueError, match="not a valid Mode"):
        controller.override(unknown)
    assert controller.overridden is TARGET_ONLY


# --- listeners


def test_listeners_hear_of_each_switch_with_its_cause_and_load() -> None:
    controller = quick()
    heard: list[Switch] = []
    controller.add_listener(heard.append)
    busy, calm = load(1, **BUSY), load(3)
    decide_all(controller, [load(0), busy, load(2, **BUSY), calm])
    assert heard == [
        Switch(1, SPECULATE, TARGET_ONLY, Reason.WAITING_HIGH, busy),
        Switch(3, TARGET_ONLY, SPECULATE, Reason.LOAD_LOW, calm),
    ]


def test_listener_finds_the_new_mode_in_place() -> None:
    controller = quick()
    seen: list[tuple[Mode, int]] = []
    controller.add_listener(lambda _: seen.append((controller.mode, controller.counters.switches)))
    controller.decide(load(0, **BUSY))
    assert seen == [(TARGET_ONLY, 1)]


def test_failing_listener_stops_neither_the_decision_nor_other_listeners(caplog) -> None:
    controller = quick()
    heard: list[Switch] = []

    def fail(switch: Switch) -> None:
        raise RuntimeError("no disk")

    controller.add_listener(fail)
    controller.add_listener(heard.append)
    with caplog.at_level(logging.ERROR):
        decisions = decide_all(controller, [load(0, **BUSY), load(1), load(2, **BUSY)])
    assert modes(decisions) == "tSt"
    assert len(heard) == 3
    assert controller.counters.listener_errors == 3


def test_each_failing_listener_is_logged_once_with_its_error(caplog) -> None:
    controller = quick()

    def one(switch: Switch) -> None:
        raise RuntimeError("no disk")

    def other(switch: Switch) -> None:
        raise RuntimeError("no network")

    controller.add_listener(one)
    controller.add_listener(other)
    with caplog.at_level(logging.ERROR):
        decide_all(controller, [load(0, **BUSY), load(1), load(2, **BUSY)])
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == [
        "no disk",
        "no network",
    ]


def test_listener_does_not_swallow_an_interrupt() -> None:
    controller = quick()

    def interrupt(switch: Switch) -> None:
        raise KeyboardInterrupt

    controller.add_listener(interrupt)
    with pytest.raises(KeyboardInterrupt):
        controller.decide(load(0, **BUSY))


def test_listener_added_by_a_listener_hears_from_the_next_switch_on() -> None:
    controller = quick()
    late: list[Switch] = []
    added = []

    def add(switch: Switch) -> None:
        if not added:
            added.append(True)
            controller.add_listener(late.append)

    controller.add_listener(add)
    decide_all(controller, [load(0, **BUSY), load(1)])
    assert [switch.step for switch in late] == [1]


# --- counters


def test_counters_tell_steps_by_mode_and_reason_and_switches() -> None:
    controller = controller_of(guard__dwell_steps=3, guard__votes=2)
    decide_all(controller, [load(0), *(load(step, **BUSY) for step in (1, 2)), load(3), load(4)])
    counters = controller.counters
    assert counters.steps == {SPECULATE: 2, TARGET_ONLY: 3}
    assert {reason: count for reason, count in counters.reasons.items() if count} == {
        Reason.STEADY: 1,
        Reason.VOTES: 2,
        Reason.WAITING_HIGH: 1,
        Reason.DWELL: 1,
    }
    assert counters.switches == 1


# --- building from a configuration


def test_default_configuration_switches_both_ways_after_its_votes_and_dwell() -> None:
    controller = build_controller(Config())
    decisions = decide_all(controller, (load(step, **BUSY) for step in range(10)))
    decisions += decide_all(controller, (load(step) for step in range(10, 60)))
    assert modes(decisions) == "SS" + "t" * 32 + "S" * 26


def test_fixed_policy_starts_in_its_mode_and_stays() -> None:
    controller = controller_of(policy__kind="fixed", policy__mode="target_only")
    assert controller.mode is TARGET_ONLY
    decisions = decide_all(controller, (load(step) for step in range(100)))
    assert modes(decisions) == "t" * 100
    assert controller.counters.switches == 0


def test_fixed_speculate_gives_way_to_the_batch_limit_and_comes_back_through_the_guard() -> None:
    controller = controller_of(policy__kind="fixed", policy__mode="speculate")
    decisions = decide_all(controller, [load(0), load(1, **BIG)])
    decisions += decide_all(controller, (load(step) for step in range(2, 50)))
    assert modes(decisions) == "S" + "t" * 32 + "S" * 17


def test_periodic_policy_is_not_damped_by_the_guard() -> None:
    controller = controller_of(
        policy__kind="periodic",
        policy__period=1,
        guard__dwell_steps=500,
        guard__votes=500,
        guard__max_switches_per_1000_steps=2,
    )
    decisions = decide_all(controller, (load(step, **BUSY) for step in range(3000)))
    assert modes(decisions) == "St" * 1500


def test_periodic_policy_keeps_to_its_beat_and_the_batch_limit() -> None:
    controller = controller_of(policy__kind="periodic", policy__period=2)
    running = [1, 1, 1, 1, 99, 1, 1, 1, 1]
    decisions = decide_all(controller, (load(step, running=n) for step, n in enumerate(running)))
    assert modes(decisions) == "SStttSttS"


def test_marks_set_to_null_are_not_looked_at() -> None:
    controller = quick(policy__running=None, policy__kv_use=None)
    assert controller.decide(load(0, running=64, kv_use=1.0)).mode is SPECULATE


def test_same_object_is_not_needed_to_keep_a_fixed_mode() -> None:
    controller = Controller(FixedPolicy(Mode("speculate")), max_speculative_batch=8)
    assert not controller.decide(LoadSample(0, 0, 1, 0.0)).switched
