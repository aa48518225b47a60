"""Starting, watching and stopping the servers that are measured.

A server takes most of the device, so arms run one after the other. Half of a server's
start is importing Python code, which needs no device: where the engine copy under test
has a gate (a wait at the start of `ModelRunner.__init__` until the file named by the
variable SGL_GATE exists), the next server does its imports while the current one is
measured. Elsewhere servers simply start in turn.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.arms import Arm
from benchmarks.decode_log import LogTail
from benchmarks.errors import BenchmarkError

READY = "ready to roll"  # entrypoints/http_server.py:2033, 0.5.12.post1
_PORTS = (20_000, 50_000)
_STOP_S = 10.0
_POLL_S = 0.1
_TAIL_LINES = 25
#: Start-up lines kept in the result: what the graphs of each arm cost.
_START_UP_LINES = re.compile(r"specswitch: |Capture .*graph end|Built adaptive|Adding initial")
_MAX_START_UP_LINES = 40


class ServerFailedError(BenchmarkError):
    """A server that did not come up, or died; the text ends with its last log lines."""


class Server:
    """One server process and its children.

    Args:
        arm: which server.
        folder: where its log and config go.
        label: makes its file names unique in `folder`.
        gate: start it, but keep it off the device until `wait_ready`.
    """

    def __init__(self, arm: Arm, folder: Path, label: str, gate: bool) -> None:
        self.arm = arm
        self.log = folder / f"{label}-{arm.name}.log"
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self._gate = folder / f"{label}.gate" if gate else None
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **arm.env}
        if self._gate:
            self._gate.unlink(missing_ok=True)
            env["SGL_GATE"] = str(self._gate)
        command = [sys.executable, "-m", "sglang.launch_server", *arm.args, "--port", str(port)]
        command += arm.write_config(folder)
        self.command = command[1:]
        self.started = time.monotonic()
        self.start_s: float | None = None
        self.ready_s: float | None = None
        with self.log.open("wb") as log:
            # A session of its own: one signal to the group reaches every child.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )
        self.tail = LogTail(self.log)

    def wait_ready(self, timeout_s: float) -> None:
        """Let it take the device and return when it serves.

        Raises ServerFailedError when it exits or takes longer than `timeout_s` from now.
        """
        released = time.monotonic()
        if self._gate:
            self._gate.touch()
        while READY not in self.log.read_text(errors="replace"):
            self.check_alive()
            if time.monotonic() - released > timeout_s:
                raise ServerFailedError(
                    f"{self.arm.name} was not ready after {timeout_s:.0f} s:\n{self.log_tail()}"
                )
            time.sleep(_POLL_S)
        self.ready_s = round(time.monotonic() - released, 1)
        self.start_s = round(time.monotonic() - self.started, 1)

    def check_alive(self) -> None:
        """Raise ServerFailedError when the process has ended."""
        if self._process.poll() is not None:
            raise ServerFailedError(
                f"{self.arm.name} exited with code {self._process.returncode}:\n{self.log_tail()}"
            )

    def state(self) -> dict[str, Any] | None:
        """specswitch's own counters from `/server_info`; None where the plug-in is not active.

        Raises ServerFailedError when the server does not answer.
        """
        try:
            with urllib.request.urlopen(f"{self.url}/server_info", timeout=60) as response:
                states = json.load(response)["internal_states"]
        except OSError as error:
            self.check_alive()
            raise ServerFailedError(
                f"{self.arm.name} does not answer /server_info ({error}):\n{self.log_tail()}"
            ) from error
        found: dict[str, Any] | None = states[0].get("specswitch") if states else None
        return found

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"    {line[:300]}" for line in lines)

    def describe(self) -> dict[str, Any]:
        """What the result file keeps of this server."""
        lines = self.log.read_text(errors="replace").split(READY)[0].splitlines()
        start_up = [line for line in lines if _START_UP_LINES.search(line)]
        return {
            "arm": self.arm.name,
            "args": [portable(arg) for arg in self.command],
            "env": {name: portable(value) for name, value in self.arm.env.items()},
            "config": self.arm.config,
            "start_s": self.start_s,
            "gate_to_ready_s": self.ready_s,
            "gated": self._gate is not None,
            "start_up": [portable(line) for line in start_up[:_MAX_START_UP_LINES]],
        }

    def stop(self) -> None:
        """End the process and all its children; harmless when they are gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        if self._gate:
            self._gate.unlink(missing_ok=True)


class ServerQueue:
    """The servers of a run, in order; the next may import behind its gate meanwhile.

    A context manager: leaving it, by whatever way, stops every server it started.

    Args:
        arms: one server each.
        folder: for logs and configs.
        prestart: use the gate; only for an engine copy that has one.
        label: the same for all servers of this run, another one for the next run.
        memory: device memory in use in MiB, None where that is unknown. A server is not
            released before what the one before it held is free again.
    """

    #: MiB above the start's use that a prestarted server behind its gate may hold.
    _SLACK_MIB = 4000
    _FREE_S = 30.0

    def __init__(
        self,
        arms: Sequence[Arm],
        folder: Path,
        *,
        label: str,
        prestart: bool,
        memory: Callable[[], int | None],
    ) -> None:
        self._arms = arms
        self._folder = folder
        self._label = label
        self._prestart = prestart
        self._memory = memory
        self._idle_mib: int | None = None
        self._servers: dict[int, Server] = {}

    def __enter__(self) -> ServerQueue:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._idle_mib = self._memory()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers.values():
            server.stop()

    def prepare(self, indices: Iterable[int]) -> None:
        """Start these servers behind their gates, where there are gates."""
        if self._prestart:
            for index in indices:
                self._launch(index)

    def open(self, index: int, timeout_s: float, *, ahead: bool = True) -> Server:
        """The server of arm `index`, ready; with `ahead` the next one starts behind its gate."""
        server = self._launch(index)
        server.wait_ready(timeout_s)
        if ahead and index + 1 < len(self._arms):
            self.prepare([index + 1])
        return server

    def close(self, index: int) -> None:
        """Stop the server of arm `index`, and wait until device memory is free after the last
        one that had any."""
        server = self._servers.pop(index, None)
        if server is None:
            return
        server.stop()
        if self._idle_mib is None or any(other.ready_s for other in self._servers.values()):
            return
        limit = time.monotonic() + self._FREE_S
        while (self._memory() or 0) > self._idle_mib + self._SLACK_MIB:
            if time.monotonic() > limit:
                raise BenchmarkError(
                    f"device memory is still in use {self._FREE_S:.0f} s after "
                    f"{server.arm.name} was stopped: is another program on the device?"
                )
            time.sleep(_POLL_S)

    def _launch(self, index: int) -> Server:
        if index not in self._servers:
            arm, label = self._arms[index], f"{self._label}-{index:02d}"
            self._servers[index] = Server(arm, self._folder, label, gate=self._prestart)
        return self._servers[index]


def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on.

    From a range that leaves room above: the engine reserves port + 10000 as well and
    refuses to start where that is no port (server_args.py:1147-1156, 0.5.12.post1).
    """
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def engine_has_gate() -> bool:
    """Whether the installed engine waits for SGL_GATE; looked up without importing it."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise BenchmarkError("SGLang is not installed in this Python: install specswitch[engine]")
    path = Path(next(iter(spec.submodule_search_locations)))
    runner = path / "srt" / "model_executor" / "model_runner.py"
    return runner.exists() and "SGL_GATE" in runner.read_text(errors="replace")


def portable(text: str) -> str:
    """`text` without the folders of this machine, which mean nothing on another one."""
    return text.replace(str(Path.cwd()) + "/", "").replace(str(Path.home()) + "/", "~/")
