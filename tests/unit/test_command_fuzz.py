"""Whatever an operator sends: carried out, or refused as a whole with what to change.

A refused command leaves what decides byte for byte as it was.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import httpx
import pytest
from damage import PLAIN, damaged
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from load_samples import load
from test_cli_ctl import accepted
from typer.testing import CliRunner

from specswitch.cli.main import app
from specswitch.config import ConfigError, resolve
from specswitch.control import Controller, build_controller
from specswitch.steering import Steering

KINDS: dict[str, dict[str, Any]] = {
    "queue_depth": {},
    "fixed": {"policy.kind": "fixed", "policy.mode": "speculate"},
    "periodic": {"policy.kind": "periodic", "policy.period": 3},
}
COMMAND = {
    "mode": "target_only",
    "set": {
        "policy.waiting.enter": 9,
        "policy.kv_use.resume": 0.5,
        "policy.period": 4,
        "policy.mode": "speculate",
        "guard.votes": 2,
        "max_speculative_batch": 32,
        "safe_mode": "speculate",
    },
    "reset": True,
}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def steering_of(kind: str) -> tuple[Controller, Steering]:
    config = resolve(None, KINDS[kind]).config
    controller = build_controller(config)
    # In the middle of something: votes cast, a dwell running.
    for step in range(20):
        controller.decide(load(step, waiting=20 if step < 9 else 0))
    return controller, Steering(controller, config)


def all_of_it(controller: Controller, steering: Steering) -> bytes:
    """Everything that a decision can depend on."""
    return pickle.dumps((controller, steering.config, steering.numbers))


def refusal(steering: Steering, command: Any) -> tuple[str, ...] | None:
    """What is wrong with a command; None when it was carried out."""
    try:
        steering.apply(command)
    except ConfigError as error:
        return error.problems
    return None


@given(
    st.sampled_from(list(KINDS)),
    st.lists(st.one_of(damaged(COMMAND), damaged({"set": COMMAND["set"]}), PLAIN), max_size=3),
)
@example("queue_depth", [{"set": {"guard.votes": nested(400)}}])
@example("queue_depth", [{"set": {"guard.votes": {"a": nested(400)}}}])
@example("queue_depth", [{"set": {".".join("a" * 3000): 1}}])
@example("queue_depth", [{"set": {"policy." * 3000: 1}}])
@example("queue_depth", [{"set": {f"x{number}": 1 for number in range(2000)}}])
@example("queue_depth", [{"mode": "x" * 100_000}])
@example("queue_depth", [{"set": {"guard.votes": 10**4200}}])
@example("queue_depth", [{"set": {"safe_mode": "x" * 100_000}}])
@example("queue_depth", [{"mode": nested(400)}, {"reset": nested(400)}])
def test_a_refused_command_changes_nothing_at_all(kind: str, commands: list[Any]) -> None:
    controller, steering = steering_of(kind)
    for command in commands:
        before = all_of_it(controller, steering)
        if (problems := refusal(steering, command)) is None:
            # What is shown is what decides, and the server could be started with it.
            shown = steering.config.model_dump(mode="json")
            assert controller.max_speculative_batch == shown["max_speculative_batch"]
            assert type(steering.config).model_validate(shown) == steering.config
        else:
            assert all_of_it(controller, steering) == before
            assert 1 <= len(problems) <= 21
            assert all(line.isprintable() and len(line) < 6000 for line in problems)
        controller.decide(load(controller.last.step + 1))


TEXT = st.one_of(
    st.text(max_size=12),
    st.text(max_size=8).map("guard.votes=".__add__),
    st.sampled_from(
        [
            *("guard.votes=.nan", "policy.kv_use.enter=.inf", "guard.votes=1e999", "a=\udc80"),
            *("\udc80=1", "guard.votes={a: 1}", "guard.votes=[1", "guard.votes=!!binary x"),
            *("guard.votes=*a", "guard.votes=" + "[" * 5000, "guard.votes=" + "9" * 5000),
            *("=", "==", "a", "--", "-x", "guard.votes=2026-01-01", "guard.votes= 2", "a=\0"),
        ]
    ),
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=60,
)
@given(st.lists(TEXT, min_size=1, max_size=2))
@example(["guard.votes=.nan"])
@example(["a=\udc80"])
@example(["guard.votes=" + "[" * 5000])
def test_any_words_after_ctl_set_are_sent_or_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    sent: list[Any] = []

    def take(_transport: object, request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=[accepted("something")])

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", take)
    result = CliRunner().invoke(app, ["ctl", "set", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code == 0) == bool(sent), result.output
    assert result.exit_code in (0, 1, 2)
    if not sent:
        assert result.stderr
