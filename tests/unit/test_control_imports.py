"""control/ and config must import on a machine that has neither torch nor sglang."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "sglang"}:
            raise ModuleNotFoundError(f"blocked for this test: {name}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def run_blocked(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, check=False
    )


def test_blocker_blocks() -> None:
    assert "blocked for this test: torch" in run_blocked("import torch").stderr


@pytest.mark.parametrize(
    "code",
    [
        "import specswitch.control",
        "import specswitch.config",
        "import specswitch.control, specswitch.config",
        "import specswitch.cli.main",
        "from specswitch.config import load_config; from specswitch.control import *;"
        "build_controller(load_config(None)).decide(LoadSample(0, 0, 1, 0.0))",
    ],
)
def test_imports_without_torch_and_sglang(code) -> None:
    result = run_blocked(code)
    assert result.returncode == 0, result.stderr


def test_control_needs_neither_pydantic_nor_yaml() -> None:
    code = "import specswitch.control; print(sorted({'pydantic', 'yaml'} & set(sys.modules)))"
    assert run_blocked(code).stdout.strip() == "[]"
