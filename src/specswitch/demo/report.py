"""What a run leaves behind: a picture, all numbers as JSON, and a summary to read."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from specswitch.control import Mode
from specswitch.demo.outcome import Outcome
from specswitch.demo.screen import describe


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("specswitch", "sglang", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def to_json(outcome: Outcome) -> dict[str, Any]:
    """All numbers of a run; times are seconds since the first sample."""
    return {
        "versions": _versions(),
        "checks": outcome.checks(),
        "phases": [
            {**asdict(phase), "tokens_per_second": round(phase.tokens_per_second, 1)}
            for phase in outcome.phases
        ],
        "switches": [
            {**asdict(switch), "seconds": round(switch.seconds, 3)} for switch in outcome.switches
        ],
        "answers": {
            "compared": outcome.answers,
            "different": [asdict(difference) for difference in outcome.differing],
        },
        "reference_seconds": round(outcome.reference_seconds, 3),
        "samples": [asdict(sample) for sample in outcome.samples],
    }


def summary(outcome: Outcome) -> str:
    """The result in a few lines."""
    last = outcome.samples[-1]
    versions = ", ".join(f"{name} {version}" for name, version in _versions().items())
    lines = ["specswitch demo", f"  {versions}", "", "checks"]
    lines += [f"  {'ok  ' if held else 'FAIL'}  {name}" for name, held in outcome.checks().items()]
    lines += ["", f"switches ({len(outcome.switches)})"]
    lines += [f"  {describe(switch)}" for switch in outcome.switches] or ["  none"]
    lines += ["", "traffic on the server with specswitch"]
    lines += [
        f"  {phase.name:<11} {phase.requests:>3} requests  {phase.end - phase.start:6.1f} s  "
        f"{phase.tokens_per_second:6.0f} tokens/s"
        for phase in outcome.phases
    ]
    lines += ["", "decode steps"]
    lines += [
        f"  {mode.value:<11} {last.steps.get(mode.value, 0):>6} steps  "
        f"{last.tokens.get(mode.value, 0):>6} tokens"
        for mode in Mode
    ]
    if last.acceptance_length is not None:
        lines.append(f"  acceptance length {last.acceptance_length:.2f}")
    lines += ["", f"answers compared: {outcome.answers}, different: {len(outcome.differing)}"]
    lines += [f"  {difference}" for difference in outcome.differing[:10]]
    return "\n".join(lines) + "\n"


def write(
    folder: Path, outcome: Outcome, *, enter: int | None, resume: int | None
) -> Sequence[Path]:
    """Write `demo.png`, `demo.json` and `summary.txt`; returns their paths."""
    # Matplotlib takes a second to import and is an optional extra.
    from specswitch.demo.figure import draw

    picture, numbers, text = folder / "demo.png", folder / "demo.json", folder / "summary.txt"
    numbers.write_text(json.dumps(to_json(outcome), indent=1) + "\n", encoding="utf-8")
    text.write_text(summary(outcome), encoding="utf-8")
    draw(picture, outcome, enter=enter, resume=resume)
    return picture, numbers, text
