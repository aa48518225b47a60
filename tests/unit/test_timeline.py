"""Recordings: stretches of a mode, states of a server, event logs, and what is drawn of them."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from specswitch.config import Config
from specswitch.timeline.event_file import EventLogError, read_event_log
from specswitch.timeline.follow import Follower, TokenRate
from specswitch.timeline.model import Moment, SwitchAt, Timeline

BEGUN = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)


def moment(seconds: float, mode: str = "speculate", step: int = 0) -> Moment:
    return Moment(seconds, step, mode, 1, 2, 0.5, 2.5, 100.0)


def switch(seconds: float, target: str, **changes: Any) -> SwitchAt:
    source = "speculate" if target == "target_only" else "target_only"
    values = {"reason": "waiting_high", "waiting": 9, "running": 4, "kv_use": 0.5, **changes}
    return SwitchAt(seconds, 7, source, target, **values)


# --- stretches


def test_stretches_change_at_switches_and_cover_everything() -> None:
    timeline = Timeline(
        "", [moment(1), moment(9)], [switch(3, "target_only"), switch(7, "speculate")]
    )
    assert timeline.stretches() == [
        *((1, 3, "speculate"), (3, 7, "target_only")),
        (7, 9, "speculate"),
    ]


def test_a_mode_that_changed_unseen_begins_with_the_moment_that_has_it() -> None:
    timeline = Timeline("", [moment(0, "target_only"), moment(4), moment(6)], [])
    assert timeline.stretches() == [(0, 4, "target_only"), (4, 6, "speculate")]


def test_a_recording_that_ends_with_a_switch_reaches_to_it() -> None:
    timeline = Timeline("", [moment(0)], [switch(5, "target_only")])
    assert timeline.seconds == 5
    assert timeline.stretches() == [(0, 5, "speculate"), (5, 5, "target_only")]


# --- states of a server


def test_rate_is_that_of_the_last_second_and_survives_a_restart() -> None:
    rate = TokenRate()
    assert [rate.at(s, t) for s, t in ((0, 0), (1, 50), (2, 250), (2.5, 20), (3.5, 30))] == [
        *(0, 50, 200),
        *(0, 10),
    ]


def server_state(step: int, total: int = 0, **changes: Any) -> dict[str, Any]:
    recent = [
        {
            "step": 10 * number,
            "from": ("target_only", "speculate")[number % 2],
            "to": ("speculate", "target_only")[number % 2],
            "reason": "waiting_high",
            "waiting": 9,
            "running": 4,
            "kv_use": 0.5,
        }
        for number in range(1, total + 1)
    ]
    return {
        "mode": ("speculate", "target_only")[total % 2],
        "reason": "steady",
        "step": step,
        "waiting": 3,
        "running": 2,
        "kv_use": 0.25,
        "steps": {"speculate": step, "target_only": 0},
        "tokens": {"speculate": 2 * step, "target_only": 0},
        "switches": {"total": total, "recent": recent[-64:]},
        "acceptance_length": 2.0,
        "config": Config().model_dump(mode="json"),
        **changes,
    }


def test_switches_from_before_the_recording_are_not_in_it() -> None:
    follower = Follower()
    assert follower.take(0.0, server_state(15, total=1))[1] == []
    _, found = follower.take(1.0, server_state(25, total=2))
    assert [(each.step, each.target, each.seconds) for each in found] == [(20, "speculate", 0.5)]
    timeline = follower.timeline("a server")
    assert (timeline.enter, timeline.resume) == (16, 2)
    assert timeline.steps == {"speculate": 10, "target_only": 0}
    assert timeline.stretches() == [(0.0, 0.5, "target_only"), (0.5, 1.0, "speculate")]


def test_a_server_that_makes_no_steps_for_two_seconds_has_no_load() -> None:
    follower = Follower()
    waiting = [follower.take(s, server_state(5))[0].waiting for s in (0.0, 1.0, 1.9, 2.0, 3.0)]
    assert waiting == [3, 3, 3, 0, 0]
    assert follower.take(3.5, server_state(6))[0].waiting == 3


def test_a_restarted_server_is_followed_on() -> None:
    follower = Follower()
    follower.take(0.0, server_state(50, total=4))
    assert follower.take(1.0, server_state(5))[1] == []
    _, found = follower.take(2.0, server_state(15, total=1))
    assert [each.step for each in found] == [10]
    assert follower.timeline("").steps == {"speculate": 15, "target_only": 0}


def test_an_endless_watch_keeps_no_more_than_it_is_asked_to() -> None:
    follower = Follower(keep=2)
    for step in range(20):
        follower.take(float(step), server_state(step, total=step // 2))
    assert len(follower.moments) == len(follower.found) == 2


# --- event logs


def line(event: str, seconds: float, **values: Any) -> str:
    time = (BEGUN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
    return json.dumps({"event": event, "time": time, **values})


def start(seconds: float, **config: Any) -> str:
    values = Config.model_validate(config).model_dump(mode="json")
    return line("start", seconds, version="0", config=values)


def sample(seconds: float, step: int, tokens: int, **changes: Any) -> str:
    state = server_state(step, tokens={"speculate": tokens, "target_only": 0}, **changes)
    left_out = ("switches", "config")
    return line("sample", seconds, **{k: v for k, v in state.items() if k not in left_out})


def switched(seconds: float, step: int = 10) -> str:
    (entry,) = server_state(0, total=1)["switches"]["recent"]
    return line("switch", seconds, **entry | {"step": step})


def test_event_log_is_read_back_with_speeds(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = [start(0), sample(10, 5, 0), sample(12, 10, 600), switched(13), sample(20, 20, 600)]
    path.write_text("\n".join(log) + "\n")
    timeline = read_event_log(path)
    assert timeline.begun == BEGUN
    assert timeline.starts == [0]
    assert (timeline.enter, timeline.resume) == (16, 2)
    assert [(m.seconds, m.tokens_per_second) for m in timeline.moments] == [
        *((10, None), (12, 300), (20, 0)),
    ]
    assert [(s.seconds, s.target) for s in timeline.switches] == [(13, "target_only")]
    assert timeline.tokens == {"speculate": 600, "target_only": 0}


def test_speed_is_averaged_over_samples_that_are_close_together(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("\n".join([start(0), *(sample(n / 10, n, 8 * n) for n in range(30))]))
    speeds = [m.tokens_per_second for m in read_event_log(path).moments]
    assert speeds[0] is None
    assert speeds[1:] == pytest.approx([80.0] * 29)


def test_counters_go_on_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    second = [start(10, policy={"kind": "fixed", "mode": "speculate"}), sample(11, 5, 70)]
    path.write_text("\n".join([start(0), sample(1, 9, 50), *second]))
    timeline = read_event_log(path)
    assert timeline.steps == {"speculate": 14, "target_only": 0}
    assert timeline.tokens["speculate"] == 120
    assert [(m.seconds, m.running) for m in timeline.moments] == [(1, 2), (10, 0), (11, 2)]
    assert timeline.starts == [0, 10]
    assert timeline.enter is None


def test_files_that_were_set_aside_come_first(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for number, name in enumerate(("events.jsonl.2", "events.jsonl.1", "events.jsonl")):
        (tmp_path / name).write_text(sample(number, number, 10 * number) + "\n")
    timeline = read_event_log(path)
    assert [m.step for m in timeline.moments] == [0, 1, 2]
    # What was counted before the oldest line is not part of the recording.
    assert timeline.tokens["speculate"] == 20


def test_lines_that_are_cut_off_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = sample(0, 1, 5)
    path.write_text("\n".join([whole, whole[:40] + whole, "", "[1]", '{"time": 3}', "7", whole]))
    assert len(read_event_log(path).moments) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "events.jsonl: No such file or directory"),
        ("", "holds no event"),
        ("hello\n", "holds no event"),
        (start(0), "set event_log.sample_steps above 0"),
    ],
)
def test_a_file_with_nothing_to_draw_says_so(tmp_path: Path, text, message) -> None:
    path = tmp_path / "events.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(EventLogError, match=message):
        read_event_log(path)


# --- what is drawn


def test_page_needs_no_network_and_lists_every_switch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from specswitch.timeline.page import page

    text = page(
        Timeline(
            "a <b> server",
            [moment(0), moment(9)],
            [switch(2.5, "target_only"), switch(4, "speculate", reason="load_low")],
            begun=BEGUN,
            starts=[0],
            steps={"speculate": 7, "target_only": 3},
            tokens={"speculate": 20, "target_only": 3},
        )
    )
    assert "http" not in text
    assert "src=" in text
    assert text.count("src=") == text.count('src="data:image/png;base64,')
    assert "<h1>a &lt;b&gt; server</h1>" in text
    assert "2026-05-01 12:00:02.500" in text
    assert "1 to target_only (waiting_high); 1 to speculate (load_low)" in text
    assert "<td>83%</td>" in text


@pytest.mark.parametrize("count", [0, 5, 40, 300])
def test_any_number_of_switches_can_be_drawn(tmp_path: Path, count: int) -> None:
    pytest.importorskip("matplotlib")
    from specswitch.timeline.figure import draw

    targets = ("target_only", "speculate")
    switches = [switch(float(n), targets[n % 2]) for n in range(count)]
    draw(Timeline("t", [moment(0), moment(400)], switches, begun=BEGUN), tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
