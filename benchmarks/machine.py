"""What a result says about where it was measured."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.errors import BenchmarkError

_QUERY_S = 30


def _nvidia_smi(fields: str) -> list[list[str]]:
    """One row per visible GPU, in nvidia-smi's order; empty where there is no nvidia-smi.

    nvidia-smi itself does not heed CUDA_VISIBLE_DEVICES, and what runs on the other GPUs is no
    business of this measurement. It takes the same numbers and UUIDs, and counts GPUs as CUDA does
    where all are of one kind.
    """
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        command.append(f"--id={visible}")
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_QUERY_S
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line]


def device_name(device: str, count: int) -> str:
    """Name and number of the devices used: "NVIDIA H200", "2 x NVIDIA H200", "CPU (...)".

    Raises BenchmarkError when a GPU is asked for and none answers.
    """
    if device == "cpu":
        return f"CPU ({_cpu_model()}, {os.cpu_count()} cores)"
    rows = _nvidia_smi("name")
    if len(rows) < count:
        raise BenchmarkError(
            f"needs {count} GPU(s), nvidia-smi lists {len(rows)}: use --device cpu for a smoke run"
        )
    return rows[0][0] if count == 1 else f"{count} x {rows[0][0]}"


def device_memory_mib(device: str) -> int | None:
    """Device memory in use in MiB, of the GPU where it is most; None on a CPU."""
    if device == "cpu":
        return None
    rows = _nvidia_smi("memory.used")
    return max(int(row[0]) for row in rows) if rows else None


def details(device: str) -> dict[str, Any]:
    """Driver, clocks and versions beside the name, for whoever repeats the run."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "specswitch": _version("specswitch"),
        "commit": _commit(),
    }
    if device != "cpu":
        rows = _nvidia_smi("uuid,driver_version,memory.total,clocks.max.sm,power.limit")
        found["gpus"] = [
            dict(zip(("uuid", "driver", "memory_mib", "max_sm_mhz", "power_w"), row, strict=True))
            for row in rows
        ]
    return found


def engine_version() -> str:
    """SGLang's version; BenchmarkError when it is not installed."""
    found = _version("sglang")
    if found is None:
        raise BenchmarkError("SGLang is not installed in this Python: install specswitch[engine]")
    return f"sglang {found}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The checkout's commit, "+" when it is modified; None outside a git checkout.

    A copy of a checkout on another machine has no git folder: BENCH_COMMIT names it there.
    """
    if named := os.environ.get("BENCH_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(here, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *args: str) -> str:
    command = ["git", "-C", str(folder), *args]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_QUERY_S)
    return done.stdout.strip()


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
