"""Whatever a server answers or a recording holds: a command shows it, or says what is wrong.

No traceback, and an exit code that tells the one from the other.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest
from damage import PLAIN, damaged
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_cli_ctl import STATE, accepted, info
from test_timeline import sample, server_state, start, switched
from typer.testing import CliRunner

from specswitch.cli import server_client
from specswitch.cli.main import app
from specswitch.timeline.event_file import EventLogError, read_event_log
from specswitch.timeline.follow import Follower
from specswitch.timeline.model import Timeline

ANSWER = info({**STATE, **server_state(5, total=2)})


class Said:
    """What a command said: something on stderr when it failed, and then only that."""

    def __init__(self, *words: str) -> None:
        result = CliRunner().invoke(app, [*words])
        ended = result.exception is None or isinstance(result.exception, SystemExit)
        assert ended, repr(result.exception)
        assert result.exit_code in (0, 1, 2)
        assert (result.exit_code == 0) == (not result.stderr), result.stderr
        assert all(line.isprintable() for line in result.stderr.split("\n"))
        self.code, self.out, self.error = result.exit_code, result.stdout, result.stderr


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch):
    """Function that sets what the server answers to everything: status, headers, body."""
    answer: list[httpx.Response] = []

    def handle(_transport: object, request: httpx.Request) -> httpx.Response:
        return answer[0]

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)

    def use(body: bytes, status: int = 200, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer[:] = [httpx.Response(status, headers=named, stream=httpx.ByteStream(body))]

    return use


def written(value: Any) -> bytes:
    return json.dumps(value).encode()


# The fixture holds nothing from one example to the next.
loosely = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=40,
)


@loosely
@given(answer=st.one_of(damaged(ANSWER), PLAIN))
@example(answer=ANSWER)
@example(answer=info({**STATE, "failure": "ValueError: [/red]"}))
@example(answer=info({**ANSWER["internal_states"][0]["specswitch"], "steps": {"\x1f": None}}))
@example(answer={"internal_states": [{"specswitch": None}]})
def test_any_state_is_shown_or_refused(answers, answer: Any) -> None:
    body = written(answer)
    for words in (("ctl", "status"), ("watch", "--seconds", "0")):
        answers(body)
        Said(*words)


@loosely
@given(first=st.one_of(st.just(ANSWER), damaged(ANSWER)), then=damaged(ANSWER))
@example(first=ANSWER, then=info({**STATE, "tokens": {"speculate": 3}}))
@example(first=info({**STATE, "steps": {}, "tokens": {}}), then=ANSWER)
def test_any_states_that_are_taken_make_a_recording(answers, first: Any, then: Any) -> None:
    follower = Follower()
    with server_client.ServerClient("http://a") as client:
        for seconds, answer in enumerate((first, then, first)):
            answers(written(answer))
            try:
                (state, *_) = client.states()
            except server_client.ServerError:
                return
            follower.take(float(seconds), state)
    timeline = follower.timeline("a")
    assert timeline.seconds == 2
    assert timeline.stretches()


@loosely
@given(answer=st.one_of(damaged([accepted("guard.votes: 1 -> 2")]), PLAIN))
@example(answer=[{"accepted": False}])
def test_any_answer_to_a_command_is_told_or_refused(answers, answer: Any) -> None:
    answers(written(answer))
    Said("ctl", "auto")


@loosely
@given(
    body=st.binary(max_size=30),
    status=st.sampled_from([200, 204, 301, 400, 401, 404, 429, 500, 599]),
    encoding=st.sampled_from(["gzip", "deflate", "br", "zstd", "identity", "nonsense"]),
    charset=st.sampled_from(["utf-8", "utf-16", "hex", "idna", "undefined", "nonsense"]),
)
@example(body=b"[" * 100_000, status=200, encoding="identity", charset="utf-8")
@example(body=b"[" * 100_000, status=500, encoding="identity", charset="utf-8")
@example(body=b"1" * 5000, status=200, encoding="identity", charset="utf-8")
def test_any_bytes_of_a_server_are_one_clear_line(
    answers, body: bytes, status: int, encoding: str, charset: str
) -> None:
    for words in (("ctl", "status"), ("ctl", "reset"), ("watch", "--seconds", "0")):
        answers(
            body,
            status,
            content_encoding=encoding,
            content_type=f"text/plain; charset={charset}",
        )
        said = Said(*words)
        assert said.code == 1
        assert not said.out


@settings(max_examples=40)
@given(
    st.one_of(
        st.text(max_size=12),
        st.text(max_size=12).map("http://".__add__),
        st.sampled_from(
            ["http://[::1", "http://a:99999", "http://a:b", "ftp://a", "http://", "//"]
        ),
    )
)
def test_any_address_is_asked_or_refused(url: str) -> None:
    def unreachable(_transport: object, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx.HTTPTransport, "handle_request", unreachable)
        with server_client.ServerClient(url) as client, pytest.raises(server_client.ServerError):
            client.states()


LOG = [json.loads(line) for line in (start(0), sample(1, 5, 10), switched(2), sample(3, 20, 90))]


def read_back(content: bytes) -> Timeline | None:
    """The recording; None where there is none."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(content)
        try:
            return read_event_log(path)
        except EventLogError:
            return None


def lines(events: Any) -> bytes:
    if not isinstance(events, list):
        events = [events]
    return b"\n".join(written(event) for event in events)


@given(st.one_of(damaged(LOG), st.lists(damaged(LOG[1]), max_size=4), PLAIN))
@example(LOG)
@example([*LOG, {**LOG[1], "time": "2025-01-01T00:00:00+00:00"}])
def test_any_events_are_read_or_passed_over_and_what_is_read_can_be_drawn_from(events) -> None:
    timeline = read_back(lines(events))
    if timeline is None:
        return
    times = [moment.seconds for moment in timeline.moments]
    assert times == sorted(times)
    stretches = timeline.stretches()
    assert stretches[-1][1] == timeline.seconds
    assert all(first <= last for first, last, _ in stretches)


@given(st.binary(max_size=60), st.integers(0, 3), st.data())
def test_any_bytes_in_a_log_leave_the_other_lines_readable(content, place, data) -> None:
    whole = [written(event) for event in LOG]
    timeline = read_back(b"\n".join([*whole[:place], content, *whole[place:]]))
    assert timeline is not None
    assert len(timeline.moments) == 2
    assert len(timeline.switches) == 1


@settings(max_examples=8)
@given(damaged(LOG), st.sampled_from(["a.jsonl", "$^{$.jsonl", "a\nb.jsonl", "\udc80.jsonl"]))
@example(LOG, "$^{$.jsonl")
@example([*LOG[:2], {**LOG[2], "reason": "$^{$"}, LOG[3]], "a.jsonl")
def test_plot_draws_any_recording_that_it_reads(events: Any, name: str) -> None:
    pytest.importorskip("matplotlib")
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(lines(events))
        page = Path(folder) / "a.html"
        said = Said("plot", str(path), "--html", str(page))
        assert page.exists() == (said.code == 0)


@pytest.mark.parametrize("name", ["", ".", "..", "/", "/dev/null", "/dev/zero", "/proc/self/mem"])
def test_plot_of_what_is_no_file_is_one_clear_line(name: str) -> None:
    pytest.importorskip("matplotlib")
    assert Said("plot", name).code == 1


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e308", "-1", "0", "x", ""])
@pytest.mark.parametrize(
    "words",
    [("watch", "--interval"), ("plot", "http://a", "--interval"), ("plot", "a", "--seconds")],
)
def test_durations_that_no_clock_can_wait_for_are_refused(words, number: str) -> None:
    assert Said(*words, number).code == 2
