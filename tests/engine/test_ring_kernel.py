"""The ring's GPU kernel, in Triton's interpreter; tests/gpu runs it compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("width", [64, 1024, 1500, 3072])
def test_the_kernel_writes_what_indexing_writes(width: int) -> None:
    # The interpreter is chosen when triton is imported, so it takes a process of its own.
    script = Path(__file__).parents[1] / "ring_cases.py"
    done = subprocess.run(
        [sys.executable, str(script), "cpu", str(width)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
