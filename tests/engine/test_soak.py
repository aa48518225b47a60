"""The soak in small, and that its report would tell of a leak.

``python -m tests.engine.soak`` is the long one.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from soak.leaks import Reading, find_leaks
from soak.serve import run_soak

from specswitch.control.decision import Mode

FLIPS = 200


def test_two_hundred_flips_under_random_traffic_leave_nothing_behind() -> None:
    soak = run_soak(FLIPS, idle_s=1, progress=lambda _soak: None)
    assert soak.wrong == []
    assert find_leaks(soak.readings) == []
    assert soak.flips >= FLIPS
    assert soak.requests.keys() == {"length", "stop", "abort"}
    assert sum(soak.requests.values()) >= 100
    assert min(soak.steps[str(mode)] for mode in Mode) > FLIPS / 4
    assert min(soak.retractions, soak.pauses, soak.commands) > 0


def readings(**last: float) -> list[Reading]:
    """Of a soak that leaks nothing, but for its end."""
    steady = [
        Reading(
            *(1000 * number, 0, 0, 0, 0, 0, 0, 0, 0),
            **{"objects": 1000 + number % 3, "rss_mb": 500.0, "files": 58, "threads": 28},
        )
        for number in range(11)
    ]
    return [*steady[:-1], replace(steady[-1], **last)]


def test_a_soak_without_leaks_reports_none() -> None:
    assert find_leaks(readings()) == []
    assert find_leaks(readings()[:1]) == []


@pytest.mark.parametrize(
    ("left", "said"),
    [
        ({"slots": 1}, "after 10000 flips: slots 1, should be 0"),
        ({"rows": 1}, "rows 1"),
        ({"held": 2}, "held 2"),
        ({"results": 1}, "results 1"),
        ({"alive": 3}, "alive 3"),
        ({"behind": 1}, "behind 1"),
        ({"pending": 9}, "pending 9"),
        ({"marks": 1}, "marks 1"),
        ({"objects": 4000}, "objects: 1002 after 5000 flips, 4000 after 10000"),
        ({"rss_mb": 540.0}, "rss_mb: 500.0 after 5000 flips"),
        ({"files": 59}, "files: 58"),
        ({"threads": 29}, "threads: 28"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_leak_is_told_of(left: dict[str, float], said: str) -> None:
    (leak,) = find_leaks(readings(**left))
    assert said in leak
