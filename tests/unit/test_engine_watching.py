"""Parts that only watch: acceptance at switches, the clock, containment, opt-outs."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from specswitch.control.decision import Mode
from specswitch.engine import step_clock
from specswitch.engine.acceptance import EDGE, Acceptance
from specswitch.engine.containment import Containment
from specswitch.engine.metric_table import ALL, Kind
from specswitch.engine.opt_out import OptOuts
from specswitch.engine.step_clock import StepClock

S, T = Mode.SPECULATE, Mode.TARGET_ONLY


# --- acceptance


def stretch(acceptance: Acceptance, mode: Mode, *tokens: int) -> None:
    for count in tokens:
        acceptance.add(mode, count, 1)


def test_before_and_after_are_unknown_until_there_was_a_switch() -> None:
    acceptance = Acceptance()
    stretch(acceptance, S, 3, 3)
    assert (acceptance.recent, acceptance.before, acceptance.after) == (3, None, None)
    stretch(acceptance, T, 1)
    assert (acceptance.before, acceptance.after) == (3, None)
    stretch(acceptance, S, 2)
    assert (acceptance.before, acceptance.after) == (3, 2)


def test_a_server_that_starts_target_only_has_resumed_when_it_speculates() -> None:
    acceptance = Acceptance()
    stretch(acceptance, T, 1, 1)
    stretch(acceptance, S, 4)
    assert (acceptance.before, acceptance.after) == (None, 4)


def test_sides_are_the_steps_next_to_the_switch() -> None:
    acceptance = Acceptance()
    stretch(acceptance, S, *[1] * 50, *[4] * EDGE)
    stretch(acceptance, T, 1)
    stretch(acceptance, S, *[2] * EDGE, *[4] * 50)
    assert (acceptance.before, acceptance.after) == (4, 2)


def test_each_switch_has_sides_of_its_own() -> None:
    acceptance = Acceptance()
    stretch(acceptance, S, 4, 4)
    stretch(acceptance, T, 1)
    stretch(acceptance, S, 2)
    stretch(acceptance, T, 1)
    # A short stretch: what was before the pause does not count as its end.
    assert acceptance.before == 2
    stretch(acceptance, S, 3)
    assert acceptance.after == 3


def test_target_only_tokens_and_empty_steps_do_not_count() -> None:
    acceptance = Acceptance()
    acceptance.add(S, 6, 2)
    acceptance.add(T, 2, 2)
    acceptance.add(S, 0, 0)
    assert acceptance.recent == 3


# --- the clock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(time=0.0)
    monkeypatch.setattr(
        step_clock, "time", SimpleNamespace(perf_counter=lambda: clock.time), raising=True
    )
    return clock


def test_overlapping_steps_are_timed_from_the_end_of_the_one_before(now) -> None:
    clock = StepClock()
    now.time = 100.0
    clock.launch(S)
    now.time = 101.0
    clock.launch(T)  # while the first still runs
    now.time = 105.0
    clock.end(decode=True)
    now.time = 107.0
    clock.end(decode=True)
    assert clock.seconds == {S: 5.0, T: 2.0}


def test_prefills_and_idle_time_belong_to_no_mode(now) -> None:
    clock = StepClock()
    clock.launch(S)
    now.time = 1.0
    clock.end(decode=True)
    now.time = 1.5
    clock.launch(T)  # launched behind a prefill
    now.time = 9.0
    clock.end(decode=False)
    now.time = 11.0
    clock.end(decode=True)
    now.time = 500.0  # nothing to do
    clock.launch(T)
    now.time = 503.0
    clock.end(decode=True)
    assert clock.seconds == {S: 1.0, T: 5.0}


def test_an_end_without_a_launch_is_no_decode_step(now) -> None:
    clock = StepClock()
    now.time = 3.0
    clock.end(decode=True)
    assert clock.seconds == {S: 0.0, T: 0.0}


# --- containment


def test_each_kind_of_failure_is_logged_once_and_all_are_counted(caplog) -> None:
    def publish() -> None:
        raise OSError("no space")

    def count() -> None:
        raise KeyError("mode")

    contained = Containment()
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            contained.run(publish)
            contained.run(count)
    assert contained.errors == 10
    assert [str(record.exc_info[1]) for record in caplog.records] == ["no space", "'mode'"]


def test_results_and_arguments_pass_through() -> None:
    contained = Containment()
    assert contained.run(lambda a, *, b: a + b, 1, b=2) == 3
    assert contained.run(int, "x") is None
    assert contained.errors == 1


def test_an_interrupt_is_not_contained() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Containment().run(interrupt)


# --- opt-outs


class Request:
    rid = "r1"


def opt_out(wish: object) -> tuple[OptOuts, Request]:
    outs, request = OptOuts(), Request()
    outs.note(request, {"specswitch": wish, "other": 1})
    return outs, request


def test_only_the_exact_wish_opts_out() -> None:
    outs, request = opt_out({"speculate": False})
    assert outs.count([Request(), request]) == 1
    assert outs.count([Request()]) == 0
    for wish in ({"speculate": True}, {"speculate": 0}, {"speculate": None}, {}, 3, None):
        outs, request = opt_out(wish)
        assert outs.total == outs.count([request]) == 0


@pytest.mark.parametrize("parameters", [None, {}, [], "specswitch", {"x": 1}])
def test_requests_without_a_wish_are_left_alone(parameters) -> None:
    outs = OptOuts()
    outs.note(Request(), parameters)
    assert outs.total == 0


def test_a_request_that_comes_back_counts_once() -> None:
    outs, request = opt_out({"speculate": False})
    outs.note(request, {"specswitch": {"speculate": False}})
    assert outs.total == 1
    assert outs.count([request]) == 1


def test_a_wish_that_is_not_understood_is_said_once(caplog) -> None:
    outs = OptOuts()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            outs.note(Request(), {"specswitch": {"speculate": "no"}})
        outs.note(Request(), {"specswitch": {"speculate": True}})
    (record,) = caplog.records
    assert '{"speculate": false}' in record.getMessage()


# --- the table


def test_metric_names_follow_prometheus() -> None:
    assert len({metric.name for metric in ALL}) == len(ALL)
    for metric in ALL:
        assert metric.name.startswith("specswitch_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert not metric.name.endswith(("_ms", "_gb", "_percent"))
        assert metric.text.endswith(".")
