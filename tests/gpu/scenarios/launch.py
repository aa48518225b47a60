"""Starts servers' processes side by side and hands out what they wrote."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scenarios.plan import SERVERS

_TESTS = Path(__file__).parents[2]
_LOG_LINES_SHOWN = 40

# Variables that a server's process needs before Python starts.
_ENVIRONMENT = {
    "cuda": {
        "SPECSWITCH_CPU": "0",
        # What the engine's own launcher sets (entrypoints/engine.py:1220).
        "CUDA_DEVICE_MAX_CONNECTIONS": "8",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_NVLS_ENABLE": "0",
        # Other servers of the same test run may use one GPU of a tensor-parallel one.
        "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
        # Many processes start at once; each would start workers for all cores.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    },
    "cpu": {"SPECSWITCH_CPU": "1"},
}


class ServerFailed(RuntimeError):
    """A server's process ended without a report; the message ends with its log."""


class Servers:
    """Servers that are starting, serving or done.

    Args:
        names: keys of `plan.SERVERS`.
        device: "cuda" or "cpu".
        directory: for reports and logs.
        models: directory of another pair of models; None: that of the package.
    """

    def __init__(
        self, names: Iterable[str], device: str, directory: Path, models: str | None = None
    ) -> None:
        self._device, self._directory, self._models = device, directory, models
        names = sorted(names)
        # Ranks of a server wait for each other on their GPUs, and two such servers at a time only
        # slow each other down.
        self._several_gpus = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
        self._reports: dict[str, Future[list[dict[str, Any]]]] = {
            name: self._pool.submit(self._serve, name, port)
            for name, port in zip(names, _free_ports(len(names)), strict=True)
        }

    def reports(self, name: str) -> list[dict[str, Any]]:
        """What each rank of a server reported; waits for it.

        Raises:
            ServerFailed: a rank has no report.
        """
        return self._reports[name].result()

    def report(self, name: str) -> dict[str, Any]:
        """What rank 0 of a server reported; see `reports`."""
        return self.reports(name)[0]

    def close(self) -> None:
        """Waits for the servers that no test has waited for."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _serve(self, name: str, port: int) -> list[dict[str, Any]]:
        tp = SERVERS[name].tp
        with ExitStack() as stack:
            if tp > 1:
                stack.enter_context(self._several_gpus)
            ranks = [self._start(name, rank, port, stack) for rank in range(tp)]
            _wait(ranks)
        return [self._read(name, rank, process) for rank, process in enumerate(ranks)]

    def _start(self, name: str, rank: int, port: int, stack: ExitStack) -> subprocess.Popen[bytes]:
        environment = os.environ | _ENVIRONMENT[self._device]
        if self._device == "cpu" and SERVERS[name].tp > 1:
            # One core a rank; by default the engine wants a NUMA node each
            # (model_executor/model_runner.py:3105).
            environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(SERVERS[name].tp)))
        environment["SPECSWITCH_DEBUG"] = "1" if SERVERS[name].debug else "0"
        environment["PYTHONPATH"] = os.pathsep.join(
            [
                str(_TESTS / "gpu"),
                str(_TESTS / "engine"),
                *filter(None, [os.environ.get("PYTHONPATH")]),
            ]
        )
        command = [
            *(sys.executable, "-m", "scenarios.serve", name, "--device", self._device),
            *("--rank", str(rank), "--port", str(port), "--out", str(self._file(name, rank))),
            *(("--models", self._models) if self._models else ()),
        ]
        log = stack.enter_context(self._file(name, rank, ".log").open("wb"))
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def _read(self, name: str, rank: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        file = self._file(name, rank)
        if process.returncode or not file.exists():
            lines = self._file(name, rank, ".log").read_text(errors="replace").splitlines()
            raise ServerFailed(
                f"{name}, rank {rank}, ended with status {process.returncode}; its log ends:\n"
                + "\n".join(lines[-_LOG_LINES_SHOWN:])
            )
        report: dict[str, Any] = json.loads(file.read_text())
        return report

    def _file(self, name: str, rank: int, suffix: str = ".json") -> Path:
        return self._directory / f"{name}-{rank}{suffix}"


def _wait(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Waits for all; when one fails, the others would wait for it for ever, and are ended."""

    def watch(process: subprocess.Popen[bytes]) -> None:
        if process.wait():
            for other in ranks:
                other.terminate()

    watchers = [threading.Thread(target=watch, args=(process,)) for process in ranks]
    for watcher in watchers:
        watcher.start()
    for watcher in watchers:
        watcher.join()


def _free_ports(count: int) -> list[int]:
    # All held at once, so that they differ.
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
