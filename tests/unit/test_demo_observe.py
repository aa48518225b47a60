"""What the demo makes of the server's state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from specswitch.demo.observe import Observer, Sample, switched_both_ways
from specswitch.timeline.model import SwitchAt, seconds_of_step


def sample(seconds: float, step: int) -> Sample:
    return Sample(seconds, step, "speculate", 0, 1, 0.1, 2.0, 0.0, "calm", "steady", {}, {})


def switch(target: str, step: int = 1, seconds: float = 2.0) -> SwitchAt:
    source = "speculate" if target == "target_only" else "target_only"
    return SwitchAt(seconds, step, source, target, "waiting_high", 5, 4, 0.1)


def state(total: int, **changes: Any) -> dict[str, Any]:
    entries = [
        {
            "step": i,
            "from": "speculate" if i % 2 == 0 else "target_only",
            "to": "target_only" if i % 2 == 0 else "speculate",
            "reason": "periodic",
            "waiting": 0,
            "running": 1,
            "kv_use": 0.0,
        }
        for i in range(total)
    ]
    return {
        "mode": "speculate",
        "reason": "steady",
        "step": 10,
        "waiting": 7,
        "running": 3,
        "kv_use": 0.5,
        "steps": {"speculate": 6, "target_only": 4},
        "tokens": {"speculate": 20, "target_only": 4},
        "switches": {"total": total, "recent": entries[-64:]},
        "acceptance_length": 3.0,
        **changes,
    }


class FakeClient:
    def __init__(self, states: list[dict[str, Any]]) -> None:
        self._states = iter(states)

    async def state(self) -> dict[str, Any]:
        return next(self._states)


def observe(states: list[dict[str, Any]], outstanding: int = 1) -> Observer:
    observer = Observer(FakeClient(states), lambda _: None, lambda _: None)  # type: ignore[arg-type]
    observer.outstanding = outstanding

    async def all_polls() -> None:
        for _ in states:
            await observer.poll()

    asyncio.run(all_polls())
    return observer


def test_each_switch_is_seen_once() -> None:
    observer = observe([state(0), state(2), state(2), state(5)])
    assert [seen.step for seen in observer.switches] == [0, 1, 2, 3, 4]


def test_a_switch_has_the_time_of_its_step_between_two_polls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([0.0, 1.0, 3.0])
    monkeypatch.setattr(Observer, "seconds", property(lambda _: next(times)))
    observer = observe([state(0, step=10), state(0, step=20), state(25, step=30)])
    assert observer.switches[-1].step == 24
    assert observer.switches[-1].seconds == pytest.approx(1.8)


def test_counts_are_taken_while_requests_are_outstanding() -> None:
    taken = observe([state(0)]).samples[0]
    assert (taken.waiting, taken.running) == (7, 3)


def test_idle_server_has_nothing_waiting_or_running() -> None:
    # The server keeps showing the counts of its last decode step.
    taken = observe([state(0)], outstanding=0).samples[0]
    assert (taken.waiting, taken.running) == (0, 0)


@pytest.mark.parametrize(("step", "seconds"), [(10, 1.0), (15, 2.0), (20, 3.0)])
def test_time_of_a_step_is_interpolated(step: int, seconds: float) -> None:
    samples = [sample(0.0, 5), sample(1.0, 10), sample(3.0, 20)]
    assert seconds_of_step(samples, step) == seconds


def test_time_of_a_step_after_a_pause_lies_after_the_pause() -> None:
    samples = [sample(0.0, 10), sample(5.0, 10), sample(6.0, 20)]
    assert seconds_of_step(samples, 15) == 5.5


def test_time_of_a_step_outside_the_samples_is_the_nearest_sample() -> None:
    samples = [sample(1.0, 10), sample(2.0, 20)]
    assert seconds_of_step(samples, 3) == 1.0
    assert seconds_of_step(samples, 99) == 2.0


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([], (False, False)),
        (["target_only"], (True, False)),
        (["target_only", "speculate"], (True, True)),
        (["speculate"], (False, False)),
        (["speculate", "target_only"], (True, False)),
    ],
)
def test_both_ways_means_target_only_and_then_speculate(
    targets: list[str], expected: tuple[bool, bool]
) -> None:
    assert switched_both_ways([switch(target) for target in targets]) == expected
