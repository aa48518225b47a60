"""A part of `resume`: one server and what is measured on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.arms import Arm
from benchmarks.runner import Measurement
from benchmarks.switch import STEP_TIMES

BENCHMARK = "resume"
REPEATS = "repeats"
#: Modes of draft sync.
MODES = ("deferred", "every_step", "off")
#: The configuration's default window.
WINDOW = 64


class Part:
    """One server and what is measured on it."""

    def __init__(self, arm: Arm) -> None:
        self.arm = arm

    def plan(self) -> list[Measurement]:
        raise NotImplementedError


def configured(arm: Arm, name: str, **config: Any) -> Arm:
    """The arm under another name, with parts of its worker config replaced."""
    return replace(arm, name=name, config={**(arm.config or {}), **config})


def timed(arm: Arm, folder: Path) -> tuple[Arm, Path]:
    """The arm writing its step times, and where."""
    path = (folder / f"{arm.name}.jsonl").resolve()
    return replace(arm, env={**arm.env, STEP_TIMES: str(path)}), path
