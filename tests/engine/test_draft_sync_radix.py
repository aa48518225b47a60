"""A cached prefix serves a speculating request equally well however it was decoded.

First some requests are decoded by the target alone, then their texts come back as prompts, a few
tokens longer, of requests that speculate: the next turn of a chat.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from draft_kv import differences, keep_all, whole_sequences
from draft_sync_cases import (
    ROOM,
    Text,
    assert_each_miss_counts_once,
    assert_says_the_text,
    follow,
    prompts,
    strides,
    write,
)
from harness import EngineDriver, Request
from runs import OnTick, Run, assert_settled, periodic, run

from specswitch.control.decision import Mode

# Rounds: what comes next follows from the row before, so a hole in the latest KV shows at once.
COUNT = 8
ANSWER = 30
TURN = 40
#: Long after the first turn is over.
SECOND_TURN = 400


@cache
def texts() -> tuple[Text, ...]:
    return write(prompts(COUNT, kind="rounds"), ANSWER + TURN + 10)


def both_turns() -> list[Request]:
    first = [text.ask(0, ANSWER, rid=f"first {n}") for n, text in enumerate(texts())]
    # The answer, and a little more that nobody has decoded yet.
    second = [
        text.ask(ANSWER + 3, TURN, rid=f"second {n}", arrive=SECOND_TURN)
        for n, text in enumerate(texts())
    ]
    return first + second


def cache_everything(driver: EngineDriver, notes: dict[str, Any]) -> OnTick | None:
    """What would happen if prefixes were not truncated."""
    from specswitch.engine import compat

    compat.release().tokens_to_cache = lambda *_args: None
    return keep_all(driver, notes)


@cache
def outcome(mode: str, first: Mode, *, truncate: bool = True, **server_args: Any) -> Run:
    """Both turns, the first decoded in mode ``first`` and the second speculating.

    The first ends some steps after its requests have, so that no step of it resumes.
    """
    steps = ANSWER if first is Mode.TARGET_ONLY else 0
    result = run(
        both_turns(),
        "EAGLE3",
        periodic(1_000_000),
        config={"draft_sync": {"mode": mode, "window": 64}},
        prepare=follow(
            lambda step: Mode.TARGET_ONLY if step < steps else Mode.SPECULATE,
            keep_all if truncate else cache_everything,
        ),
        **(ROOM | server_args),
    )
    assert_says_the_text(result, both_turns(), texts())
    assert_settled(result)
    assert_each_miss_counts_once(result)
    return result


def cached(run: Run) -> list[int]:
    return [result.cached_tokens for result in run.results[COUNT:]]


def acceptance(run: Run) -> float:
    """Of the second turn."""
    made = [s.tokens for rid, of in strides(run).items() if rid.startswith("second") for s in of]
    return sum(made) / len(made)


def holes(run: Run) -> dict[str, list[int]]:
    return differences(run.notes["cached"], whole_sequences(both_turns(), run), "EAGLE3")


@pytest.mark.parametrize("mode", ["deferred", "every_step", "off"])
def test_acceptance_is_that_after_a_prefix_that_was_decoded_while_speculating(mode: str) -> None:
    speculated = outcome(mode, Mode.SPECULATE)
    decoded_alone = outcome(mode, Mode.TARGET_ONLY)
    assert strides(decoded_alone)["second 0"] == strides(speculated)["second 0"]
    assert acceptance(decoded_alone) == acceptance(speculated)
    assert holes(decoded_alone) == holes(speculated) == {}


@pytest.mark.parametrize("mode", ["deferred", "off"])
def test_it_would_be_worse_if_prefixes_were_not_truncated(mode: str) -> None:
    whole = outcome(mode, Mode.TARGET_ONLY, truncate=False)
    assert acceptance(whole) < 0.9 * acceptance(outcome(mode, Mode.SPECULATE))
    assert len(holes(whole)) == COUNT


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("mode", ["deferred", "off"])
def test_all_that_is_synced_is_cached(mode: str, page_size: int) -> None:
    """An answer of thirty tokens is shorter than what is flushed: its prompt is what is left."""
    run = outcome(mode, Mode.TARGET_ONLY, page_size=page_size)
    prompts = [text.prompt // page_size * page_size for text in texts()]
    assert cached(run) == prompts
    assert run.snapshot["draft_sync"]["truncated_prefixes"] == COUNT
    assert run.snapshot["draft_sync"]["discarded"] == COUNT * ANSWER


def test_every_step_caches_the_whole_answer() -> None:
    run = outcome("every_step", Mode.TARGET_ONLY)
    # The KV of its last token belongs to the step that is running when the answer is seen to end,
    # and the draft's depends on the token after that.
    assert cached(run) == [text.prompt + ANSWER - 1 for text in texts()]
    assert run.snapshot["draft_sync"]["truncated_prefixes"] == 0


def test_without_a_radix_cache_nothing_is_truncated() -> None:
    run = outcome("deferred", Mode.TARGET_ONLY, disable_radix_cache=True)
    assert run.unavailable_slots == 0
    assert run.snapshot["draft_sync"]["truncated_prefixes"] == 0
    assert run.snapshot["draft_sync"]["discarded"] == COUNT * ANSWER
    assert acceptance(run) == acceptance(outcome("deferred", Mode.SPECULATE))
