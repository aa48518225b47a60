"""What each policy proposes."""

from __future__ import annotations

import math

import pytest
from load_samples import SPECULATE, TARGET_ONLY, load, modes, run_script

from specswitch.control import (
    FixedPolicy,
    Marks,
    Mode,
    PeriodicPolicy,
    Proposal,
    QueueDepthPolicy,
    Reason,
)

POLICY = QueueDepthPolicy(
    waiting=Marks(enter=10, resume=2), running=Marks(enter=40, resume=20), kv_use=Marks(0.9, 0.7)
)
ONLY_WAITING = QueueDepthPolicy(waiting=Marks(enter=10, resume=2))


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (load(waiting=10), Reason.WAITING_HIGH),
        (load(running=40), Reason.RUNNING_HIGH),
        (load(kv_use=0.9), Reason.KV_HIGH),
        (load(waiting=10, running=40, kv_use=0.9), Reason.WAITING_HIGH),
    ],
)
def test_any_quantity_at_its_enter_mark_asks_for_target_only(sample, reason) -> None:
    assert POLICY.propose(sample, SPECULATE) == Proposal(TARGET_ONLY, reason)


def test_just_below_every_enter_mark_speculation_goes_on() -> None:
    sample = load(waiting=9, running=39, kv_use=0.899)
    assert POLICY.propose(sample, SPECULATE) == Proposal(SPECULATE, Reason.STEADY)


def test_resumes_when_all_quantities_are_at_their_resume_marks() -> None:
    sample = load(waiting=2, running=20, kv_use=0.7)
    assert POLICY.propose(sample, TARGET_ONLY) == Proposal(SPECULATE, Reason.LOAD_LOW)


@pytest.mark.parametrize("above", [{"waiting": 3}, {"running": 21}, {"kv_use": 0.701}])
def test_one_quantity_above_its_resume_mark_keeps_target_only(above) -> None:
    sample = load(**{"waiting": 2, "running": 20, "kv_use": 0.7, **above})
    assert POLICY.propose(sample, TARGET_ONLY) == Proposal(TARGET_ONLY, Reason.STEADY)


@pytest.mark.parametrize("mode", list(Mode))
def test_load_between_the_marks_keeps_either_mode(mode) -> None:
    sample = load(waiting=5, running=30, kv_use=0.8)
    assert POLICY.propose(sample, mode) == Proposal(mode, Reason.STEADY)


def test_quantities_without_marks_are_not_looked_at() -> None:
    sample = load(waiting=0, running=10**6, kv_use=1.0)
    assert ONLY_WAITING.propose(sample, SPECULATE).mode is SPECULATE
    assert ONLY_WAITING.propose(sample, TARGET_ONLY).mode is SPECULATE


def test_unknown_kv_use_does_not_resume() -> None:
    assert POLICY.propose(load(kv_use=math.nan), TARGET_ONLY).mode is TARGET_ONLY


@pytest.mark.parametrize(("enter", "resume"), [(2, 2), (2, 3), (0.5, math.nan)])
def test_marks_that_do_not_leave_a_gap_are_refused(enter, resume) -> None:
    with pytest.raises(ValueError, match="must be below enter"):
        Marks(enter=enter, resume=resume)


@pytest.mark.parametrize("wanted", list(Mode))
@pytest.mark.parametrize("current", list(Mode))
def test_fixed_policy_always_proposes_its_mode(wanted, current) -> None:
    assert FixedPolicy(wanted).propose(load(waiting=99), current) == (wanted, Reason.FIXED)


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("period", range(1, 8))
def test_periodic_policy_alternates_after_exactly_its_period(period, first) -> None:
    decisions = run_script(PeriodicPolicy(period), steps=6 * period, first=first)
    assert modes(decisions) == ("S" * period + "t" * period) * 3
    assert {each.reason for each in decisions} == {Reason.PERIODIC}


def test_periodic_policy_needs_a_period() -> None:
    with pytest.raises(ValueError, match="period must be at least 1"):
        PeriodicPolicy(0)
