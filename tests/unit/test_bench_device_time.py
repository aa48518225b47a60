"""Busy and idle time of the device, from a trace."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.device_time import split
from benchmarks.errors import BenchmarkError


def event(ts: float, dur: float, cat: str = "kernel") -> dict[str, Any]:
    return {"cat": cat, "ts": ts, "dur": dur}


def test_work_that_overlaps_on_two_streams_counts_once() -> None:
    found = split([event(0, 1000), event(500, 1000), event(600, 100), event(3000, 1000)], 2)
    assert found["busy_ms"] == 1.25
    assert found["idle_ms"] == 0.75
    assert found["step_ms"] == 2.0
    assert found["kernels"] == 2.0


def test_copies_are_work_and_the_hosts_events_are_not() -> None:
    found = split([event(0, 500, "gpu_memcpy"), event(0, 9000, "cpu_op"), event(500, 500)], 1)
    assert (found["busy_ms"], found["idle_ms"]) == (1.0, 0.0)


def test_events_need_not_be_in_order() -> None:
    assert split([event(2000, 1000), event(0, 1000)], 1)["idle_ms"] == 1.0


def test_a_trace_without_device_work_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="no work on the device"):
        split([event(0, 1, "cpu_op")], 1)
