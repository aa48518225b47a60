"""The load that the demo puts on a server: calm, a burst, calm again.

Which requests are sent is fixed, so that two servers can be given the same ones.
When they are sent depends on how fast the server answers, as with real clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """One prompt.

    Attributes:
        index: position over all phases; answers are matched by it.
        prompt: the text.
        new_tokens: how many tokens to generate; the end-of-text token does not stop it.
    """

    index: int
    prompt: str
    new_tokens: int


@dataclass(frozen=True)
class Phase:
    """Requests that are sent by a number of clients, each waiting for its answer.

    Attributes:
        name: what tables and plots call it.
        requests: in the order in which they are sent.
        clients: how many requests are outstanding at a time.
    """

    name: str
    requests: tuple[Request, ...]
    clients: int


@dataclass(frozen=True)
class Plan:
    """Sizes of the three phases.

    Attributes:
        calm_requests, calm_clients: of the first and of the last phase.
        burst_requests: all of them outstanding at once.
        new_tokens: of an answer, on average; from half of it to one and a half.
        settle_s: seconds without requests before the first and after the last phase.

    The burst sends everything at once, several times what the server runs at a
    time: the rest waits, and that is the queue depth the controller looks at.
    """

    calm_requests: int = 16
    calm_clients: int = 2
    burst_requests: int = 96
    new_tokens: int = 128
    settle_s: float = 1.0

    @property
    def total(self) -> int:
        """Requests over all phases."""
        return 2 * self.calm_requests + self.burst_requests

    def phases(self, prompts: Sequence[str]) -> tuple[Phase, ...]:
        """Spread `total` prompts over the phases.

        Raises:
            ValueError: another number of prompts.
        """
        if len(prompts) != self.total:
            raise ValueError(f"{self.total} prompts are needed, not {len(prompts)}")
        # Different lengths: requests then finish one by one, and the batch is never
        # for long the one it was.
        requests = [
            Request(i, prompt, self.new_tokens * (2 + i % 5) // 4)
            for i, prompt in enumerate(prompts)
        ]
        burst = self.calm_requests
        after = burst + self.burst_requests
        return (
            Phase("calm", tuple(requests[:burst]), self.calm_clients),
            Phase("burst", tuple(requests[burst:after]), self.burst_requests),
            Phase("calm again", tuple(requests[after:]), self.calm_clients),
        )


async def send(
    phase: Phase,
    ask: Callable[[Request], Awaitable[tuple[int, ...]]],
    answered: Callable[[Request], None],
) -> dict[int, tuple[int, ...]]:
    """Send a phase; the first request that fails ends it.

    Args:
        phase: what to send.
        ask: sends one request and returns the token ids of its answer.
        answered: called after each answer.

    Returns:
        Token ids by request index.
    """
    answers: dict[int, tuple[int, ...]] = {}
    waiting = iter(phase.requests)

    async def client() -> None:
        for request in waiting:
            answers[request.index] = await ask(request)
            answered(request)

    clients = [asyncio.create_task(client()) for _ in range(phase.clients)]
    try:
        await asyncio.gather(*clients)
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return answers
