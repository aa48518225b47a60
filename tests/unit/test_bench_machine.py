"""What a measurement reads of its machine is that of the GPUs that it may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import machine
from benchmarks.errors import BenchmarkError

# Two GPUs: one idle, one on which another program runs.
_NVIDIA_SMI = """#!/bin/sh
chosen=0,1
for argument in "$@"; do
  case "$argument" in --id=*) chosen=${argument#--id=} ;; esac
done
for gpu in $(echo "$chosen" | tr , ' '); do
  case "$1" in
    *memory.used) [ "$gpu" = 0 ] && echo 40000 || echo 4 ;;
    *name) echo "GPU $gpu" ;;
  esac
done
"""


@pytest.fixture(autouse=True)
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(_NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_memory_in_use_is_that_of_the_fullest_gpu() -> None:
    assert machine.device_memory_mib("cuda") == 40000


def test_a_gpu_that_is_not_visible_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.device_memory_mib("cuda") == 4
    assert machine.device_name("cuda", 1) == "GPU 1"


def test_more_gpus_than_are_visible_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(BenchmarkError, match="needs 2 GPU"):
        machine.device_name("cuda", 2)
