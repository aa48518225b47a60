"""A real server on the CPU as a process of its own, for tests that talk HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from harness.ports import reserve_port

from specswitch import tiny_pair
from specswitch.demo.launch import Launch
from specswitch.demo.server import ServerProcess

API_KEY, ADMIN_KEY = "a-user", "an-operator"


@contextmanager
def live_server(folder: Path, config: Path, *flags: str, **variables: str) -> Iterator[str]:
    """Start one, wait until it answers, and stop it in the end.

    Args:
        folder: for its log.
        config: specswitch's YAML file.
        flags: further arguments of the server.
        variables: further environment variables.

    Yields:
        Its address.
    """
    launch = Launch(tiny_pair.path("target"), tiny_pair.path("eagle3"), config)
    port = reserve_port()
    command = [*launch.specswitch(port), "--nccl-port", str(reserve_port()), *flags]
    environment = launch.environment() | variables

    async def start() -> ServerProcess:
        server = ServerProcess("test", command, environment, port, folder / "server.log")
        await server.__aenter__()
        try:
            await server.ready(lambda seconds, line: None)
        except BaseException:
            await server.stop()
            raise
        return server

    server = asyncio.run(start())
    try:
        yield server.url
    finally:
        asyncio.run(server.stop())


class Load:
    """Keeps some requests in flight, from threads of its own; a context.

    Attributes:
        answers: finished requests, as /generate answered them.
    """

    def __init__(self, url: str, at_a_time: int, **sampling: Any) -> None:
        self.answers: list[dict[str, Any]] = []
        self._url, self._at_a_time, self._sampling = url, at_a_time, sampling
        self._stopped = threading.Event()
        self._threads = ThreadPoolExecutor(at_a_time)
        self._running: list[Any] = []

    def __enter__(self) -> Load:
        self._running = [self._threads.submit(self._go_on) for _ in range(self._at_a_time)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for each in self._running:
            each.result()

    def _go_on(self) -> None:
        with httpx.Client(timeout=None) as client:
            while not self._stopped.is_set():
                self.answers.append(generate(self._url, client, **self._sampling))


def generate(url: str, client: Any = httpx, **sampling: Any) -> dict[str, Any]:
    """The answer to one prompt.

    Args:
        sampling: fields of the sampling parameters beside the defaults.
    """
    body = {
        "text": PROMPT,
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": 48,
            "ignore_eos": True,
            **sampling,
        },
    }
    response = client.post(
        f"{url}/generate", json=body, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=None
    )
    response.raise_for_status()
    return response.json()


PROMPT = tiny_pair.prompts(1, seed=11)[0]
