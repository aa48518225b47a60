"""Where answers end, and that they are the same when they come in pieces, in every mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from harness import Request
from workloads import text, workload

from specswitch.control.decision import Mode

from .matrix import PATTERNS, Case, Served, differences, serve
from .recorder import check
from .verdicts import Verdict

ALGORITHM = "EAGLE3"
# Each comes up in the answer to the prompt of the same number, in the midst of it, and most are of
# several tokens; the second of a pair comes later or never.
STOP_STRINGS = (
    ["owes 546", "owes 974 for nat x"],
    ["; next Hurtet"],
    ["wrote sol", "wrote tot"],
    ["Hugo Vera"],
    ["kas, then", ", thenx"],
    ["3; n"],
)
STOP_REGEXES = ("owes 5[0-9]{2} for", "next Z", "to [A-F]", "Cleo (Tess|Ben) V")


def _cases() -> Iterator[Case]:
    prompts = text(ALGORITHM)

    def asking(sampling: list[dict[str, Any]], **fields: Any) -> tuple[Request, ...]:
        return tuple(
            Request(list(prompt), 48, sampling={"ignore_eos": False, **each}, **fields)
            for prompt, each in zip(prompts, sampling, strict=False)
        )

    strings = [{"stop": stops} for stops in STOP_STRINGS]
    yield Case("stop_strings", asking(strings))
    yield Case("stop_regex", asking([{"stop_regex": [regex]} for regex in STOP_REGEXES]))
    # Two whose answers end early, after 60 tokens at most.
    endings = [workload("to_the_end", ALGORITHM)[number] for number in (2, 4)]
    yield Case(
        "ignore_eos",
        tuple(
            replace(request, arrive=0, max_new_tokens=70, sampling={"ignore_eos": ignore})
            for request in endings
            for ignore in (False, True)
        ),
    )
    yield Case("stream", asking([{}] * 4, logprobs=True, top_logprobs=2, fields={"stream": True}))
    yield Case("stream_to_a_stop", asking(strings, logprobs=True, fields={"stream": True}))


KEYS = ("stop_strings", "stop_regex", "ignore_eos", "stream", "stream_to_a_stop")


@cache
def served(pattern: str | None) -> dict[str, Served]:
    return serve(
        list(_cases()),
        None if pattern is None else PATTERNS[pattern],
        algorithm=ALGORITHM,
        skip_tokenizer_init=False,
        stream_interval=1,
    )


@pytest.mark.parametrize("key", KEYS)
def test_an_answer_ends_at_the_same_place_in_every_mode(key: str) -> None:
    reference = served(None)[key]
    found = {pattern: differences(served(pattern)[key], reference) for pattern in PATTERNS}
    assert not any(found.values()), found
    assert set(served("target_only")[key].modes) == {Mode.TARGET_ONLY}
    assert set(served("speculate")[key].modes) == {Mode.SPECULATE}
    assert all(set(served(f"every {period}")[key].modes) == set(Mode) for period in (1, 3, 7))
    check(key, Verdict.IDENTICAL)


@pytest.mark.parametrize("key", ["stop_strings", "stop_regex", "stream_to_a_stop"])
def test_the_answers_that_were_compared_ended_at_their_stops(key: str) -> None:
    for result in served(None)[key].results:
        assert result.finish_reason["type"] == "stop"
        assert 4 < len(result.output_ids) < 48
        if key == "stream_to_a_stop":
            assert len(result.logprobs) == len(result.output_ids)


def test_end_of_text_ended_the_answers_that_did_not_ignore_it() -> None:
    reasons = [result.finish_reason["type"] for result in served(None)["ignore_eos"].results]
    assert reasons == ["stop", "length", "stop", "length"]
