"""What the person on call does, against a live server: look, steer, be refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from live_server import ADMIN_KEY, API_KEY, PROMPT, Load, generate, live_server
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from specswitch.cli.main import app
from specswitch.config_files import ready_configs
from specswitch.engine.metric_table import ALL

KEYS = ("--api-key", API_KEY, "--admin-key", ADMIN_KEY)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    flags = ("--enable-metrics", "--api-key", API_KEY, "--admin-api-key", ADMIN_KEY)
    folder = tmp_path_factory.mktemp("server")
    with live_server(folder, ready_configs()["cpu-demo"], *flags) as address:
        yield address


@pytest.fixture(autouse=True)
def _as_it_was(url: str) -> Iterator[None]:
    yield
    assert ctl(url, "reset")[0] == 0


def ctl(url: str, *words: str, keys: tuple[str, ...] = KEYS) -> tuple[int, str, str]:
    """Exit code, output and error output of `specswitch ctl`."""
    if words[0] == "status":
        keys = keys[:2]
    result = CliRunner().invoke(app, ["ctl", *words, "--url", url, *keys])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


def state(url: str) -> dict[str, Any]:
    code, out, err = ctl(url, "status", "--json")
    assert code == 0, err
    (found,) = json.loads(out)
    return found


def scrape(url: str) -> dict[tuple[str, ...], float]:
    """specswitch's metrics by (name, own label values in the order of their names)."""
    engine = {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"}
    text = httpx.get(f"{url}/metrics", timeout=None).raise_for_status().text
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels.keys() - engine))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("specswitch_")
    }


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.05)


# --- metrics


def test_metrics_of_an_idle_server_are_those_of_its_state(url: str) -> None:
    # More than run at a time, so that some wait and the mode follows.
    with Load(url, 12) as load:
        until(lambda: len(load.answers) > 8 and state(url)["switches"]["total"] > 0)

    def told(name: str) -> dict[str, float]:
        return {key[1]: value for key, value in scrape(url).items() if key[0] == name}

    # An answer leaves before the step's own bookkeeping is done.
    until(lambda: told("specswitch_decode_tokens_total") == state(url)["tokens"])
    shown = state(url)
    assert told("specswitch_decode_steps_total") == shown["steps"]
    assert told("specswitch_decode_request_steps_total") == shown["request_steps"]
    assert told("specswitch_decode_seconds_total") == pytest.approx(shown["seconds"], abs=1e-5)
    metrics = scrape(url)
    switched = [value for key, value in metrics.items() if key[0] == "specswitch_switches_total"]
    assert sum(switched) == shown["switches"]["total"] > 0
    assert {key[0] for key in metrics} == {metric.name for metric in ALL}
    assert metrics["specswitch_threshold", "policy.waiting.enter"] == 4
    assert metrics["specswitch_max_running_requests",] == 8


def test_metrics_carry_the_engines_labels(url: str) -> None:
    text = httpx.get(f"{url}/metrics", timeout=None).text
    lines = [line for line in text.splitlines() if line.startswith("specswitch_mode{")]
    assert len(lines) == 2
    for name in ("model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"):
        assert all(f'{name}="' in line for line in lines)


def test_a_storm_of_scrapes_does_not_hold_up_answers(url: str) -> None:
    expected = generate(url)["output_ids"]
    with ThreadPoolExecutor(16) as threads, Load(url, 3) as load:
        scrapes = list(threads.map(lambda _: scrape(url), range(200)))
    assert all(scrapes)
    assert load.answers
    assert {tuple(answer["output_ids"]) for answer in load.answers} == {tuple(expected)}
    assert state(url)["errors"]["telemetry"] == 0


def test_acceptance_of_a_request_is_that_of_its_verified_steps(url: str) -> None:
    def saw_both_modes(answer: dict[str, Any]) -> bool:
        figures = answer["meta_info"]
        speculated = figures.get("spec_verify_ct", 0) + figures.get("spec_num_correct_drafts", 0)
        return 0 < speculated < figures["completion_tokens"] - 8

    def flip() -> None:
        for word in ("target-only", "speculate"):
            assert ctl(url, word)[0] == 0

    with Load(url, 6, max_new_tokens=40) as load:
        while len(load.answers) <= 20 or not any(map(saw_both_modes, load.answers)):
            flip()
    for answer in load.answers:
        figures = answer["meta_info"]
        verified = figures.get("spec_verify_ct", 0)
        if not verified:
            assert "spec_accept_length" not in figures
            continue
        drafts = figures["spec_num_correct_drafts"]
        assert figures["spec_accept_length"] == pytest.approx(1 + drafts / verified)
        assert figures["spec_accept_length"] <= 4
        assert figures["spec_num_proposed_drafts"] == 3 * verified
        assert sum(figures["spec_correct_drafts_histogram"]) == verified


# --- control


@pytest.mark.parametrize(
    ("word", "mode", "other"),
    [("target-only", "target_only", "speculate"), ("speculate", "speculate", "target_only")],
)
def test_each_mode_is_forced_under_load(url: str, word: str, mode: str, other: str) -> None:
    with Load(url, 2):
        code, out, err = ctl(url, word)
        assert code == 0, err
        assert out == f"override: auto -> {mode}\n"
        until(lambda: state(url)["mode"] == mode)
        before = state(url)
        until(lambda: state(url)["steps"][mode] > before["steps"][mode] + 40)
        after = state(url)
        assert after["steps"][other] == before["steps"][other]
        assert (after["override"], after["reason"]) == (mode, "override")
        assert ctl(url, "auto")[0] == 0
        until(lambda: state(url)["reason"] != "override")
    assert state(url)["override"] == "auto"


def test_thresholds_are_set_and_reset(url: str) -> None:
    code, out, err = ctl(url, "set", "policy.waiting.enter=9", "guard.votes=5")
    assert code == 0, err
    assert out.splitlines() == ["policy.waiting.enter: 4 -> 9", "guard.votes: 2 -> 5"]
    assert state(url)["changed"] == {"policy.waiting.enter": [4, 9], "guard.votes": [2, 5]}
    until(lambda: scrape(url)["specswitch_threshold", "policy.waiting.enter"] == 9)
    code, out, _ = ctl(url, "status")
    assert "policy.waiting.enter: 4 -> 9" in out
    assert ctl(url, "reset")[1].splitlines() == [
        "policy.waiting.enter: 9 -> 4",
        "guard.votes: 5 -> 2",
    ]
    assert state(url)["changed"] == {}
    assert ctl(url, "reset")[1] == "nothing to change: it was so already\n"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("policy.waiting.enter=-1", "policy.waiting.enter: must be at least 1, got `-1`"),
        ("policy.waiting.enter=soon", "policy.waiting.enter: expected a whole number"),
        ("policy.wating.enter=3", "unknown key; did you mean waiting?"),
        ("max_speculative_batch=9", "max_speculative_batch: 9 is above 8, the value at start-up"),
        ("draft_sync.window=128", "draft_sync.window: fixed at start-up"),
    ],
)
def test_a_bad_value_is_refused_and_changes_nothing(
    url: str, assignment: str, message: str
) -> None:
    code, out, err = ctl(url, "set", "guard.votes=4", assignment)
    assert code == 1
    assert message in err
    assert not out
    assert state(url)["changed"] == {}


@pytest.mark.parametrize("body", [{}, {"mode": "off"}, {"mode": "auto", "x": 1}, [], None, "auto"])
def test_a_bad_command_is_answered_400_with_the_reason(url: str, body: Any) -> None:
    answer = httpx.post(
        f"{url}/set_internal_state",
        json={"server_args": {"specswitch": body}},
        headers={"Authorization": f"Bearer {ADMIN_KEY}"},
        timeout=None,
    )
    assert answer.status_code == 400
    assert "expected" in answer.json()["message"]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


#: Bodies of ``/set_internal_state`` that are no command.
ODD_COMMANDS: list[Any] = [
    *(1, True, "", [[]], {"mode": ["auto"]}, {"mode": {}}, {"mode": "speculate", "set": 3}),
    *({"reset": "yes"}, {"reset": 1}, {"reset": True, "mode": "x"}, {"set": {"": 1}}),
    *({"set": {"guard.votes": value}} for value in (None, "4", 1.5, [], {}, 10**30, True, "\0")),
    *({"set": {"guard.votes": nested(200)}}, {"set": {"a" * 20_000: 1}}, {"mode": "a" * 20_000}),
    {"set": {f"key{number}": 1 for number in range(500)}},
    {"mode": "target_only", "set": {"guard.votes": 7, "guard.dwell_steps": -1}},
]
ODD_BYTES = [
    *(b"", b"{", b"\xff\xfe", b"[]", b"null", b'{"server_args": 3}', b'{"server_args": null}'),
    *(b"{}", b"[" * 50_000, b'{"server_args": {"specswitch": {"set": {"guard.votes": NaN}}}}'),
    b'{"server_args": {"specswitch": {"set": {"guard.votes": 1e999}}}}',
    b'{"server_args": {"specswitch": {"mode": "\\ud800"}}}',
    b'{"server_args": {"specswitch": {"mode": "auto"}, "log_level": "info"}}',
]


def test_whatever_else_is_sent_is_a_bad_request_and_changes_nothing(url: str) -> None:
    def held(found: dict[str, Any]) -> list[Any]:
        return [found[key] for key in ("config", "changed", "override", "failure", "errors")]

    bodies = [
        json.dumps({"server_args": {"specswitch": command}}).encode() for command in ODD_COMMANDS
    ]
    before = held(state(url))
    headers = {"Authorization": f"Bearer {ADMIN_KEY}", "Content-Type": "application/json"}
    with httpx.Client(headers=headers, timeout=None) as client:
        for body in [*bodies, *ODD_BYTES]:
            answer = client.post(f"{url}/set_internal_state", content=body)
            assert answer.status_code in (400, 422), (body[:200], answer.text)
            assert len(answer.text) < 20_000
            assert "internal error" not in answer.text
            assert held(state(url)) == before, body[:200]
    assert len(generate(url)["output_ids"]) == 48


@pytest.mark.parametrize(
    ("words", "keys", "message"),
    [
        (("target-only",), ("--admin-key", "wrong"), "refuses the key for commands"),
        # The server has an admin key, so the API key is not enough.
        (("target-only",), ("--api-key", API_KEY), "refuses the key for commands"),
        (("target-only",), (), "wants a key for commands: give the admin key"),
        (("status",), ("--api-key", ADMIN_KEY), "refuses the key: give --api-key"),
        (("status",), (), "wants a key: give --api-key or set SPECSWITCH_API_KEY"),
    ],
)
def test_a_wrong_key_is_refused(
    url: str, words: tuple[str, ...], keys: tuple[str, ...], message: str
) -> None:
    code, out, err = ctl(url, *words, keys=keys)
    assert code == 1
    assert message in err
    assert not out
    assert state(url)["override"] == "auto"


# --- requests that opt out


def complete(url: str, custom: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(
        f"{url}/v1/completions",
        json={
            "model": "default",
            "prompt": PROMPT,
            "max_tokens": 40,
            "temperature": 0,
            "ignore_eos": True,
            "custom_params": custom,
        },
        headers={"Authorization": f"Bearer {API_KEY}"},
        timeout=None,
    )
    return response.raise_for_status().json()


def test_a_request_opts_out_over_either_route(url: str) -> None:
    out = {"specswitch": {"speculate": False}}
    before = state(url)
    quiet = generate(url, custom_params=out)
    assert "spec_verify_ct" not in quiet["meta_info"]
    assert complete(url, out)["choices"][0]["text"]
    until(lambda: state(url)["opt_outs"] == before["opt_outs"] + 2)
    after = state(url)
    assert after["steps"]["speculate"] == before["steps"]["speculate"]
    assert after["reason"] == "request_opt_out"
    assert generate(url, max_new_tokens=200)["meta_info"]["spec_verify_ct"] > 0
