"""A live server that flips every second step, and clients and operators who do it no good."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from live_server import PROMPT, Load, generate, live_server

from specswitch.cli.server_client import ServerClient

CLIENTS = 4
#: Far more than a client gets to read; four such requests do fit into the pool.
NEVER_READ = 1500


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("server")
    config = folder / "worker.yaml"
    config.write_text("policy: {kind: periodic, period: 2}\n")
    with live_server(folder, config, SPECSWITCH_DEBUG="1") as address:
        yield address


@pytest.fixture(scope="module")
def expected(url: str) -> list[int]:
    """The answer of a server that does not speculate."""
    command(url, {"mode": "target_only"})
    answer = generate(url)
    command(url, {"mode": "auto"})
    assert "spec_verify_ct" not in answer["meta_info"]
    return answer["output_ids"]


def command(url: str, plain: dict[str, Any]) -> None:
    with ServerClient(url, timeout_s=600) as client:
        client.command(plain)


def state(url: str) -> dict[str, Any]:
    with ServerClient(url, timeout_s=600) as client:
        (found,) = client.states()
    return found


class Client:
    """Reads a streamed answer, and is gone without a word, as when its process is killed."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        body = json.dumps(
            {
                "text": PROMPT,
                "stream": True,
                "sampling_params": {
                    "temperature": 0,
                    "max_new_tokens": NEVER_READ,
                    "ignore_eos": True,
                },
            }
        )
        self._socket = socket.create_connection((address.hostname, address.port))
        self._socket.sendall(
            f"POST /generate HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )

    def read(self, events: int) -> None:
        received = b""
        while received.count(b"data: ") < events:
            received += self._socket.recv(4096)

    def die(self) -> None:
        self._socket.close()


def test_clients_that_are_killed_while_modes_flip_disturb_no_other_and_leave_nothing(
    url: str, expected: list[int]
) -> None:
    before = state(url)
    with Load(url, 2) as load:
        clients = [Client(url) for _ in range(CLIENTS)]
        for number, client in enumerate(clients):
            client.read(3 + number)
            client.die()
        answered = len(load.answers)
        while len(load.answers) < answered + 4:
            time.sleep(0.05)
    others = sum(answer["meta_info"]["completion_tokens"] for answer in load.answers)
    after = settled(url)
    assert {tuple(answer["output_ids"]) for answer in load.answers} == {tuple(expected)}
    assert after["switches"]["total"] > before["switches"]["total"] + 8
    emitted = sum(after["tokens"].values()) - sum(before["tokens"].values()) - others
    assert emitted < CLIENTS * NEVER_READ / 2, "answers went on for clients that were gone"
    assert (after["draft_sync"]["behind"], after["draft_sync"]["pending"]) == (0, 0)
    # All places are free again.
    with Load(url, 8) as load:
        while len(load.answers) < 8:
            time.sleep(0.05)
    assert {tuple(answer["output_ids"]) for answer in load.answers} == {tuple(expected)}


def settled(url: str) -> dict[str, Any]:
    """The state once the server has stopped decoding, which a lost client's request may delay."""
    before: dict[str, Any] = {}
    while True:
        found = state(url)
        if before and found["step"] == before["step"]:
            return found
        before = found
        time.sleep(1)


@pytest.mark.parametrize("how", ["in_place", "retract", "abort"])
def test_a_paused_server_takes_commands_and_goes_on_with_right_answers(
    url: str, expected: list[int], how: str
) -> None:
    with Load(url, 3) as load:
        while len(load.answers) < 3:
            time.sleep(0.02)
        post(url, "pause_generation", {"mode": how})
        paused = settled(url)
        command(url, {"mode": "target_only"})
        assert state(url)["step"] == paused["step"]
        answered = len(load.answers)
        post(url, "continue_generation", {})
        while len(load.answers) < answered + 6:
            time.sleep(0.02)
    after = state(url)
    command(url, {"mode": "auto"})
    assert after["mode"] == "target_only"
    assert after["steps"]["speculate"] == paused["steps"]["speculate"]
    whole, aborted = [], []
    for answer in load.answers:
        kind = answer["meta_info"]["finish_reason"]["type"]
        (aborted if kind == "abort" else whole).append(answer["output_ids"])
    assert {tuple(tokens) for tokens in whole} == {tuple(expected)}
    assert bool(aborted) == (how == "abort")
    assert all(tokens == expected[: len(tokens)] for tokens in aborted)


def post(url: str, route: str, body: dict[str, Any]) -> None:
    httpx.post(f"{url}/{route}", json=body, timeout=None).raise_for_status()
