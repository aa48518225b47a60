"""No gap ever outgrows the ring, and flushes stay small, whatever joins and leaves the batch."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specswitch.config import Config
from specswitch.config_model import DraftSyncConfig
from specswitch.engine.draft_sync.flush_plan import FlushPlan


class Batch:
    """Requests of a decode batch by the length of their gaps, driven as draft sync drives it."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.plan = FlushPlan(window)
        self.gaps: list[int] = []
        self.flushes: list[list[int]] = []
        """Per step the gaps that were filled."""

    def join(self, count: int) -> None:
        self.gaps += [0] * count

    def leave(self, indices: list[int]) -> None:
        self.gaps = [gap for index, gap in enumerate(self.gaps) if index not in set(indices)]

    def step(self) -> list[int]:
        """One target-only step; returns who was flushed."""
        self.gaps = [gap + 1 for gap in self.gaps]
        assert max(self.gaps, default=0) <= self.window, "a kept position was overwritten"
        chosen = self.plan.choose(self.gaps)
        assert chosen == sorted(set(chosen))
        self.flushes.append([self.gaps[index] for index in chosen])
        for index in chosen:
            self.gaps[index] = 0
        return chosen


windows = st.integers(FlushPlan.SMALLEST_WINDOW, 80)


@given(windows, st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=300), st.data())
def test_no_gap_outgrows_the_window_when_any_requests_come_and_go(
    window: int, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    batch = Batch(window)
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    for joining, leaving in changes:
        batch.leave(rng.sample(range(len(batch.gaps)), min(leaving, len(batch.gaps))))
        batch.join(joining)
        batch.step()


@given(windows, st.integers(1, 300), st.integers(0, 9))
def test_no_gap_outgrows_the_window_when_those_who_were_flushed_leave_at_once(
    window: int, size: int, phase: int
) -> None:
    """The batch shrinks with each flush, and who is left has waited longest."""
    batch = Batch(window)
    for _ in range(phase):
        batch.step()
    batch.join(size)
    while batch.gaps:
        batch.leave(batch.step())


@given(windows, st.integers(1, 300))
def test_only_gaps_of_half_the_window_are_flushed(window: int, size: int) -> None:
    batch = Batch(window)
    batch.join(size)
    for _ in range(4 * window):
        batch.step()
    assert all(gap >= window // 2 for flush in batch.flushes for gap in flush)


@pytest.mark.parametrize("window", [32, 64, 128])
@pytest.mark.parametrize("size", [64, 256, 512])
def test_a_large_batch_is_flushed_a_part_at_a_time(size: int, window: int) -> None:
    """All gaps of a batch that starts together become due together, the worst case."""
    batch = Batch(window)
    batch.join(size)
    for _ in range(20 * window):
        batch.step()
    rounds = window // 2 // FlushPlan.EVERY - 1
    assert max(map(len, batch.flushes)) <= -(-size // rounds)


@pytest.mark.parametrize("size", [1, 4, 8, 16])
def test_a_small_batch_is_flushed_seldom(size: int) -> None:
    """As often as one flush of some 256 positions has to come, or once a half window."""
    batch = Batch(64)
    batch.join(size)
    steps = 640
    for _ in range(steps):
        batch.step()
    flushes = sum(bool(flush) for flush in batch.flushes)
    assert flushes <= max(steps / 32, steps * size / FlushPlan.WORTHWHILE)


def test_a_request_that_missed_every_flush_is_flushed_before_it_loses_a_position() -> None:
    plan = FlushPlan(64)
    assert plan.choose([63, 64, 3]) == [1]


@pytest.mark.parametrize("window", [FlushPlan.SMALLEST_WINDOW, 64])
def test_the_configuration_allows_the_windows_that_the_plan_can_serve(window: int) -> None:
    assert Config(draft_sync=DraftSyncConfig(window=window)).draft_sync.window == window
    with pytest.raises(ValueError, match="window"):
        DraftSyncConfig(window=FlushPlan.SMALLEST_WINDOW - 1)
