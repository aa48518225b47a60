"""Holds the verdict of a test against the stored one, from which the page is made.

So the page cannot promise what the tests do not see: a verdict that changes makes its test fail
until it is stored, and the page fails its own test until it is made anew.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from .verdicts import Verdict

#: Set to 1 to store verdicts instead of checking them.
RECORD = "SPECSWITCH_RECORD"
RESULTS = Path(__file__).with_name("results.json")


def stored() -> dict[str, dict[str, Any]]:
    """All stored results by the key of their row: ``verdict``, and what `check` was told."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def check(key: str, verdict: Verdict, **measured: Any) -> None:
    """Compare with what is stored for a row, or store it when ``SPECSWITCH_RECORD=1``.

    Args:
        key: key of the row.
        verdict: what the test has found.
        measured: plain values for the page that come out equal in every run, such as
            ``unruled="4 of 4 answers differ"``; no timings.
    """
    result = {"verdict": str(verdict), **measured}
    if os.environ.get(RECORD) == "1":
        _store(key, result)
        return
    known = stored().get(key)
    assert known is not None, f"{key}: no stored verdict; run once with {RECORD}=1"
    assert result == known, f"{key}: not what is stored; if that is right, run with {RECORD}=1"


def _store(key: str, result: dict[str, Any]) -> None:
    with RESULTS.open("r+", encoding="utf-8") as file:
        # Tests of several modules may run at the same time.
        fcntl.flock(file, fcntl.LOCK_EX)
        results = json.load(file)
        results[key] = result
        file.seek(0)
        file.truncate()
        file.write(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
