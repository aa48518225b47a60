"""``python -m tests.engine.soak [--flips 10000] [--out FILE]``: see the package.

Exit code 0 when all answers were right and nothing leaked, else 1 with what was wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

# The engine tests import their harness by its own name, as pytest lets them.
_ENGINE_TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(_ENGINE_TESTS), str(_ENGINE_TESTS.parents[1])]

from benchmarks.machine import device_name, engine_version  # noqa: E402

from soak.leaks import Reading, find_leaks  # noqa: E402
from soak.serve import ENGINE, WINDOW, Soak, run_soak  # noqa: E402

#: Readings that a report keeps; the first and the last are among them.
_READINGS = 21


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.soak", description=__doc__)
    parser.add_argument("--flips", type=int, default=10_000, help="changes of mode (10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the traffic (1)")
    parser.add_argument("--idle", type=float, default=60, help="idle time halfway, seconds (60)")
    parser.add_argument("--out", type=Path, help="write a JSON report there")
    options = parser.parse_args()
    # What the engine says once, at its start; a retraction is nothing to report here.
    logging.disable(logging.WARNING)
    started = time.monotonic()

    def progress(soak: Soak) -> None:
        done = time.monotonic() - started
        rest = done / max(soak.flips, 1) * max(options.flips - soak.flips, 0)
        print(
            f"{soak.flips:>6} of {options.flips} flips, {soak.requests.total()} requests, "
            f"{soak.retractions} retractions, {soak.readings[-1].rss_mb:.0f} MB, "
            f"{done / 60:.1f} min, about {rest / 60:.0f} to go",
            flush=True,
        )

    with tempfile.TemporaryDirectory(prefix="specswitch-") as folder:
        # Each engine leaves five empty files for its sockets (server_args.py:7806).
        tempfile.tempdir = folder
        soak = run_soak(options.flips, seed=options.seed, idle_s=options.idle, progress=progress)
    leaks = find_leaks(soak.readings)
    for line in (*soak.wrong[:5], *leaks):
        print(line, file=sys.stderr)
    print(f"wrong answers: {len(soak.wrong)}; leaks: {len(leaks)}")
    if options.out is not None:
        options.out.write_text(json.dumps(report(soak, leaks, options), indent=1) + "\n")
    return int(bool(soak.wrong or leaks))


def report(soak: Soak, leaks: list[str], options: argparse.Namespace) -> dict[str, object]:
    """The JSON report."""
    command = ["python", "-m", "tests.engine.soak", *sys.argv[1:]]
    return {
        "benchmark": "soak",
        "gpu": None,
        "machine": device_name("cpu", 0),
        "engine": engine_version(),
        "command": shlex.join(command),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "setup": {"seed": options.seed, "draft_sync_window": WINDOW, **ENGINE},
        "results": {
            "flips": soak.flips,
            "steps": soak.steps,
            "requests": soak.requests.total(),
            "ended": dict(soak.requests),
            "retractions": soak.retractions,
            "pauses": soak.pauses,
            "commands": soak.commands,
            "cache_flushes": soak.flushes,
            "longest_idle_s": soak.idle_s,
            "checks_of_the_pools": soak.checks,
            "seconds": soak.seconds,
            "wrong_answers": len(soak.wrong),
            "leaks": leaks,
            "readings": [asdict(reading) for reading in _some(soak.readings)],
        },
    }


def _some(readings: list[Reading]) -> list[Reading]:
    """Evenly spread, first and last included."""
    last = len(readings) - 1
    places = sorted({round(last * part / (_READINGS - 1)) for part in range(_READINGS)})
    return [readings[place] for place in places]


if __name__ == "__main__":
    sys.exit(main())
