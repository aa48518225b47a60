"""The demo as a user runs it: real servers over HTTP, on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_demo_switches_both_ways_with_equal_answers(tmp_path: Path) -> None:
    out = tmp_path / "report"
    code = "from specswitch.cli.main import app; app()"
    run = subprocess.run(
        [sys.executable, "-c", code, "demo", "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout

    numbers = json.loads((out / "demo.json").read_text())
    assert numbers["answers"]["different"] == []
    reasons = [switch["reason"] for switch in numbers["switches"]]
    assert "waiting_high" in reasons
    assert "load_low" in reasons
    # Trained weights: far more is accepted than by chance.
    assert numbers["samples"][-1]["acceptance_length"] > 2
    assert (out / "demo.png").stat().st_size > 10_000
