"""The demo's load: which requests, and how many at a time."""

from __future__ import annotations

import asyncio

import pytest

from specswitch.demo.traffic import Phase, Plan, Request, send


def requests(n: int) -> tuple[Request, ...]:
    return tuple(Request(i, f"prompt {i}", 8) for i in range(n))


def test_phases_use_every_prompt_once_and_in_order() -> None:
    plan = Plan(calm_requests=3, calm_clients=2, burst_requests=5, new_tokens=8)
    phases = plan.phases([f"p{i}" for i in range(11)])
    sent = [request for phase in phases for request in phase.requests]
    assert [request.index for request in sent] == list(range(11))
    assert [request.prompt for request in sent] == [f"p{i}" for i in range(11)]


def test_answers_have_different_lengths_round_the_average() -> None:
    plan = Plan(calm_requests=5, burst_requests=10, new_tokens=8)
    for phase in plan.phases(["p"] * plan.total):
        lengths = [request.new_tokens for request in phase.requests]
        assert set(lengths) == {4, 6, 8, 10, 12}
        assert sum(lengths) == 8 * len(lengths)


def test_burst_sends_everything_at_once_and_calm_does_not() -> None:
    plan = Plan(calm_requests=3, calm_clients=2, burst_requests=5)
    calm, burst, after = plan.phases(["p"] * plan.total)
    assert (calm.clients, burst.clients, after.clients) == (2, 5, 2)


def test_phases_refuse_another_number_of_prompts() -> None:
    plan = Plan(calm_requests=1, burst_requests=1)
    with pytest.raises(ValueError, match="3 prompts are needed, not 2"):
        plan.phases(["a", "b"])


def test_send_keeps_to_the_number_of_clients() -> None:
    outstanding = most = 0

    async def ask(request: Request) -> tuple[int, ...]:
        nonlocal outstanding, most
        outstanding += 1
        most = max(most, outstanding)
        await asyncio.sleep(0.001)
        outstanding -= 1
        return (request.index,)

    phase = Phase("three", requests(10), clients=3)
    answers = asyncio.run(send(phase, ask, lambda _: None))
    assert answers == {i: (i,) for i in range(10)}
    assert most == 3


def test_send_ends_with_the_first_failure_and_leaves_no_request_behind() -> None:
    async def ask(request: Request) -> tuple[int, ...]:
        if request.index == 1:
            raise RuntimeError("refused")
        await asyncio.sleep(3600)
        return ()

    async def scenario() -> int:
        with pytest.raises(RuntimeError, match="refused"):
            await send(Phase("all", requests(4), clients=4), ask, lambda _: None)
        return len(asyncio.all_tasks()) - 1

    assert asyncio.run(scenario()) == 0
