"""The load generator: what a client of the server sees.

Throughput is measured with plain requests and latency with streamed ones. A Python
client and the server's own HTTP process would both be the bottleneck if each of 256
requests was sent token by token, so only a sample of requests streams, the same one
for every arm. `Run.client_lag_ms` shows that the client kept up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.errors import BenchmarkError
from benchmarks.stats import percentiles

#: Token ids, or a text for a server with a tokenizer.
Prompt = list[int] | str

_LAG_TICK_S = 0.01
#: A server that sends nothing for this long is stuck.
_SILENCE_S = 600.0
#: A streamed line repeats all tokens so far; the reader's default would cap a long answer.
_READ_BUFFER = 4 * 2**20


@dataclass(frozen=True)
class Request:
    """One request: `at` is its arrival in seconds after the start (open loop only)."""

    prompt: Prompt
    output_len: int
    stream: bool = False
    at: float = 0.0
    phase: str = ""


@dataclass
class Outcome:
    """What happened to a request; times in seconds of one monotonic clock.

    Attributes:
        late: seconds between the arrival that was asked for and the sending.
        first: arrival of the first token, None for a request that did not stream.
        gaps: (seconds since the chunk before, tokens in the chunk) of each later chunk.
    """

    request: Request
    sent: float
    late: float = 0.0
    first: float | None = None
    end: float = 0.0
    tokens: int = 0
    gaps: list[tuple[float, int]] = field(default_factory=list)


@dataclass
class Run:
    """All outcomes of one load, in the order they ended."""

    outcomes: list[Outcome]
    lag: list[float]

    @property
    def tokens(self) -> int:
        return sum(outcome.tokens for outcome in self.outcomes)

    @property
    def seconds(self) -> float:
        """From the first request sent to the last one answered."""
        return max(o.end for o in self.outcomes) - min(o.sent for o in self.outcomes)

    @property
    def tok_s(self) -> float:
        """End-to-end output tokens per second: prefill, queueing and HTTP included."""
        return round(self.tokens / self.seconds, 2)

    @property
    def client_lag_ms(self) -> float | None:
        """p99 of how late the client's own event loop ran; large values discredit the run."""
        lag = percentiles([1000 * value for value in self.lag])
        return lag["p99"] if lag else None


def latency(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Percentiles in ms over `outcomes`.

    - `ttft_ms`: sending to first token, streamed requests.
    - `itl_ms`: time between chunks divided by the tokens in the later chunk, counted once
      per token: the pace at which text arrives.
    - `stall_ms`: time between chunks as it is: the longest silences.
    - `e2e_ms`: sending to last token, all requests.
    """
    streamed = [outcome for outcome in outcomes if outcome.first is not None]
    gaps = [gap for outcome in streamed for gap in outcome.gaps]
    return {
        "ttft_ms": percentiles([1000 * (o.first - o.sent) for o in streamed if o.first]),
        "itl_ms": percentiles([1000 * s / tokens for s, tokens in gaps for _ in range(tokens)]),
        "stall_ms": percentiles([1000 * seconds for seconds, _ in gaps]),
        "e2e_ms": percentiles([1000 * (o.end - o.sent) for o in outcomes]),
    }


def closed_loop(url: str, requests: Sequence[Request], concurrency: int) -> Run:
    """Send all requests, `concurrency` at a time: each answer makes room for the next one.

    Raises BenchmarkError at the first request that fails.
    """
    return asyncio.run(_closed_loop(url, requests, concurrency))


def open_loop(url: str, requests: Sequence[Request]) -> Run:
    """Send each request at its time `at`, however busy the server is.

    Raises BenchmarkError at the first request that fails.
    """
    return asyncio.run(_open_loop(url, requests))


async def _closed_loop(url: str, requests: Sequence[Request], concurrency: int) -> Run:
    waiting = deque(requests)
    outcomes: list[Outcome] = []

    async def slot(session: aiohttp.ClientSession) -> None:
        while waiting:
            outcomes.append(await _send(session, url, waiting.popleft(), due=None))

    async with _session() as session:
        lag = await _watched([slot(session) for _ in range(concurrency)])
    return Run(outcomes, lag)


async def _open_loop(url: str, requests: Sequence[Request]) -> Run:
    outcomes: list[Outcome] = []
    start = time.perf_counter()

    async def arrive(session: aiohttp.ClientSession, request: Request) -> None:
        await asyncio.sleep(start + request.at - time.perf_counter())
        outcomes.append(await _send(session, url, request, due=start + request.at))

    async with _session() as session:
        lag = await _watched([arrive(session, request) for request in requests])
    return Run(outcomes, lag)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=_SILENCE_S),
        # The server closes an idle connection after 5 s: not to be used again after half of that.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2.5),
        read_bufsize=_READ_BUFFER,
    )


async def _watched(load: Sequence[Any]) -> list[float]:
    """Run the load with a clock beside it; cancel the rest when a part fails."""
    lag: list[float] = []
    tasks = [asyncio.ensure_future(part) for part in load]
    clock = asyncio.ensure_future(_measure_lag(lag))
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in (clock, *tasks):
            task.cancel()
        await asyncio.gather(clock, *tasks, return_exceptions=True)
    return lag


async def _measure_lag(lag: list[float]) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(_LAG_TICK_S)
        lag.append(max(0.0, time.perf_counter() - before - _LAG_TICK_S))


async def _send(
    session: aiohttp.ClientSession, url: str, request: Request, due: float | None
) -> Outcome:
    key = "text" if isinstance(request.prompt, str) else "input_ids"
    body = {
        key: request.prompt,
        "stream": request.stream,
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": request.output_len,
            "ignore_eos": True,
        },
    }
    sent = time.perf_counter()
    outcome = Outcome(request, sent, late=max(0.0, sent - due) if due is not None else 0.0)
    try:
        async with session.post(f"{url}/generate", json=body) as response:
            if response.status != 200:
                text = (await response.text())[:300]
                raise BenchmarkError(f"the server answered {response.status}: {text}")
            if request.stream:
                await _read_stream(response, outcome)
            else:
                outcome.tokens = (await response.json())["meta_info"]["completion_tokens"]
                outcome.end = time.perf_counter()
    except (aiohttp.ClientError, TimeoutError, asyncio.TimeoutError) as error:
        raise BenchmarkError(
            f"the server stopped answering: {type(error).__name__}: {error}"
        ) from error
    if outcome.tokens != request.output_len:
        raise BenchmarkError(
            f"asked for {request.output_len} tokens, got {outcome.tokens}: "
            "is the context length long enough for input and output?"
        )
    return outcome


async def _read_stream(response: aiohttp.ClientResponse, outcome: Outcome) -> None:
    last = outcome.sent
    async for line in response.content:
        if not line.startswith(b"data: {"):
            continue
        now = time.perf_counter()
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            raise BenchmarkError(f"the server failed a streamed request: {event['error']}")
        tokens = event["meta_info"]["completion_tokens"]
        new = tokens - outcome.tokens
        if new <= 0:
            continue
        if outcome.first is None:
            outcome.first = now
        else:
            outcome.gaps.append((now - last, new))
        outcome.tokens, last = tokens, now
    outcome.end = time.perf_counter()
