"""Part `acceptance`: what a request accepts after a stretch of target-only steps."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.arms import FORCED_SPECULATE, ArmFactory
from benchmarks.errors import BenchmarkError
from benchmarks.resume import steps as resume_steps
from benchmarks.resume.part import REPEATS, WINDOW, Part, configured, timed
from benchmarks.runner import Measurement, Values
from benchmarks.server import Server
from benchmarks.setup import Setup
from benchmarks.workload import Workload

#: Speculative steps of a request that are measured after a stretch.
MEASURED = 16
#: Speculative steps before the burst.
_LEAD_STEPS = 8
#: Tokens that a request may emit until the burst has begun: some 0.5 s of a small model's steps.
_LEAD_TOKENS = {"cpu": 240, "cuda": 1200}
#: Room in the KV pool over what all requests need at once, for what speculation allocates ahead.
_POOL_MARGIN = 2
_POLL_S = 0.02
_POLLING_S = 300.0


class Acceptance(Part):
    """Acceptance after each stretch, with one mode of draft sync."""

    def __init__(
        self,
        mode: str,
        factory: ArmFactory,
        setup: Setup,
        folder: Path,
        stretches: Sequence[int],
        requests: int,
    ) -> None:
        arm = configured(
            factory.make(FORCED_SPECULATE),
            f"acceptance_{mode}",
            # The burst takes the batch above this, and nothing holds the way back.
            max_speculative_batch=requests,
            guard={"dwell_steps": 0, "votes": 1, "max_switches_per_1000_steps": 1000},
            draft_sync={"mode": mode, "window": WINDOW},
        )
        self._setup, self._stretches, self._requests = setup, stretches, requests
        # Of what is left beside a tiny target's weights the engine makes a KV pool so large that
        # the draft's does not fit any more.
        longest = setup.input_len + self._budget(max(stretches))
        pool = ("--max-total-tokens", str(_POOL_MARGIN * (requests + 1) * longest))
        made, self._file = timed(replace(arm, args=(*arm.args, *pool)), folder)
        super().__init__(made)

    def plan(self) -> list[Measurement]:
        return [self._after(stretch) for stretch in self._stretches]

    def _after(self, stretch: int) -> Measurement:
        def measure(server: Server) -> Values:
            value = asyncio.run(self._measure(server, stretch))
            return {str(stretch): value}

        return Measurement(str(stretch), REPEATS, f"after {stretch} steps", measure, 30)

    def _budget(self, stretch: int) -> int:
        """Tokens that a request is sure to need."""
        return _LEAD_TOKENS[self._setup.device] + stretch + (self._setup.steps + 1) * MEASURED

    async def _measure(self, server: Server, stretch: int) -> dict[str, Any]:
        prompts = _token_prompts(self._setup, self._requests + 1, stretch)
        names = [f"{stretch}-{number}" for number in range(self._requests)]
        longest = (self._setup.steps + 1) * MEASURED
        budget = self._budget(stretch)
        before = _speculative_steps(server)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            answers = asyncio.gather(
                *(
                    _generate(session, server, name, prompt, budget)
                    for name, prompt in zip(names, prompts, strict=False)
                )
            )
            await asyncio.to_thread(_wait_for_lead, server, before, self._requests)
            # With the batch of one step more, the burst decodes for one step more than it answers.
            await _generate(session, server, f"{stretch}-burst", prompts[-1], stretch)
            texts = await answers
            steps = resume_steps.read(self._file)
            resumed = resume_steps.resumption(steps, names, MEASURED)
            _flush_cache(server)
            never = {name: f"{name}-never" for name in names}
            await asyncio.gather(
                *(
                    _generate(
                        session,
                        server,
                        never[name],
                        # The prefill emits the last of them again.
                        [*prompt, *answer[: resumed.emitted[name] - 1]],
                        1 + longest,
                    )
                    for name, prompt, answer in zip(names, prompts, texts, strict=False)
                )
            )
        strides = resume_steps.first_strides(
            resume_steps.read(self._file), list(never.values()), MEASURED
        )
        _flush_cache(server)
        after, reference = resume_steps.mean(resumed.strides), resume_steps.mean(strides)
        return {
            "acceptance_length": round(after, 4),
            "never_off": round(reference, 4),
            "ratio": round(after / reference, 4),
            "target_only_steps": resumed.stretch,
            "requests": len(names),
        }


def _token_prompts(setup: Setup, count: int, *labels: int) -> list[list[int]]:
    """Prompts as token ids: what an answer is continued from has to be exact."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(setup.model)
    prompts = Workload(setup).prompts(count, *labels)
    return [tokenizer(p)["input_ids"] if isinstance(p, str) else p for p in prompts]


async def _generate(
    session: aiohttp.ClientSession, server: Server, name: str, prompt: list[int], tokens: int
) -> list[int]:
    """The answer of one named greedy request."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = {"rid": name, "input_ids": prompt, "sampling_params": sampling}
    async with session.post(f"{server.url}/generate", json=body) as response:
        if response.status != 200:
            text = (await response.text())[:300]
            raise BenchmarkError(f"the server answered {response.status}: {text}")
        answer: list[int] = (await response.json())["output_ids"]
    return answer


def _speculative_steps(server: Server) -> int:
    return int(_state(server)["steps"]["speculate"])


def _state(server: Server) -> dict[str, Any]:
    state = server.state()
    if state is None:
        raise BenchmarkError("the server runs without specswitch: are its entry points installed?")
    return state


def _wait_for_lead(server: Server, before: int, requests: int) -> None:
    """Until all requests decode and have done so for some steps."""
    deadline = time.monotonic() + _POLLING_S
    since: int | None = None
    while time.monotonic() < deadline:
        state = _state(server)
        steps = int(state["steps"]["speculate"])
        if state["running"] == requests and steps > before:
            since = steps if since is None else since
            if steps - since >= _LEAD_STEPS:
                return
        time.sleep(_POLL_S)
    raise BenchmarkError(f"{requests} requests never decoded together in {_POLLING_S:.0f} s")


def _flush_cache(server: Server) -> None:
    """Empty the prefix cache: what comes next is computed anew."""
    with urllib.request.urlopen(f"{server.url}/flush_cache?timeout=30", timeout=60) as response:
        if response.status != 200:
            raise BenchmarkError(f"/flush_cache answered {response.status}")
