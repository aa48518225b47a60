"""A real server over HTTP, for the tests that need the whole of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import requests

from harness.launcher import environment
from harness.ports import reserve_port
from specswitch.demo.server import HOST

_POLL_S = 0.2


class ServerEnded(RuntimeError):
    """The server process ended while it was needed; the message has the end of its log."""


class HttpServer:
    """One ``python -m sglang.launch_server``; leaving the context ends it and all its children.

    Args:
        arguments: beyond host and port.
        log: file for its output.
        variables: environment variables beyond those of the CPU engine.
    """

    def __init__(self, arguments: Sequence[str], log: Path, **variables: str) -> None:
        port = reserve_port()
        self.url = f"http://{HOST}:{port}"
        self.log = log
        address = ["--host", HOST, "--port", str(port), "--nccl-port", str(reserve_port())]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sglang.launch_server", *arguments, *address],
                env=environment({"PYTHONUNBUFFERED": "1", **variables}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None or self.children():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready`.

        Raises:
            ServerEnded: the server ended before.
        """
        while not ready():
            if self.process.poll() is not None:
                tail = self.log.read_text(errors="replace")[-4000:]
                raise ServerEnded(f"exit code {self.process.returncode}; its log ends:\n{tail}")
            time.sleep(_POLL_S)

    def has_logged(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def is_healthy(self) -> bool:
        try:
            return requests.get(f"{self.url}/health", timeout=5).status_code == 200
        except requests.RequestException:
            return False

    def get(self, path: str) -> Any:
        answer = requests.get(self.url + path, timeout=600)
        answer.raise_for_status()
        return answer.json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = requests.post(self.url + path, json=body, timeout=600)
        answer.raise_for_status()
        return answer.json()

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[Any]:
        """Events of a streaming answer, as they arrive."""
        with requests.post(
            self.url + path, json={**body, "stream": True}, stream=True, timeout=600
        ) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                text = line.decode()
                if text.startswith("data: ") and text != "data: [DONE]":
                    yield json.loads(text.removeprefix("data: "))

    def wait_until_gone(self) -> None:
        """Wait until the server, and after it all of its children, have ended."""
        self.process.wait()
        while self.children():
            time.sleep(_POLL_S)

    def children(self) -> list[int]:
        """Living processes of the server's process group."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It ended while we looked.
            if int(fields[2]) == self.process.pid and fields[0] != "Z":
                found.append(int(entry.name))
        return found
