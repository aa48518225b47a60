"""What must hold for every sequence of loads and overrides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from load_samples import SPECULATE, TARGET_ONLY

from specswitch.config import Config
from specswitch.control import (
    CAP_WINDOW_STEPS,
    Controller,
    Decision,
    LoadSample,
    Mode,
    Reason,
    Switch,
    build_controller,
    reconfigure,
)

HOLDS = {Reason.VOTES, Reason.DWELL, Reason.SWITCH_CAP, Reason.STEADY, Reason.START}
UNGUARDED = {Reason.BATCH_LIMIT, Reason.OVERRIDE}


@dataclass(frozen=True)
class Stretch:
    """Some steps that go round and round the same loads, after an operator's word.

    Going round is what makes a controller switch as often as it may; independent random
    loads seldom pass votes and dwell, and hypothesis cannot draw thousands of them.
    """

    loads: tuple[LoadSample, ...]
    steps: int
    stride: int
    said: str

    def samples(self, first: int) -> Iterator[LoadSample]:
        for index in range(self.steps):
            yield replace(self.loads[index % len(self.loads)], step=first + index * self.stride)


def loads() -> st.SearchStrategy[LoadSample]:
    """Loads that are often exactly on, or next to, a mark."""
    count = st.one_of(st.integers(0, 14), st.just(10**6))
    kv_use = st.one_of(st.sampled_from([0.0, 0.5, 0.8, 1.0]), st.floats(0, 1))
    return st.builds(LoadSample, st.just(0), count, count, kv_use)


@st.composite
def configs(draw: st.DrawFn, kinds: tuple[str, ...] = ("queue_depth", "fixed")) -> Config:
    """Small marks, so that loads are on both sides of them; guards from none to strict."""

    def marks(high: int) -> dict[str, int]:
        enter = draw(st.integers(1, high))
        return {"enter": enter, "resume": draw(st.integers(0, enter - 1))}

    limit = draw(st.integers(1, 12))
    policy: dict[str, object] = {"kind": draw(st.sampled_from(kinds))}
    if policy["kind"] == "queue_depth":
        policy["waiting"] = marks(10)
        policy["running"] = draw(st.sampled_from([None, marks(limit + 1)]))
        policy["kv_use"] = draw(st.sampled_from([None, {"enter": 0.8, "resume": 0.5}]))
    else:
        policy["mode"] = draw(st.sampled_from(["speculate", "target_only"]))
    return Config.model_validate(
        {
            "policy": policy,
            "guard": {
                "dwell_steps": draw(st.sampled_from([0, 1, 3, 32])),
                "votes": draw(st.sampled_from([1, 2, 5])),
                "max_switches_per_1000_steps": draw(st.sampled_from([2, 3, 4, 20, 1000])),
            },
            "max_speculative_batch": limit,
        }
    )


def histories(said: tuple[str, ...] = ("", "auto", "speculate", "target_only")):
    return st.lists(
        st.builds(
            Stretch,
            loads=st.lists(loads(), min_size=1, max_size=3).map(tuple),
            steps=st.integers(1, 700),
            stride=st.sampled_from([1, 1, 1, 7]),
            said=st.sampled_from(said),
        ),
        max_size=6,
    )


AUTOMATIC = ("",)


@dataclass
class Step:
    sample: LoadSample
    decision: Decision
    override: Mode | None


def play(controller: Controller, history: list[Stretch]) -> list[Step]:
    played = []
    step = 0
    for stretch in history:
        if stretch.said:
            controller.override(None if stretch.said == "auto" else Mode(stretch.said))
        for sample in stretch.samples(step):
            played.append(Step(sample, controller.decide(sample), controller.overridden))
            step = sample.step + 1
    return played


def hold(controller: Controller, load: LoadSample, steps: int) -> list[Decision]:
    """The same load for some more steps."""
    first = controller.last.step + 1
    return [controller.decide(replace(load, step=first + index)) for index in range(steps)]


@st.composite
def flicker(draw: st.DrawFn) -> list[Stretch]:
    """The worst for the cap: thousands of steps between busy and calm, in short stretches."""
    high = LoadSample(0, 10**6, draw(st.sampled_from([0, 10**6])), 1.0)
    low = LoadSample(0, 0, 0, 0.0)
    stretches = st.builds(
        Stretch,
        loads=st.sampled_from([(high, low), (low, high), (high, low, low), (high,), (low,)]),
        steps=st.sampled_from([1, 2, 5, 33, 400, 999, 1000, 1001]),
        stride=st.just(1),
        said=st.sampled_from(["", "", "speculate", "target_only", "auto"]),
    )
    return draw(st.lists(stretches, min_size=1, max_size=8))


@given(configs(), st.one_of(histories(), flicker()))
def test_no_window_of_1000_steps_has_more_switches_than_the_cap(config, history) -> None:
    played = play(build_controller(config), history)
    cap = config.guard.max_switches_per_1000_steps
    switches = [step.decision.step for step in played if step.decision.switched]
    # A window holds more than `cap` switches exactly if some switch and the one `cap` later do.
    for one, later in zip(switches, switches[cap:], strict=False):
        assert later - one >= CAP_WINDOW_STEPS


@given(configs(), histories())
def test_batch_above_the_limit_never_speculates(config, history) -> None:
    for step in play(build_controller(config), history):
        if step.sample.running > config.max_speculative_batch:
            assert step.decision.mode is TARGET_ONLY
            assert step.decision.reason is Reason.BATCH_LIMIT


@given(configs(), histories())
def test_policy_switches_only_after_the_dwell(config, history) -> None:
    last = None
    for step in play(build_controller(config), history):
        decision = step.decision
        if not decision.switched:
            continue
        if last is not None and decision.reason not in UNGUARDED:
            assert decision.step - last >= config.guard.dwell_steps
        last = decision.step


@given(configs(), histories())
def test_override_holds_at_every_step_but_for_the_limit_and_the_cap(config, history) -> None:
    for step in play(build_controller(config), history):
        decision = step.decision
        if step.override is TARGET_ONLY:
            assert decision.mode is TARGET_ONLY
        elif step.override is SPECULATE and decision.mode is TARGET_ONLY:
            assert decision.reason in {Reason.BATCH_LIMIT, Reason.SWITCH_CAP}


@given(configs(), histories())
def test_same_samples_and_overrides_give_the_same_decisions(config, history) -> None:
    twin = Config.model_validate(config.model_dump(mode="json"))
    once = [step.decision for step in play(build_controller(config), history)]
    again = [step.decision for step in play(build_controller(twin), history)]
    assert once == again


@given(configs(), histories(AUTOMATIC), loads())
def test_constant_load_never_flips_more_than_once(config, history, load) -> None:
    controller = build_controller(config)
    play(controller, history)
    assert sum(decision.switched for decision in hold(controller, load, 2500)) <= 1


@given(configs(("queue_depth",)), histories())
def test_low_load_always_ends_in_speculate(config, history) -> None:
    controller = build_controller(config)
    play(controller, history)
    controller.override(None)
    guard = config.guard
    enough = max(CAP_WINDOW_STEPS, guard.dwell_steps, guard.votes) + 1
    assert hold(controller, LoadSample(0, 0, 0, 0.0), enough)[-1].mode is SPECULATE


@given(
    configs(("queue_depth",)),
    histories(),
    st.sampled_from([(10**6, 0, 0.0), (0, 10**6, 0.0), (10**6, 10**6, 1.0)]),
)
def test_high_load_always_ends_in_target_only(config, history, high) -> None:
    controller = build_controller(config)
    play(controller, history)
    controller.override(None)
    enough = max(config.guard.dwell_steps, config.guard.votes) + 1
    assert hold(controller, LoadSample(0, *high), enough)[-1].mode is TARGET_ONLY


@given(configs(), histories())
def test_decisions_counters_and_listeners_tell_the_same_story(config, history) -> None:
    controller = build_controller(config)
    heard: list[Switch] = []
    controller.add_listener(heard.append)
    mode = controller.mode
    decisions = [step.decision for step in play(controller, history)]
    expected = []
    for decision in decisions:
        assert decision.switched == (decision.mode is not mode)
        assert not (decision.switched and decision.reason in HOLDS)
        if decision.switched:
            expected.append((decision.step, mode, decision.mode, decision.reason))
        mode = decision.mode
    assert [(each.step, each.source, each.target, each.reason) for each in heard] == expected
    counters = controller.counters
    assert counters.switches == len(heard)
    assert counters.steps == {each: sum(d.mode is each for d in decisions) for each in Mode}
    assert sum(counters.reasons.values()) == len(decisions)


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(0, 50))
def test_periodic_policy_switches_on_every_beat(period, first) -> None:
    config = Config.model_validate({"policy": {"kind": "periodic", "period": period}})
    controller = build_controller(config)
    for step in range(first, first + 60):
        decision = controller.decide(LoadSample(step, 10**6, 1, 1.0))
        assert (decision.mode is TARGET_ONLY) == ((step - first) // period % 2 == 1)


@given(st.lists(st.tuples(configs(), st.one_of(histories(), flicker())), min_size=2, max_size=3))
def test_cap_holds_when_rules_are_replaced_on_the_way(parts) -> None:
    controller = build_controller(parts[0][0])
    switched: list[tuple[int, int]] = []
    step = 0
    for config, history in parts:
        reconfigure(controller, config)
        cap = config.guard.max_switches_per_1000_steps
        for stretch in history:
            if stretch.said:
                controller.override(None if stretch.said == "auto" else Mode(stretch.said))
            for sample in stretch.samples(step):
                if controller.decide(sample).switched:
                    switched.append((sample.step, cap))
                step = sample.step + 1
    for index, (last, _) in enumerate(switched):
        window = [cap for at, cap in switched[: index + 1] if last - at < CAP_WINDOW_STEPS]
        assert len(window) <= max(window)
