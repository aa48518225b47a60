"""The real server over HTTP with both flags: a burst, streaming, what it reports, how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import yaml
from harness import Request
from harness.arguments import EAGLE3, SPECSWITCH
from harness.http_server import HttpServer
from runs import run_plain

from specswitch import tiny_pair

PROMPTS = tiny_pair.prompts(24, seed=11)
NEW_TOKENS = 24
CONFIG = {
    "policy": {
        "kind": "queue_depth",
        "waiting": {"enter": 4, "resume": 0},
        "running": None,
        "kv_use": None,
    },
    "guard": {"dwell_steps": 2, "votes": 1, "max_switches_per_1000_steps": 100},
    "max_speculative_batch": 8,
}
ARGUMENTS = [
    *EAGLE3,
    *SPECSWITCH,
    *("--max-running-requests", "4", "--max-total-tokens", "4096", "--random-seed", "1"),
    *("--grammar-backend", "none", "--sleep-on-idle"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A server whose configuration file has changed since it read it."""
    directory = tmp_path_factory.mktemp("server")
    file = directory / "worker.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    arguments = [*ARGUMENTS, "--speculative-worker-config", str(file)]
    with HttpServer(arguments, directory / "log", SPECSWITCH_DEBUG="1") as server:
        # Logged by the parent with its arguments, before it starts a scheduler process.
        server.wait_for(lambda: server.has_logged("server_args="))
        file.write_text("policy: {kind: fixed, mode: target_only}\n")
        server.wait_for(server.is_healthy)
        yield server


@cache
def expected() -> list[str]:
    """Answers of an engine without speculation."""
    tokenizer = _tokenizer()
    requests = [
        Request(tokenizer.encode(prompt).ids, max_new_tokens=NEW_TOKENS) for prompt in PROMPTS
    ]
    return [tokenizer.decode(result.output_ids) for result in run_plain(requests, "EAGLE3").results]


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tiny_pair.path("target") / "tokenizer.json"))


def state(server: HttpServer) -> dict[str, Any]:
    return server.get("/server_info")["internal_states"][0]["specswitch"]


def generate(server: HttpServer, prompt: str) -> str:
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    return server.post("/generate", {"text": prompt, "sampling_params": sampling})["text"]


def generate_streaming(server: HttpServer, prompt: str) -> str:
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    events = list(server.stream("/generate", {"text": prompt, "sampling_params": sampling}))
    assert len(events) > 1, "the answer came in one piece"
    texts = [event["text"] for event in events]
    # Each event holds all text so far.
    assert all(texts[-1].startswith(text) for text in texts)
    return texts[-1]


def complete(server: HttpServer, prompt: str) -> str:
    body = _completion(prompt)
    return server.post("/v1/completions", body)["choices"][0]["text"]


def complete_streaming(server: HttpServer, prompt: str) -> str:
    events = list(server.stream("/v1/completions", _completion(prompt)))
    pieces = [choice["text"] for event in events for choice in event["choices"]]
    assert len(pieces) > 1, "the answer came in one piece"
    return "".join(pieces)


def _completion(prompt: str) -> dict[str, Any]:
    return {
        "model": "default",
        "prompt": prompt,
        "temperature": 0,
        "max_tokens": NEW_TOKENS,
        "ignore_eos": True,
    }


WAYS = (generate, generate_streaming, complete, complete_streaming)


def test_the_server_says_which_worker_runs(server: HttpServer) -> None:
    info = server.get("/server_info")
    assert info["specswitch"] == {"worker": "SpecSwitchWorker"}
    assert info["internal_states"][0]["speculative_worker"] == "specswitch"
    assert server.has_logged("SpecSwitchWorker on SGLang 0.5.12.post1, EAGLE3, 3 steps")
    assert server.has_logged("max_running_requests 4, max_speculative_batch 8")
    shown = state(server)
    assert shown["mode"] == "speculate"
    assert set(shown["steps"]) == {"speculate", "target_only"}


def test_scheduler_processes_keep_the_file_as_the_parent_read_it(server: HttpServer) -> None:
    arguments = server.get("/server_info")["internal_states"][0]
    kept = arguments["speculative_worker_config"]["config"]
    assert {key: kept[key] for key in CONFIG} == CONFIG
    generate(server, PROMPTS[0])
    # The changed file says: always target_only.
    assert state(server)["steps"]["target_only"] == 0
    assert state(server)["reason"] == "steady"


def test_a_calm_server_speculates_with_the_right_answers(server: HttpServer) -> None:
    before = state(server)
    for way, prompt, answer in zip(WAYS, PROMPTS, expected(), strict=False):
        assert way(server, prompt) == answer
    after = state(server)
    assert after["steps"]["speculate"] > before["steps"]["speculate"]
    assert after["steps"]["target_only"] == before["steps"]["target_only"]
    assert after["acceptance_length"] > 1.5


def test_a_burst_switches_both_ways_with_the_right_answers(server: HttpServer) -> None:
    before = state(server)
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        ways = [WAYS[number % len(WAYS)] for number in range(len(PROMPTS))]
        answers = list(clients.map(lambda way, prompt: way(server, prompt), ways, PROMPTS))
    assert answers == expected()
    # One more, calm request: the last of the burst may have run in either mode.
    assert generate(server, PROMPTS[0]) == expected()[0]
    after = state(server)
    new = after["switches"]["recent"][before["switches"]["total"] :]
    assert [switch["to"] for switch in new[:2]] == ["target_only", "speculate"]
    assert new[0]["reason"] == "waiting_high"
    assert new[0]["waiting"] >= 4
    assert new[1]["reason"] == "load_low"
    assert new[1]["waiting"] == 0
    assert after["mode"] == "speculate"
    for mode in ("speculate", "target_only"):
        assert after["steps"][mode] > before["steps"][mode]
        assert after["tokens"][mode] > before["tokens"][mode]


def test_a_client_that_goes_away_leaves_a_server_that_serves(server: HttpServer) -> None:
    body = {
        "text": PROMPTS[1],
        "sampling_params": {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True},
    }
    for _ in range(3):
        next(server.stream("/generate", body))
    assert generate(server, PROMPTS[2]) == expected()[2]


def test_terminating_the_server_ends_all_its_processes(server: HttpServer) -> None:
    os.kill(server.process.pid, signal.SIGTERM)
    server.wait_until_gone()
    log = server.log.read_text(errors="replace")
    assert "Traceback" not in log
    assert "Error" not in log
