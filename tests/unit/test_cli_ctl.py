"""`specswitch ctl` against scripted answers: what it sends, what it says when a server says no."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner

from specswitch.cli.main import app
from specswitch.cli.server_client import ServerClient, ServerError
from specswitch.config import Config

STATE: dict[str, Any] = {
    "mode": "target_only",
    "reason": "waiting_high",
    "step": 120,
    "waiting": 17,
    "running": 8,
    "kv_use": 0.4,
    "steps": {"speculate": 100, "target_only": 21},
    "tokens": {"speculate": 900, "target_only": 168},
    "seconds": {"speculate": 2.0, "target_only": 0.0},
    "switches": {
        "total": 1,
        "recent": [
            {
                "step": 100,
                "from": "speculate",
                "to": "target_only",
                "reason": "waiting_high",
                "waiting": 16,
                "running": 8,
                "kv_use": 0.35,
            }
        ],
    },
    "acceptance_length": 2.5,
    "acceptance_at_switch": {"before": 2.6, "after": None},
    "override": "auto",
    "changed": {},
    "guard": {
        "votes": 1,
        "votes_needed": 3,
        "dwell_left": 11,
        "switch_cap": 20,
        "switches_in_window": 1,
    },
    "exactness": {"setting": "strict", "requests": {}},
    "failure": None,
    "errors": {"policy": 0, "listener": 0, "telemetry": 0},
    "draft_sync": {"pending": 3, "missed": 168, "flushed": 160, "caught_up": 0, "discarded": 5},
    "max_running_requests": 8,
    "config": Config().model_dump(mode="json"),
}


class Scripted:
    """A server that gives one answer to everything and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: tuple[int, Any] = (200, info(STATE))
        self.asked: list[tuple[str, str, str | None, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                body = json.loads(self.rfile.read(size)) if size else None
                key = self.headers.get("Authorization")
                outer.asked.append((self.command, self.path, key, body))
                status, answer = outer.answer
                text = answer if isinstance(answer, str) else json.dumps(answer)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def info(*states: Any) -> dict[str, Any]:
    return {"internal_states": [{} if state is None else {"specswitch": state} for state in states]}


def accepted(*changed: str) -> dict[str, Any]:
    return {"accepted": True, "changed": list(changed), "specswitch": STATE}


@pytest.fixture
def server() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.close()


def ctl(server: Scripted | str, *words: str, **env: str) -> tuple[int, str, str]:
    url = server if isinstance(server, str) else server.url
    result = CliRunner(env=env).invoke(app, ["ctl", *words, "--url", url])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


# --- what is sent


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("auto",), {"mode": "auto"}),
        (("speculate",), {"mode": "speculate"}),
        (("target-only",), {"mode": "target_only"}),
        (("reset",), {"reset": True}),
        (
            ("set", "policy.waiting.enter=8", "policy.kv_use=null", "guard.votes=1"),
            {"set": {"policy.waiting.enter": 8, "policy.kv_use": None, "guard.votes": 1}},
        ),
    ],
)
def test_each_word_becomes_one_command(server, words, command) -> None:
    server.answer = 200, [accepted("override: auto -> speculate")]
    assert ctl(server, *words) == (0, "override: auto -> speculate\n", "")
    assert server.asked == [
        ("POST", "/set_internal_state", None, {"server_args": {"specswitch": command}})
    ]


@pytest.mark.parametrize(
    ("keys", "sent"),
    [
        ({"SPECSWITCH_API_KEY": "u"}, "Bearer u"),
        ({"SPECSWITCH_API_KEY": "u", "SPECSWITCH_ADMIN_KEY": "a"}, "Bearer a"),
    ],
)
def test_commands_take_the_admin_key_before_the_api_key(server, keys, sent) -> None:
    server.answer = 200, [accepted()]
    assert ctl(server, "auto", **keys)[1] == "nothing to change: it was so already\n"
    assert server.asked[0][2] == sent


def test_status_takes_the_api_key_only(server) -> None:
    assert ctl(server, "status", SPECSWITCH_API_KEY="u", SPECSWITCH_ADMIN_KEY="a")[0] == 0
    assert server.asked == [("GET", "/server_info", "Bearer u", None)]


@pytest.mark.parametrize(
    "text", ["policy.waiting.enter", "=3", "guard.votes=010", "guard.votes=", "a=[1"]
)
def test_what_is_no_assignment_is_never_sent(server, text) -> None:
    code, _, err = ctl(server, "set", text)
    assert code in (1, 2)
    assert err
    assert server.asked == []


def test_key_given_twice_is_never_sent(server) -> None:
    assert ctl(server, "set", "guard.votes=8", "guard.votes=9") == (
        1,
        "",
        "guard.votes: given twice; give it once\n",
    )
    assert server.asked == []


# --- what is shown


def test_status_is_readable(server) -> None:
    code, out, _ = ctl(server, "status")
    assert code == 0
    for text in (
        "target_only (waiting_high, step 120)",
        "waiting 17, running 8 of 8, KV use 40% (at the last decode step)",
        "2.50; 2.60 before and not known yet after a switch",
        "speculate 450.0, target_only -",
        "votes 1 of 3, dwell 11 steps left, 1 of 20 switches in 1000 steps",
        "1; last at step 100: speculate -> target_only",
        "3 positions pending; 168 missed",
    ):
        assert text in " ".join(out.split()), text
    assert "override" not in out
    assert "safe mode" not in out


def test_status_tells_what_is_out_of_the_ordinary(server) -> None:
    server.answer = (
        200,
        info(
            {
                **STATE,
                "override": "speculate",
                "changed": {"policy.waiting.enter": [16, 8], "policy.kv_use.enter": [0.9, None]},
                "failure": "ZeroDivisionError: no profile",
                "errors": {"policy": 1, "listener": 0, "telemetry": 3},
                "guard": {"switches_in_window": 4},
            }
        ),
    )
    out = " ".join(ctl(server, "status")[1].split())
    for text in (
        "override speculate",
        "policy.waiting.enter: 16 -> 8",
        "policy.kv_use.enter: 0.9 -> null",
        "the policy failed: ZeroDivisionError: no profile",
        "policy 1, telemetry 3; see the server's log",
        "guard 4 switches in 1000 steps",
    ):
        assert text in out, text


@pytest.mark.parametrize(
    ("mode", "reason", "override", "shown"),
    [
        ("target_only", "override", "target_only", "override target_only load"),
        ("speculate", "steady", "target_only", "target_only (from the next decode step)"),
        ("target_only", "dwell", "speculate", "speculate (from the next decode step)"),
        ("target_only", "batch_limit", "speculate", "override speculate (waits: batch_limit)"),
    ],
)
def test_status_tells_whether_the_override_is_in_effect(
    server, mode, reason, override, shown
) -> None:
    state = {**STATE, "mode": mode, "reason": reason, "override": override}
    server.answer = 200, info(state)
    assert shown in " ".join(ctl(server, "status")[1].split())


def test_several_schedulers_are_told_apart(server) -> None:
    server.answer = 200, info(STATE, {**STATE, "mode": "speculate"})
    out = ctl(server, "status")[1]
    assert out.index("scheduler 0") < out.index("target_only (") < out.index("scheduler 1")
    server.answer = 200, [accepted("a"), accepted("b")]
    assert ctl(server, "auto")[1] == "scheduler 0: a\nscheduler 1: b\n"


def test_json_is_what_the_server_said(server) -> None:
    assert json.loads(ctl(server, "status", "--json")[1]) == [STATE]
    server.answer = 200, [accepted("a")]
    assert json.loads(ctl(server, "auto", "--json")[1]) == [accepted("a")]


# --- what goes wrong


@pytest.mark.parametrize(
    ("answer", "words", "message"),
    [
        ((401, {"error": "Unauthorized"}), ("status",), "wants a key: give --api-key"),
        ((401, {"error": "Unauthorized"}), ("auto",), "wants a key for commands"),
        ((403, {"error": "Forbidden"}), ("auto",), "wants a key for commands"),
        ((400, {"message": "guard.votes: no"}), ("set", "guard.votes=1"), "guard.votes: no"),
        ((200, [{"accepted": False, "error": "no"}]), ("auto",), "no"),
        ((200, info(None)), ("status",), "runs without specswitch"),
        ((200, [True]), ("auto",), "runs without specswitch"),
        ((200, {"status": "ok"}), ("status",), "does not answer like an SGLang server"),
        ((200, "<html>"), ("status",), "does not answer like an SGLang server"),
        ((200, "<html>"), ("auto",), "does not answer like an SGLang server"),
        ((200, {}), ("auto",), "does not answer like an SGLang server"),
        ((404, "no"), ("status",), "has no /server_info: is it an SGLang server?"),
        ((500, "out of memory"), ("auto",), "was answered 500: out of memory"),
        ((502, ""), ("auto",), "was answered 502: Bad Gateway"),
    ],
)
def test_a_server_that_says_no_is_one_clear_line(server, answer, words, message) -> None:
    server.answer = answer
    code, out, err = ctl(server, *words)
    assert code == 1
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9", "no server answers at http://127.0.0.1:9"),
        ("127.0.0.1:30000", "write --url as http://HOST:PORT"),
        ("ftp://127.0.0.1", "write --url as http://HOST:PORT"),
        ("http://", "write --url as http://HOST:PORT"),
        ("", "write --url as http://HOST:PORT"),
    ],
)
def test_an_address_without_a_server_is_one_clear_line(url, message) -> None:
    code, out, err = ctl(url, "status")
    assert (code, out) == (1, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_key_that_no_server_takes_is_not_sent(server) -> None:
    assert "ASCII" in ctl(server, "status", SPECSWITCH_API_KEY="ключ")[2]
    assert server.asked == []


def test_a_server_that_does_not_answer_is_given_up() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with ServerClient(url, timeout_s=0.2) as client, pytest.raises(ServerError) as caught:
            client.states()
    assert "did not answer within 0.2 s" in str(caught.value)


def test_metrics_are_handed_on_or_the_flag_is_named(server) -> None:
    with ServerClient(server.url) as client:
        server.answer = 200, "sglang:num_running_reqs 1\n"
        assert client.metrics() == "sglang:num_running_reqs 1\n"
        server.answer = 404, ""
        with pytest.raises(ServerError, match="start it with --enable-metrics"):
            client.metrics()
