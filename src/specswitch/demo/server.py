"""A server process from start to stop.

SGLang's launcher starts a scheduler and a detokenizer of its own. All of them are
kept in one process group, so that none survives the demo, whatever ends it.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import aiohttp

from specswitch.demo.errors import DemoError

HOST = "127.0.0.1"
# Below the range that Linux takes the ports of outgoing connections from.
_PORTS = range(20000, 30000)
_POLL_S = 0.3
_STOP_GRACE_S = 5.0
_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit)\b.*: |specswitch: ")

Waiting = Callable[[float, str], None]
"""Called while a server starts: seconds since its start, last line of its log."""


def free_port(ports: range = _PORTS) -> int:
    """A TCP port on `HOST` that nothing listens on at this moment.

    Not simply one that the system picks: SGLang 0.5.12.post1 adds 10000 to it for
    gRPC and refuses a sum above 65535 (server_args.py:1147-1155), and the system
    picks up to 60999.

    Raises:
        DemoError: a hundred of `ports` were tried in vain.
    """
    for port in random.sample(ports, min(100, len(ports))):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise DemoError(f"found no free port from {ports.start} to {ports.stop - 1}")


class ServerProcess:
    """One server: an asynchronous context that starts it on entry and stops it on exit.

    Args:
        name: what messages call it.
        command: program and arguments; the server must listen on `HOST`:`port`.
        environment: all of its environment variables.
        port: see `free_port`.
        log: file that gets its output; truncated.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        port: int,
        log: Path,
    ) -> None:
        self.name = name
        self.url = f"http://{HOST}:{port}"
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    async def __aenter__(self) -> ServerProcess:
        with self.log.open("wb") as output:
            # A session of its own: Ctrl-C in the terminal reaches the demo alone,
            # which then stops the group in order.
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started = time.monotonic()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def ready(self, waiting: Waiting) -> float:
        """Wait until the server answers `/health` with 200 (503 until it has warmed up).

        Returns:
            Seconds that the start took.

        Raises:
            DemoError: the process ended first; the message has the end of its log.
        """
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while True:
                self.check_alive("ended while it started")
                elapsed = time.monotonic() - self._started
                try:
                    async with session.get(f"{self.url}/health") as answer:
                        if answer.status == 200:
                            return elapsed
                except (aiohttp.ClientConnectionError, TimeoutError, asyncio.TimeoutError):
                    pass  # Not listening yet: the loop looks at the process instead.
                waiting(elapsed, self.last_line())
                await asyncio.sleep(_POLL_S)

    def check_alive(self, what: str = "ended") -> None:
        """Raise DemoError with the end of the log if the process is gone."""
        if self._process is None:
            raise DemoError(f"the {self.name} server was not started")
        code = _exit_code(self._process)
        if code is not None:
            raise DemoError(f"the {self.name} server {what} (exit code {code}); {self.evidence()}")

    def evidence(self) -> str:
        """What the log says for a failure: the first error in it, and its end."""
        # SGLang's processes report each other's end, so the cause is further up.
        with self.log.open(encoding="utf-8", errors="replace") as log:
            first = next((line.strip() for line in log if _ERROR.match(line)), None)
        cause = f"its first error: {first}\n" if first else ""
        return f"{cause}the end of {self.log}:\n{self.tail(15)}"

    def tail(self, lines: int) -> str:
        """The last non-empty lines of the log."""
        if not self.log.is_file():
            return ""
        with self.log.open(encoding="utf-8", errors="replace") as log:
            kept = deque((line.rstrip() for line in log if line.strip()), maxlen=lines)
        return "\n".join(kept)

    def last_line(self) -> str:
        """The last non-empty line of the log, without terminal control characters."""
        line = self.tail(1).rsplit("\r", 1)[-1]
        return "".join(character for character in line if character.isprintable())

    async def stop(self) -> None:
        """End the whole process group: SIGTERM, a few seconds, then SIGKILL. Safe to repeat."""
        process = self._process
        if process is None:
            return
        try:
            self._signal(process, signal.SIGTERM)
            end = time.monotonic() + _STOP_GRACE_S
            while _exit_code(process) is None and time.monotonic() < end:
                await asyncio.sleep(0.05)
        finally:
            # Also when this coroutine is cancelled, and for children that outlive
            # their parent: nothing of the group may stay.
            self._signal(process, signal.SIGKILL)
            process.wait()
            self._process = None

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return  # The group is empty: there is nothing left to stop.


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Exit code of a process that has ended (negative: by a signal), without reaping it.

    `Popen.poll` would reap it. Its number could then belong to another process by the
    time the rest of its group is killed.
    """
    if process.returncode is not None:
        return process.returncode
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
