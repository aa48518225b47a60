"""How a step's time splits into work of the device and waiting for the host.

From the engine's own profiler (`/start_profile`, device activities alone: recording the host's
would slow it down). A step that is longer than its work on the device waits for the host.
"""

from __future__ import annotations

import concurrent.futures
import gzip
import json
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import client, decode_log
from benchmarks.errors import BenchmarkError
from benchmarks.server import Server

#: Decode steps of a profile.
STEPS = 40
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
_POLL_S = 0.05
_TIMEOUT_S = 60.0


def measure(server: Server, load: Sequence[client.Request], concurrency: int) -> dict[str, Any]:
    """Profile ``STEPS`` decode steps while `load` runs.

    Returns:
        Of one step on average: `step_ms`, `busy_ms` in which the device worked, `idle_ms` in which
        it did not, and `kernels`, how many it ran. Longer than without the profiler.

    Raises BenchmarkError when the load ends before the profile does.
    """
    server.tail.skip()
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(1) as background,
    ):
        running = background.submit(client.closed_loop, server.url, load, concurrency)
        _wait_for_decode(server, concurrency)
        _start(server, Path(folder))
        running.result()
        return split(_events(Path(folder)), STEPS)


def split(events: Sequence[dict[str, Any]], steps: int) -> dict[str, Any]:
    """The figures of `measure`, from the events of a trace in Chrome's format (times in us)."""
    spans = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in _ON_DEVICE
    )
    if not spans:
        raise BenchmarkError("the profile shows no work on the device: did decoding end before it?")
    busy, until = 0.0, spans[0][0]
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    total = until - spans[0][0]
    return {
        "steps": steps,
        "step_ms": round(total / steps / 1000, 4),
        "busy_ms": round(busy / steps / 1000, 4),
        "idle_ms": round((total - busy) / steps / 1000, 4),
        "kernels": round(len(spans) / steps, 1),
    }


def _wait_for_decode(server: Server, concurrency: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    lines: list[str] = []
    while time.monotonic() < deadline:
        lines += server.tail.read()
        if any(window.running == concurrency for window in decode_log.parse(lines)):
            return
        time.sleep(_POLL_S)
    raise BenchmarkError(f"{concurrency} requests never decoded together in {_TIMEOUT_S:.0f} s")


def _start(server: Server, folder: Path) -> None:
    body = {"output_dir": str(folder), "num_steps": STEPS, "activities": ["GPU"]}
    request = urllib.request.Request(
        f"{server.url}/start_profile",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=_TIMEOUT_S).close()


def _events(folder: Path) -> list[dict[str, Any]]:
    """Of the one trace in `folder`, once it is complete."""
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        for path in folder.rglob("*.json.gz"):
            try:
                events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))[
                    "traceEvents"
                ]
            except (EOFError, ValueError, OSError):
                continue  # still being written
            return events
        time.sleep(_POLL_S)
    raise BenchmarkError(f"the server wrote no profile in {_TIMEOUT_S:.0f} s")
