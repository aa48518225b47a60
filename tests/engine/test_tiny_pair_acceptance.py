"""The trained pair in the real engine: its drafts are accepted, and only while their KV is right.

Tests of draft KV rest on this. With random weights acceptance does not move when the draft's KV is
destroyed; here it must.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import pytest
from harness import EngineDriver, Request
from runs import Run, assert_same_answers, run, run_plain

from specswitch import tiny_pair
from specswitch.tiny_pair.text import CHAIN_KINDS, EOS, KINDS, Kind, document

NEW_TOKENS = 48
# The longest prompts and answers together stay below the harness's context of 512.
ROOM: dict[str, Any] = {"max_total_tokens": 8192, "max_running_requests": 16}
RECENT = 8

Damage = Callable[[int], tuple[int, int]]
"""Length of a request to the range of its positions whose draft KV is lost before each step."""
DAMAGES: dict[str, Damage] = {
    "all": lambda length: (0, length),
    "recent": lambda length: (max(0, length - RECENT), length),
}


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tiny_pair.path("target") / "tokenizer.json"))


def _requests(kind: Kind | None, **sampling: Any) -> list[Request]:
    texts = tiny_pair.prompts(6, seed=41, kind=kind)
    ids = [_tokenizer().encode(text).ids for text in texts]
    return [Request(prompt, NEW_TOKENS, sampling=sampling) for prompt in ids]


def _lose_draft_kv(damage: Damage) -> Callable[[EngineDriver, dict[str, Any]], None]:
    """Zeroes keys and values of the draft before each decode step."""

    def prepare(driver: EngineDriver, _notes: dict[str, Any]) -> None:
        worker = driver.scheduler.draft_worker
        pool = worker.draft_worker.draft_runner.token_to_kv_pool
        slots = driver.scheduler.req_to_token_pool.req_to_token
        forward = worker.forward_batch_generation

        def damaged(batch: Any) -> Any:
            if batch.forward_mode.is_decode():
                lengths = batch.seq_lens.tolist()
                for row, length in zip(batch.req_pool_indices.tolist(), lengths, strict=True):
                    begin, end = damage(length)
                    lost = slots[row, begin:end].long()
                    for buffer in (*pool.k_buffer, *pool.v_buffer):
                        buffer[lost] = 0
            return forward(batch)

        worker.forward_batch_generation = damaged

    return prepare


@cache
def _run(algorithm: str, kind: Kind | None = None, lost: str | None = None) -> Run:
    prepare = _lose_draft_kv(DAMAGES[lost]) if lost else None
    return run(_requests(kind), algorithm, worker=None, prepare=prepare, **ROOM)


def _show(algorithm: str, kind: str, lost: str, whole: Run, damaged: Run) -> None:
    # For the table in the pair's README: pytest -rP shows it.
    lengths = f"{whole.acceptance_length():.2f}, {damaged.acceptance_length():.2f}"
    print(f"acceptance length {algorithm} {kind}, {lost} KV there and lost: {lengths}")


@pytest.mark.parametrize("kind", KINDS)
def test_eagle3_drafts_are_accepted_on_text_the_pair_has_not_seen(kind: Kind) -> None:
    assert _run("EAGLE3", kind).acceptance_length() >= 2.0


@pytest.mark.parametrize("kind", KINDS)
def test_standalone_drafts_are_accepted_on_text_the_pair_has_not_seen(kind: Kind) -> None:
    assert _run("STANDALONE", kind).acceptance_length() >= 1.7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE"])
def test_acceptance_falls_by_a_fifth_at_least_when_the_draft_kv_is_lost(
    algorithm: str, kind: Kind
) -> None:
    whole, damaged = _run(algorithm, kind), _run(algorithm, kind, "all")
    _show(algorithm, kind, "all", whole, damaged)
    assert damaged.acceptance_length() <= 0.8 * whole.acceptance_length()
    assert_same_answers(damaged, whole.results)


def test_rounds_notice_that_the_latest_draft_kv_is_lost() -> None:
    whole, damaged = _run("EAGLE3", "rounds"), _run("EAGLE3", "rounds", "recent")
    _show("EAGLE3", "rounds", "recent", whole, damaged)
    assert damaged.acceptance_length() <= 0.8 * whole.acceptance_length()
    assert_same_answers(damaged, whole.results)


def test_eagle3_drafts_are_accepted_in_full_in_part_and_not_at_all() -> None:
    accepted = Counter(tokens for step in _run("EAGLE3").steps for tokens in step.kept.values())
    assert set(accepted) == {1, 2, 3, 4}


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_continues_each_document_word_for_word(kind: Kind) -> None:
    encode = _tokenizer().encode
    documents = [document(random.Random(seed), kind, 8) for seed in range(4)]
    prompts = [encode("".join(doc.given)).ids for doc in documents]
    answers = run_plain([Request(ids, 128) for ids in prompts], "EAGLE3", **ROOM).results
    for doc, answer in zip(documents, answers, strict=True):
        text = "".join(piece for line in islice(doc.lines, 20) for piece in line)
        assert answer.output_ids == encode(text).ids[:128]


@pytest.mark.parametrize("kind", CHAIN_KINDS)
def test_an_open_chain_ends_by_itself_with_and_without_speculation(kind: Kind) -> None:
    end = _tokenizer().token_to_id(EOS)
    texts = tiny_pair.prompts(4, seed=42, kind=kind, size=6, open_ended=True)
    # The harness runs the engine without a tokenizer, which is where it learns the end token.
    stop = {"ignore_eos": False, "stop_token_ids": [end]}
    requests = [Request(_tokenizer().encode(text).ids, 200, sampling=stop) for text in texts]
    plain = run_plain(requests, "EAGLE3", **ROOM)
    for result in plain.results:
        assert result.finish_reason == {"type": "stop", "matched": end}
        assert result.output_ids[-1] == end
        assert end not in result.output_ids[:-1]
    assert_same_answers(run(requests, "EAGLE3", worker=None, **ROOM), plain.results)
