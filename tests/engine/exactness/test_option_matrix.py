"""Options of requests under every pattern of modes, held against a server without speculation.

Every verdict is one of the rows of docs/exactness.md. Where the exactness rule keeps a request from
being speculated for, a server with the rule switched off shows that it has to: there the answers
differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from harness import EngineDriver, Request, Result, import_engine
from workloads import CHUNK, text

from specswitch.control.decision import Mode

from .matrix import PATTERNS, Case, Served, close, differences, serve
from .recorder import check
from .verdicts import Verdict

# Random models have many near rivals at each token, so that small biases and penalties show.
RANDOM = "EAGLE"
# The trained pair writes text, which a grammar can ask for, and has a tokenizer for it.
TRAINED = "EAGLE3"
SERVERS: dict[str, dict[str, Any]] = {
    RANDOM: {"enable_custom_logit_processor": True},
    TRAINED: {
        "skip_tokenizer_init": False,
        "grammar_backend": "xgrammar",
        "chunked_prefill_size": CHUNK,
    },
}
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "n": {"type": "integer"}},
        "required": ["name", "n"],
    }
)
LEDGER = r"(- [A-Z][a-z]+ owes [0-9]{{2,4}}\n){{{}}}"
# In the answers to the first four prompts they come after 8 to 22 tokens, in the midst of a line.
STOPS = [286, 290, 296, 298]
# The first of them, in the answer to the first prompt, is token 16.
FIRST_STOP = 16
TAG = json.dumps(
    {
        "type": "structural_tag",
        "structures": [
            {"begin": "> ", "schema": {"type": "string", "maxLength": 6}, "end": "\n"},
        ],
        "triggers": ["> "],
    }
)
EBNF = 'root ::= "- " name " owes " name "\\n"\nname ::= [A-Z] [a-z]+'


def asking(
    algorithm: str, count: int, tokens: int, sampling: dict[str, Any] | None = None, **fields: Any
) -> tuple[Request, ...]:
    """Requests for the first prompts, all with the same wish."""
    return tuple(
        Request(list(prompt), max_new_tokens=tokens, sampling=sampling or {}, **fields)
        for prompt in text(algorithm)[:count]
    )


def _random_cases() -> Iterator[Case]:
    import_engine()
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    def case(key: str, sampling: dict[str, Any] | None = None, **fields: Any) -> Case:
        return Case(key, asking(RANDOM, 4, 32, sampling, **fields))

    yield case("greedy")
    yield case("logit_bias", {"logit_bias": {str(token): 3.0 for token in range(20, 40)}})
    for option, value in (("frequency", 2.0), ("presence", 2.0), ("repetition", 1.3)):
        sampling = {f"{option}_penalty": value}
        yield Case(f"{option}_penalty", asking(RANDOM, 4, 64, sampling))
    together = {
        "frequency_penalty": 1.0,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"30": 2.0},
    }
    some = asking(RANDOM, 2, 64, together, logprobs=True, top_logprobs=2)
    yield Case("penalties_together", some + asking(RANDOM, 4, 64)[2:])
    # Only the likeliest token is left, so that draws can be compared.
    yield case("min_p", {"temperature": 2.0, "min_p": 1.0})
    yield case(
        "custom_logit_processor",
        {"custom_params": {"token_ids": list(range(0, 500, 2))}},
        fields={"custom_logit_processor": DisallowedTokensLogitsProcessor.to_str()},
    )
    yield case("logprobs", logprobs=True)
    yield case("top_logprobs", logprobs=True, top_logprobs=5)
    yield case("token_ids_logprobs", logprobs=True, fields={"token_ids_logprob": [3, 300, 7]})
    everything = {"logprob_start_len": 0, "token_ids_logprob": [3, 300]}
    yield case("input_logprobs", logprobs=True, top_logprobs=2, fields=everything)
    wishes: list[dict[str, Any]] = [
        {"logprobs": True, "top_logprobs": 3},
        {},
        {"logprobs": True, "top_logprobs": 1, "fields": {"logprob_start_len": 4}},
        {"logprobs": True},
    ]
    mixed = [asking(RANDOM, 4, 32 - 3 * number, **wish) for number, wish in enumerate(wishes)]
    yield Case("mixed_logprobs", tuple(each[number] for number, each in enumerate(mixed)))


def _trained_cases() -> Iterator[Case]:
    ending = {"ignore_eos": False}
    # First, while the engine has memory for proposals that it has not written to yet.
    yield Case("json_schema", asking(TRAINED, 3, 40, {**ending, "json_schema": SCHEMA}))
    yield Case("regex", asking(TRAINED, 3, 40, {**ending, "regex": LEDGER.format(2)}))
    yield Case("ebnf", asking(TRAINED, 3, 40, {**ending, "ebnf": EBNF}))
    with_grammar = asking(TRAINED, 2, 40, {**ending, "regex": LEDGER.format(2)})
    yield Case("grammar_beside_plain", with_grammar + asking(TRAINED, 4, 40)[2:])
    yield Case(
        "grammar_logprobs",
        asking(TRAINED, 2, 40, {**ending, "json_schema": SCHEMA}, logprobs=True, top_logprobs=3),
    )
    yield Case("structural_tag", asking(TRAINED, 3, 40, {**ending, "structural_tag": TAG}))
    # A penalty below 0 is a reward; with it, lines repeat themselves.
    penalty = {**ending, "regex": LEDGER.format(4), "frequency_penalty": -1.0}
    yield Case("grammar_with_penalty", asking(TRAINED, 3, 60, penalty))
    # Prompts of 171 to 260 tokens.
    everything = {"logprob_start_len": 20, "token_ids_logprob": [5, 9]}
    yield Case(
        "input_logprobs_in_chunks",
        asking(TRAINED, 3, 24, logprobs=True, top_logprobs=2, fields=everything),
    )
    stopping = {**ending, "stop_token_ids": STOPS}
    yield Case("stop_token_ids", asking(TRAINED, 4, 60, stopping))
    prompt = list(text(TRAINED)[0])
    yield Case(
        "stop_token_at_limit",
        tuple(
            Request(prompt, max_new_tokens=limit, sampling=stopping)
            for limit in range(FIRST_STOP - 3, FIRST_STOP + 5)
        ),
    )
    yield Case(
        "logprobs_to_a_stop", asking(TRAINED, 4, 60, stopping, logprobs=True, top_logprobs=2)
    )
    yield Case("min_new_tokens", asking(TRAINED, 4, 90, {**stopping, "min_new_tokens": 20}))


RANDOM_KEYS = (
    *("greedy", "logit_bias", "frequency_penalty", "presence_penalty", "repetition_penalty"),
    *("penalties_together", "min_p", "custom_logit_processor", "logprobs", "top_logprobs"),
    *("token_ids_logprobs", "input_logprobs", "mixed_logprobs"),
)
TRAINED_KEYS = (
    *("json_schema", "regex", "ebnf", "grammar_beside_plain", "grammar_logprobs"),
    *("structural_tag", "grammar_with_penalty", "input_logprobs_in_chunks"),
    *("stop_token_ids", "stop_token_at_limit", "logprobs_to_a_stop", "min_new_tokens"),
)
# The keys by themselves, so that tests are collected without the engine.
ALGORITHM = {**dict.fromkeys(RANDOM_KEYS, RANDOM), **dict.fromkeys(TRAINED_KEYS, TRAINED)}


@cache
def cases(algorithm: str) -> tuple[Case, ...]:
    return tuple(_random_cases() if algorithm == RANDOM else _trained_cases())


@cache
def served(algorithm: str, pattern: str | None, exactness: str = "strict") -> dict[str, Served]:
    """All cases of a server under a pattern of modes; None: without speculation."""
    return serve(
        cases(algorithm),
        None if pattern is None else PATTERNS[pattern],
        algorithm=algorithm,
        config={"exactness": exactness},
        prepare=None if pattern is None else _fill_unwritten_memory,
        **SERVERS[algorithm],
    )


def _fill_unwritten_memory(driver: EngineDriver) -> None:
    """Let proposals that nobody has stored be tokens that do not exist.

    The engine leaves there what was in that memory before (managers/overlap_utils.py:80); with the
    native patch it asks for zeros itself.
    """
    import torch

    empty = torch.empty

    def filled(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = empty(*args, **kwargs)
        return made.fill_(1 << 40) if made.dtype == torch.int64 else made

    future_map = driver.scheduler.future_map
    make = future_map._lazy_init_buf

    def make_and_fill(draft_input: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "empty", filled)
            make(draft_input)

    future_map._lazy_init_buf = make_and_fill


@pytest.mark.parametrize("key", ALGORITHM)
def test_an_option_gives_the_answer_of_plain_decode_in_every_mode(key: str) -> None:
    algorithm = ALGORITHM[key]
    reference = served(algorithm, None)[key]
    runs = {pattern: served(algorithm, pattern)[key] for pattern in PATTERNS}
    found = {pattern: differences(run, reference) for pattern, run in runs.items()}
    assert not any(found.values()), found
    ruled = {reason for run in runs.values() for reason in run.reasons} == {"exactness"}
    if not ruled:
        assert not any("exactness" in run.reasons for run in runs.values())
        assert set(runs["speculate"].modes) == {Mode.SPECULATE}
        # Some answers take fewer than 7 steps.
        assert all(set(runs[f"every {n}"].modes) == set(Mode) for n in (1, 3))
        check(key, Verdict.IDENTICAL)
        return
    assert all(set(run.modes) == {Mode.TARGET_ONLY} for run in runs.values())
    unruled = served(algorithm, "speculate", "off")[key]
    assert set(unruled.modes) == {Mode.SPECULATE}
    assert differences(unruled, reference), "speculation gives the same: is the rule needed?"
    check(key, Verdict.TARGET_ONLY, unruled="answers differ")


@pytest.mark.parametrize("key", [key for key in ALGORITHM if "logprobs" in key])
def test_lists_of_logprobs_have_an_entry_for_each_token(key: str) -> None:
    # Equal in every mode by the test above; here: equal to what was asked for.
    served_under = served(ALGORITHM[key], "every 3")[key]
    (asked,) = [case for case in cases(ALGORITHM[key]) if case.key == key]
    for request, result in zip(asked.requests, served_under.results, strict=True):
        tokens = len(result.output_ids)
        start = request.fields.get("logprob_start_len", len(request.input_ids))
        named = request.fields.get("token_ids_logprob")
        assert len(result.logprobs) == (tokens if request.logprobs else 0)
        assert [len(each) for each in result.top_logprobs] == (
            [request.top_logprobs] * tokens if request.top_logprobs else []
        )
        assert [[token for _, token in each] for each in result.token_ids_logprobs] == (
            [named] * tokens if named else []
        )
        assert len(result.input_logprobs) == len(request.input_ids) - start


def test_logprobs_of_drawn_tokens_are_those_of_the_target() -> None:
    drawn = asking(RANDOM, 4, 24, {"temperature": 1.0}, logprobs=True, top_logprobs=2)
    runs = {
        pattern: serve([Case("drawn", drawn)], PATTERNS[pattern], algorithm=RANDOM)["drawn"].results
        for pattern in ("target_only", "speculate", "every 3")
    }
    again = [
        Case(pattern, tuple(map(_with_answer, drawn, results))) for pattern, results in runs.items()
    ]
    expected = serve(again, None, algorithm=RANDOM)
    for pattern, results in runs.items():
        for mine, theirs in zip(results, expected[pattern].results, strict=True):
            assert len(mine.logprobs) == len(mine.output_ids) == 24
            # The engine gives none for the first token that it is asked about.
            assert close(mine.logprobs[1:], theirs.input_logprobs[1:])
            assert close(mine.top_logprobs[1:], theirs.input_top_logprobs[1:])
    check("drawn_logprobs", Verdict.IDENTICAL)


def _with_answer(request: Request, result: Result) -> Request:
    """A request for the log-probabilities of an answer, as part of the prompt."""
    return Request(
        [*request.input_ids, *result.output_ids],
        max_new_tokens=1,
        logprobs=True,
        top_logprobs=2,
        fields={"logprob_start_len": len(request.input_ids)},
    )
