"""What the draft-sync tests share: runs in which the test says the mode of each step, and a look
into the draft's KV pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from harness import EngineDriver, Request
from runs import OnTick, Prepare, Run, periodic, run, run_plain
from workloads import text

from specswitch import tiny_pair
from specswitch.control.decision import Mode
from specswitch.tiny_pair.text import Kind

Plan = Callable[[int], Mode]
"""Number of a decode step, from 0, to its mode."""

#: Room for long answers, so that nothing is retracted and nothing waits by accident.
ROOM: dict[str, Any] = {
    "context_length": 2048,
    "max_total_tokens": 20480,
    "max_running_requests": 16,
    "chunked_prefill_size": -1,
}


def off_until(step: int) -> Plan:
    """Target-only for so many steps, then speculation."""
    return lambda number: Mode.TARGET_ONLY if number < step else Mode.SPECULATE


def prompts(
    count: int, seed: int = 31, kind: Kind | None = None, size: int | None = None
) -> list[list[int]]:
    """Prompts of the trained pair, all kinds in turn unless one is named."""
    return [_encode(text) for text in tiny_pair.prompts(count, seed=seed, kind=kind, size=size)]


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tiny_pair.path("target") / "tokenizer.json"))


def _encode(text: str) -> list[int]:
    return _tokenizer().encode(text).ids


@dataclass(frozen=True)
class Text:
    """A prompt and what the target says after it, for as long as any test reads it.

    Greedy decoding goes on in the same way from any place, so each beginning of the text, taken as
    a prompt, has the rest as its answer.
    """

    tokens: tuple[int, ...]
    prompt: int

    def ask(self, after: int, count: int, **fields: Any) -> Request:
        """Request for the next tokens after the prompt and ``after`` tokens more."""
        begin = self.prompt + after
        assert begin + count <= len(self.tokens)
        return Request(list(self.tokens[:begin]), max_new_tokens=count, **fields)


#: Tokens that each text goes on after its prompt.
CONTINUED = 760


@cache
def texts(algorithm: str) -> tuple[Text, ...]:
    """Twelve texts of the target that goes with the algorithm."""
    if algorithm == "EAGLE":
        return write([list(prompt) for prompt in text("EAGLE")[:12]], CONTINUED, algorithm)
    return write(prompts(12), CONTINUED) if algorithm == "EAGLE3" else texts("EAGLE3")


def write(starts: Sequence[list[int]], count: int, algorithm: str = "EAGLE3") -> tuple[Text, ...]:
    """Texts of ``count`` tokens after these prompts, by an engine that never drafts."""
    plain = run_plain([Request(p, max_new_tokens=count) for p in starts], algorithm, **ROOM)
    return tuple(
        Text((*start, *result.output_ids), len(start))
        for start, result in zip(starts, plain.results, strict=True)
    )


def assert_says_the_text(run: Run, requests: Sequence[Request], known: Sequence[Text]) -> None:
    """Each answer is what a known text goes on with; of an aborted request as far as it goes."""
    by_prompt = {}
    for one in known:
        for request in requests:
            if tuple(request.input_ids) == one.tokens[: len(request.input_ids)]:
                by_prompt[tuple(request.input_ids)] = one.tokens[len(request.input_ids) :]
    for request, result in zip(requests, run.results, strict=True):
        expected = list(by_prompt[tuple(request.input_ids)][: request.max_new_tokens])
        aborted = result.finish_reason["type"] == "abort"
        # One may be given up in the pass that makes its last token.
        assert not aborted or request.abort is not None
        assert result.output_ids == expected[: len(result.output_ids) if aborted else None]


def assert_each_miss_counts_once(run: Run) -> None:
    """What the draft missed was flushed, caught up with or discarded, and nothing is pending."""
    counts = run.snapshot["draft_sync"]
    missed = sum(
        len(step.kept) + len(step.discarded) for step in run.steps if step.mode is Mode.TARGET_ONLY
    )
    assert counts["missed"] == missed
    assert counts["flushed"] + counts["caught_up"] + counts["discarded"] == missed
    assert counts["pending"] == 0


def follow(plan: Plan, also: Prepare | None = None) -> Prepare:
    """Run each decode step in the mode that the plan says."""

    def prepare(driver: EngineDriver, notes: dict[str, Any]) -> OnTick | None:
        worker = driver.worker
        begin = worker.begin_step

        def planned(*load: Any) -> Mode:
            worker.controller.override(plan(worker.controller.last.step + 1))
            return begin(*load)

        worker.begin_step = planned
        return also(driver, notes) if also is not None else None

    return prepare


def run_planned(
    requests: Sequence[Request],
    algorithm: str,
    mode: str,
    plan: Plan,
    *,
    window: int = 64,
    also: Prepare | None = None,
    **server_args: Any,
) -> Run:
    """Serve requests with one mode of draft sync, flipping as planned.

    The policy underneath has neither guards nor a cap on switches, and is overridden at each step.
    """
    return run(
        requests,
        algorithm,
        periodic(1_000_000),
        config={"draft_sync": {"mode": mode, "window": window}},
        prepare=follow(plan, also),
        **(ROOM | server_args),
    )


@dataclass(frozen=True)
class Stride:
    """A speculative step of one request: ``tokens`` emitted after ``emitted`` earlier ones."""

    emitted: int
    tokens: int


def strides(run: Run) -> dict[str, list[Stride]]:
    """Speculative steps of each request, in order."""
    emitted = dict(run.prefills)
    found: dict[str, list[Stride]] = {rid: [] for rid in emitted}
    for step in run.steps:
        for rid, tokens in step.kept.items():
            if step.mode is Mode.SPECULATE:
                found[rid].append(Stride(emitted[rid], tokens))
            emitted[rid] += tokens
    return found
