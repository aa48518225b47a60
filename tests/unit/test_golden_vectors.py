"""The CPU kernels agree with what sgl_kernel computed on a GPU, for machines without one.

The file is written on a GPU machine by::

    python -m specswitch.cpu.golden record --kernels sgl_kernel --device cuda \\
        --out tests/gpu/golden/sgl_kernel.safetensors
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")

from specswitch.cpu import golden  # noqa: E402

RECORDING = Path(__file__).parents[1] / "gpu" / "golden" / "sgl_kernel.safetensors"
LARGEST_BYTES = 300_000

pytestmark = pytest.mark.skipif(
    not RECORDING.exists(),
    reason=f"{RECORDING.name} is not recorded yet: run the command in this file on a GPU machine",
)


def test_the_recording_was_made_by_sgl_kernel_on_a_gpu() -> None:
    with safetensors.safe_open(RECORDING, "pt") as recording:
        origin = recording.metadata()
    assert origin["kernels"].startswith("sglang-kernel ")
    assert origin["device"] != "cpu"
    assert RECORDING.stat().st_size < LARGEST_BYTES


def test_the_cpu_kernels_compute_what_sgl_kernel_did() -> None:
    assert golden.differences(RECORDING) == []
