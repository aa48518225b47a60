"""What an operator may change at run time: commands, checks, atomicity."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_samples import SPECULATE, TARGET_ONLY, Script, load

from specswitch.config import Config, ConfigError, resolve, update
from specswitch.control import Controller, Reason, build_controller
from specswitch.steering import Command, Steering


def steering_of(**flags: object) -> tuple[Controller, Steering]:
    config = resolve(None, {key.replace("__", "."): value for key, value in flags.items()}).config
    controller = build_controller(config)
    return controller, Steering(controller, config)


def refusal(steering: Steering, command: object) -> str:
    """The message, after checking that nothing has changed."""
    before = steering.config, steering.accepted, steering.refused
    with pytest.raises(ConfigError) as caught:
        steering.apply(command)
    assert (steering.config, steering.accepted, steering.refused - 1) == before
    return str(caught.value)


# --- modes


@pytest.mark.parametrize("mode", ["speculate", "target_only"])
def test_mode_overrides_the_policy_until_auto(mode) -> None:
    controller, steering = steering_of()
    assert steering.apply({"mode": mode}) == [f"override: auto -> {mode}"]
    assert controller.overridden == mode
    assert steering.apply({"mode": "auto"}) == [f"override: {mode} -> auto"]
    assert controller.overridden is None


def test_mode_that_is_in_place_already_changes_nothing() -> None:
    _, steering = steering_of()
    assert steering.apply({"mode": "auto"}) == []


@pytest.mark.parametrize("mode", ["off", "Speculate", "", 1, True, ["auto"], {"a": 1}])
def test_unknown_mode_is_refused(mode) -> None:
    controller, steering = steering_of()
    assert "expected auto, speculate, target_only" in refusal(steering, {"mode": mode})
    assert controller.overridden is None


# --- values


def test_values_take_effect_at_the_next_step_and_the_others_stay() -> None:
    controller, steering = steering_of(guard__dwell_steps=0, guard__votes=1)
    assert steering.apply({"set": {"policy.waiting.enter": 5, "guard.votes": 2}}) == [
        "policy.waiting.enter: 16 -> 5",
        "guard.votes: 1 -> 2",
    ]
    assert controller.decide(load(0, waiting=5)).reason is Reason.VOTES
    assert controller.decide(load(1, waiting=5)).reason is Reason.WAITING_HIGH
    assert steering.config.policy.waiting.resume == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy.waiting.enter": 0}, "policy.waiting.enter: must be at least 1, got `0`"),
        ({"policy.waiting.enter": "5"}, "policy.waiting.enter: expected a whole number"),
        ({"policy.waiting.enter": 2}, "policy.waiting: resume (2, the default) must be"),
        ({"policy.waitng.enter": 5}, "policy.waitng: unknown key; did you mean waiting?"),
        ({"guard.votes": None}, "guard.votes: expected a whole number, got nothing (null)"),
        ({"guard.max_switches_per_1000_steps": 1}, "must be at least 2"),
        ({"max_speculative_batch": 65}, "max_speculative_batch: 65 is above 64, the value at sta"),
        ({"max_speculative_batch": 0}, "max_speculative_batch: must be at least 1"),
        ({"safe_mode": "auto"}, "safe_mode: expected"),
        ({"exactness": "off"}, "exactness: fixed at start-up"),
        ({"draft_sync.window": 32}, "draft_sync.window: fixed at start-up"),
        ({"draft_sync": {"window": 32}}, "draft_sync: fixed at start-up"),
        ({"policy.kind": "fixed"}, "policy.kind: queue_depth is fixed at start-up"),
        ({"policy": {"waiting": {"enter": 5}}}, "policy: give each key by itself, e.g. policy.wai"),
        ({"policy.waiting": {"enter": 5}}, "policy.waiting: give each key by itself"),
        ({"guard": {}}, "guard: give each key by itself"),
        ({"policy": 3}, "policy: "),
        ({"": 3}, "unknown key"),
        ({"nothing": 3}, "unknown key"),
        ({"policy.waiting.enter": float("nan")}, "policy.waiting.enter: "),
        ({"policy.kv_use.enter": float("inf")}, "policy.kv_use.enter: "),
    ],
)
def test_bad_value_changes_nothing_and_says_why(values, message) -> None:
    controller, steering = steering_of()
    # The good ones beside it must not take effect either.
    command = {"mode": "target_only", "set": {"guard.dwell_steps": 7, **values}}
    assert message in refusal(steering, command)
    assert controller.overridden is None
    assert controller.decide(load(0, waiting=15)).mode is SPECULATE


@pytest.mark.parametrize(
    ("key", "start"),
    [("foo.bar", "foo: unknown key"), ("policy.waitng.enter", "policy.waitng: unknown key")],
)
def test_refusal_names_one_key(key, start) -> None:
    _, steering = steering_of()
    assert refusal(steering, {"set": {key: 5}}).startswith(start)


def test_quantity_left_out_is_null_as_in_the_file() -> None:
    _, steering = steering_of(policy__kv_use=None)
    assert steering.apply({"set": {"policy.kv_use.enter": 0.8}}) == [
        "policy.kv_use.enter: null -> 0.8",
        "policy.kv_use.resume: null -> 0.75",
    ]


def test_limit_can_be_lowered_and_raised_again_up_to_the_start() -> None:
    controller, steering = steering_of(max_speculative_batch=32)
    steering.apply({"set": {"max_speculative_batch": 8}})
    assert controller.max_speculative_batch == 8
    steering.apply({"set": {"max_speculative_batch": 32}})
    assert controller.max_speculative_batch == 32
    assert "33 is above 32" in refusal(steering, {"set": {"max_speculative_batch": 33}})


def test_running_marks_follow_the_limit_when_they_did_before() -> None:
    _, steering = steering_of()
    steering.apply({"set": {"max_speculative_batch": 32}})
    assert steering.config.policy.running.enter == 33
    assert steering.config.policy.running.resume == 24


def test_running_marks_of_the_operator_do_not_follow_and_the_refusal_says_what_to_do() -> None:
    _, steering = steering_of(policy__running__enter=60, policy__running__resume=50)
    message = refusal(steering, {"set": {"max_speculative_batch": 32}})
    assert message.startswith("max_speculative_batch: policy.running.enter (60) is never reached")
    assert "lower enter to 33 or less" in message


def test_quantity_can_be_left_out_and_taken_in_again() -> None:
    _, steering = steering_of()
    steering.apply({"set": {"policy.kv_use": None}})
    assert steering.config.policy.kv_use is None
    steering.apply({"set": {"policy.kv_use.enter": 0.8}})
    assert (steering.config.policy.kv_use.enter, steering.config.policy.kv_use.resume) == (
        0.8,
        0.75,
    )


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        ({"policy__kind": "fixed", "policy__mode": "speculate"}, {"policy.mode": "target_only"}),
        ({"policy__kind": "periodic", "policy__period": 4}, {"policy.period": 9}),
    ],
)
def test_other_policies_have_their_own_values(flags, values) -> None:
    _, steering = steering_of(**flags)
    steering.apply({"set": values})
    assert "unknown key" in refusal(steering, {"set": {"policy.waiting.enter": 3}})


# --- reset


def test_reset_goes_back_to_the_start_and_to_auto() -> None:
    controller, steering = steering_of(policy__waiting__enter=9)
    steering.apply({"mode": "target_only", "set": {"policy.waiting.enter": 5}})
    assert steering.differences() == {"policy.waiting.enter": [9, 5]}
    assert steering.apply({"reset": True}) == [
        "policy.waiting.enter: 5 -> 9",
        "override: target_only -> auto",
    ]
    assert steering.differences() == {}
    assert controller.overridden is None


def test_reset_comes_first_when_a_command_has_more() -> None:
    controller, steering = steering_of()
    steering.apply({"set": {"policy.waiting.enter": 5}})
    steering.apply({"reset": True, "set": {"guard.votes": 9}, "mode": "speculate"})
    assert steering.differences() == {"guard.votes": [3, 9]}
    assert controller.overridden is SPECULATE


def test_reset_ends_the_safe_mode() -> None:
    controller, steering = steering_of()
    controller.replace_rules(Script(""), max_speculative_batch=64, safe_mode=TARGET_ONLY)
    assert controller.decide(load(0)).reason is Reason.SAFE_MODE
    steering.apply({"mode": "auto"})
    assert controller.failure is not None
    assert steering.apply({"reset": True}) == ["safe mode left"]
    assert controller.failure is None
    assert controller.decide(load(1)).reason is not Reason.SAFE_MODE


# --- anything at all


@pytest.mark.parametrize(
    "command",
    [None, {}, [], "auto", 3, {"mod": "auto"}, {"set": 3}, {"set": {1: 2}}, {"reset": 1}],
)
def test_what_is_no_command_is_refused(command) -> None:
    _, steering = steering_of()
    refusal(steering, command)


PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        *("policy", "policy.kind", "policy.waiting", "policy.waiting.enter", "policy.running"),
        *("policy.kv_use.resume", "guard", "guard.votes", "guard.", ".", "policy..enter", "x"),
        *("max_speculative_batch", "max_speculative_batch.x", "safe_mode", "draft_sync.mode"),
        *("exactness", "exactness.x"),
    ]
)
COMMANDS = st.fixed_dictionaries(
    {},
    optional={
        "mode": st.one_of(st.sampled_from(["auto", "speculate", "target_only"]), PLAIN),
        "set": st.one_of(
            st.dictionaries(KEYS, st.one_of(st.integers(-1, 70), PLAIN), min_size=1, max_size=4),
            PLAIN,
        ),
        "reset": st.one_of(st.booleans(), PLAIN),
    },
)


def problems_of(steering: Steering, command: object) -> tuple[str, ...] | None:
    """What is wrong with a command; None when it was carried out."""
    try:
        steering.apply(command)
    except ConfigError as error:
        return error.problems
    return None


@given(st.lists(st.one_of(COMMANDS, PLAIN), max_size=6))
def test_any_command_is_carried_out_or_refused_as_a_whole(commands) -> None:
    controller, steering = steering_of()
    twin, twins = steering_of()
    for step, command in enumerate(commands):
        before = steering.config, controller.overridden
        if (problems := problems_of(steering, command)) is not None:
            assert (steering.config, controller.overridden) == before
            assert all(line.isprintable() for line in problems)
        else:
            assert steering.config.max_speculative_batch <= 64
            assert steering.config.draft_sync == Config().draft_sync
            assert Config.model_validate(steering.config.model_dump(mode="json")) == steering.config
        # Another rank, which gets the command as JSON would bring it.
        problems_of(twins, json.loads(json.dumps(command)))
        assert (twins.config, twin.overridden) == (steering.config, controller.overridden)
        sample = load(step, waiting=step * 3, running=step * 15)
        assert controller.decide(sample) == twin.decide(sample)


def test_command_goes_over_the_wire_and_back() -> None:
    command = Command("speculate", {"guard.votes": 2}, reset=True)
    plain = command.plain()
    assert Command.parse(json.loads(json.dumps(plain))) == command
    assert Command.parse({"mode": "auto"}).plain() == {"mode": "auto"}


def test_update_reports_all_problems_by_key() -> None:
    changes: Mapping[str, object] = {"guard.votes": 0, "policy.waiting.enter": -1}
    with pytest.raises(ConfigError) as caught:
        update(Config(), changes)
    assert sorted(caught.value.problems) == [
        "guard.votes: must be at least 1, got `0`",
        "policy.waiting.enter: must be at least 1, got `-1`",
    ]
