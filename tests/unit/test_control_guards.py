"""Each guard alone, round a scripted policy. S: speculate, t: target_only, one letter a step."""

from __future__ import annotations

import pytest
from load_samples import TARGET_ONLY, Script, decide_all, load, modes, run_script

from specswitch.control import CAP_WINDOW_STEPS, Controller, Dwell, Reason, SwitchCap, Votes


def voted(wanted: str, votes: int) -> str:
    return modes(run_script(Votes(Script(wanted), votes), len(wanted)))


def dwelt(wanted: str, dwell_steps: int) -> str:
    return modes(run_script(Dwell(Script(wanted), dwell_steps), len(wanted)))


# --- votes


def test_change_happens_on_the_last_vote_that_was_needed() -> None:
    assert voted("Sttttt", 3) == "SSSttt"


def test_votes_must_be_in_a_row() -> None:
    assert voted("ttSttStt", 3) == "SSSSSSSS"


def test_votes_are_needed_in_both_directions() -> None:
    assert voted("tttSSttSSSS", 3) == "SStttttttSS"


def test_one_vote_lets_every_change_through() -> None:
    assert voted("StStS", 1) == "StStS"


def test_step_held_for_votes_says_so() -> None:
    decisions = run_script(Votes(Script("ttt"), 3), 3)
    assert [each.reason for each in decisions] == [
        Reason.VOTES,
        Reason.VOTES,
        Reason.WAITING_HIGH,
    ]


def test_step_that_is_decided_without_the_policy_starts_the_votes_again() -> None:
    policy = Votes(Script("SSSSS"), 3)
    controller = Controller(policy, max_speculative_batch=8, start=TARGET_ONLY)
    running = [1, 1, 9, 1, 1, 1]
    decisions = decide_all(controller, (load(step, running=n) for step, n in enumerate(running)))
    assert modes(decisions) == "tttttS"


def test_votes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="votes must be at least 1"):
        Votes(Script(""), 0)


# --- dwell


def test_mode_is_kept_for_the_dwell() -> None:
    assert dwelt("tSSSSSSS", 4) == "ttttSSSS"


def test_first_change_needs_no_dwell() -> None:
    assert dwelt("ttt", 100) == "ttt"


def test_dwell_counts_step_numbers_and_not_calls() -> None:
    controller = Controller(Dwell(Script("tSS"), 10), max_speculative_batch=8)
    decisions = decide_all(controller, [load(0), load(9), load(10)])
    assert modes(decisions) == "ttS"


def test_dwell_starts_at_a_switch_that_the_policy_did_not_ask_for() -> None:
    controller = Controller(Dwell(Script("SSSSSSSS"), 3), max_speculative_batch=8)
    running = [1, 9, 1, 1, 1]
    decisions = decide_all(controller, (load(step, running=n) for step, n in enumerate(running)))
    assert modes(decisions) == "StttS"
    assert [each.reason for each in decisions[2:4]] == [Reason.DWELL, Reason.DWELL]


def test_votes_cast_during_the_dwell_count_at_its_end() -> None:
    policy = Dwell(Votes(Script("ttSSSSSS"), 2), 4)
    assert modes(run_script(policy, 8)) == "SttttSSS"


def test_no_dwell_lets_every_change_through() -> None:
    assert dwelt("tStS", 0) == "tStS"


def test_negative_dwell_is_refused() -> None:
    with pytest.raises(ValueError, match="dwell_steps must be at least 0"):
        Dwell(Script(""), -1)


# --- cap


def capped(wanted: str, cap: int) -> str:
    return modes(run_script(Script(wanted), len(wanted), cap=cap))


@pytest.mark.parametrize(
    ("cap", "decided"),
    [
        (2, "tttttttt"),
        (3, "tStttttt"),
        # After three switches a resume would be the fourth and leave no way back.
        (4, "tStttttt"),
        (5, "tStStttt"),
    ],
)
def test_resuming_keeps_room_for_the_way_back(cap, decided) -> None:
    assert capped("tStStStS", cap) == decided


def test_leaving_speculation_is_never_put_off() -> None:
    wanted = "St" * 2000
    decided = modes(run_script(Script(wanted), len(wanted), cap=2))
    assert [letter for letter, want in zip(decided, wanted, strict=True) if want == "t"] == (
        ["t"] * 2000
    )
    assert decided.count("S") > 1


def test_resume_is_let_through_as_soon_as_the_window_has_room() -> None:
    wanted = "t" + "S" * 1200
    decisions = run_script(Script(wanted), len(wanted), cap=2)
    assert modes(decisions) == "t" * CAP_WINDOW_STEPS + "S" * 201
    assert {each.reason for each in decisions[1:CAP_WINDOW_STEPS]} == {Reason.SWITCH_CAP}


def test_cap_of_one_is_refused_because_nothing_could_resume() -> None:
    with pytest.raises(ValueError, match="cap must be at least 2"):
        SwitchCap(Script(""), 1)


# --- all


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: Votes(inner, 2),
        lambda inner: Dwell(inner, 2),
        lambda inner: SwitchCap(inner, 2),
    ],
    ids=["votes", "dwell", "cap"],
)
def test_guards_pass_on_what_they_hear(wrap) -> None:
    inner = Script("")
    guard = wrap(inner)
    guard.on_switch(7)
    guard.on_passed_over()
    assert inner.switches == [7]
    assert inner.passed_over == 1
