"""A server process: starting, failing, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import pytest
from demo_fakes import FAKE_SERVER

from specswitch.demo.errors import DemoError
from specswitch.demo.server import ServerProcess, free_port


def fake(log: Path, *arguments: str) -> ServerProcess:
    port = free_port()
    command = [sys.executable, str(FAKE_SERVER), "--port", str(port), *arguments]
    return ServerProcess("fake", command, os.environ, port, log)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be reaped counts as ended."""
    for _ in range(100):
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return True
        if status.rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_ready_returns_once_the_server_answers(tmp_path: Path) -> None:
    async def scenario() -> float:
        async with fake(tmp_path / "log") as server:
            return await server.ready(lambda *_: None)

    assert asyncio.run(scenario()) > 0


def test_stop_also_ends_the_children_of_the_server(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def scenario() -> None:
        async with fake(tmp_path / "log", "--child-pid-file", str(pids)) as server:
            await server.ready(lambda *_: None)

    asyncio.run(scenario())
    assert gone(int(pids.read_text()))


def test_cancelling_the_start_ends_the_server(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def scenario() -> None:
        async with fake(tmp_path / "log", "--child-pid-file", str(pids)) as server:
            await server.ready(lambda *_: None)
            await asyncio.sleep(3600)

    async def cancelled() -> None:
        task = asyncio.create_task(scenario())
        while not pids.is_file():
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert gone(int(pids.read_text()))


def test_server_that_ends_while_starting_is_reported_with_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with fake(tmp_path / "log", "--fail-to-start") as server:
            await server.ready(lambda *_: None)

    with pytest.raises(DemoError, match=r"(?s)fake server ended.*exit code 1.*cannot start"):
        asyncio.run(scenario())


def test_server_ended_by_a_signal_is_reported_with_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = tmp_path / "log"
        command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
        async with ServerProcess("fake", command, os.environ, free_port(), log) as server:
            await server.ready(lambda *_: None)

    with pytest.raises(DemoError, match="exit code -9"):
        asyncio.run(scenario())


def test_first_error_of_the_log_is_named(tmp_path: Path) -> None:
    server = fake(tmp_path / "log")
    server.log.write_text("ImportError: the cause\n" + "noise\n" * 40 + "RuntimeError: rank died\n")
    assert server.evidence().startswith("its first error: ImportError: the cause\n")


def test_waiting_is_told_the_last_log_line(tmp_path: Path) -> None:
    seen = []

    async def scenario() -> None:
        async with fake(tmp_path / "log") as server:
            await server.ready(lambda _, line: seen.append(line))
            seen.append(server.last_line())

    asyncio.run(scenario())
    assert seen[-1] == "fake engine starts"


def test_last_line_has_no_control_characters(tmp_path: Path) -> None:
    server = fake(tmp_path / "log")
    server.log.write_text("first\nshards 0%\rshards \x1b[32m100%\n\n")
    assert server.last_line() == "shards [32m100%"


def test_port_leaves_room_for_the_one_sglang_derives_from_it() -> None:
    assert all(port + 10000 < 65536 for port in (free_port() for _ in range(200)))


def test_port_in_use_is_not_given_out() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        taken = used.getsockname()[1]
        with pytest.raises(DemoError, match="no free port"):
            free_port(range(taken, taken + 1))
