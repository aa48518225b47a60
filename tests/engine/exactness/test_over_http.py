"""What only a whole server does: several answers to a request, text in pieces, text that ends.

One server is told by the operator's command which pattern of modes comes next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from harness import Request, Result
from harness.arguments import EAGLE3, SPECSWITCH
from harness.http_server import HttpServer
from runs import run_plain

from specswitch import tiny_pair

from .recorder import check
from .verdicts import Verdict

PROMPTS = tiny_pair.prompts(4, seed=3)
NEW_TOKENS = 40
# In the midst of the answer to the prompt of the same number, within a token or over several.
STOPS = ("owes 546", "; next Hurtet", "wrote sol", "Hugo Vera")
COMMANDS: dict[str, dict[str, Any]] = {
    "target_only": {"mode": "target_only"},
    "speculate": {"mode": "speculate"},
    "every 1": {"mode": "auto", "set": {"policy.period": 1}},
    "every 3": {"mode": "auto", "set": {"policy.period": 3}},
    "every 7": {"mode": "auto", "set": {"policy.period": 7}},
}
ARGUMENTS = [
    *EAGLE3,
    *SPECSWITCH,
    *("--max-running-requests", "12", "--max-total-tokens", "8192", "--random-seed", "1"),
    *("--grammar-backend", "none", "--dtype", "float32"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    directory = tmp_path_factory.mktemp("server")
    file = directory / "worker.yaml"
    file.write_text("policy: {kind: periodic, period: 1}\n")
    arguments = [*ARGUMENTS, "--speculative-worker-config", str(file)]
    with HttpServer(arguments, directory / "log") as server:
        server.wait_for(server.is_healthy)
        yield server


@pytest.fixture(params=list(COMMANDS))
def switching(request: pytest.FixtureRequest, server: HttpServer) -> Iterator[HttpServer]:
    """The server under one pattern of modes, which is checked to have run."""
    before = _steps(server)
    command = {"server_args": {"specswitch": COMMANDS[request.param]}}
    (answer,) = server.post("/set_internal_state", command)
    assert answer["accepted"], answer
    yield server
    ran = {mode for mode, steps in _steps(server).items() if steps > before[mode]}
    both = {"target_only", "speculate"}
    assert ran == ({request.param} if request.param in both else both)


def _steps(server: HttpServer) -> dict[str, int]:
    return server.get("/server_info")["internal_states"][0]["specswitch"]["steps"]


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tiny_pair.path("target") / "tokenizer.json"))


@cache
def plain() -> list[Result]:
    """Answers of an engine without speculation."""
    requests = [
        Request(_tokenizer().encode(prompt).ids, max_new_tokens=NEW_TOKENS, logprobs=True)
        for prompt in PROMPTS
    ]
    return run_plain(requests, "EAGLE3").results


def expected() -> list[str]:
    return [_tokenizer().decode(result.output_ids) for result in plain()]


def up_to_stop(with_it: bool = False) -> list[str]:
    """The same answers, cut at their stop strings."""
    answers = []
    for answer, stop in zip(expected(), STOPS, strict=True):
        before, found, _ = answer.partition(stop)
        assert found, "the answer does not hold its stop string"
        answers.append(before + found if with_it else before)
    return answers


def body(**sampling: Any) -> dict[str, Any]:
    """All prompts in one request."""
    greedy = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    return {"text": PROMPTS, "sampling_params": {**greedy, **sampling}}


def completion(**fields: Any) -> dict[str, Any]:
    asked = {"model": "default", "prompt": PROMPTS, "max_tokens": NEW_TOKENS, "ignore_eos": True}
    return {**asked, "temperature": 0, **fields}


def pieces(server: HttpServer, asked: dict[str, Any]) -> tuple[dict[int, list[str]], list[Any]]:
    """Text of a streamed completion by number of the choice, and the events."""
    events = list(server.stream("/v1/completions", asked))
    texts: dict[int, list[str]] = defaultdict(list)
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]].append(choice["text"])
    return texts, events


def test_several_answers_to_a_request_are_those_of_plain_decode(switching: HttpServer) -> None:
    answers = switching.post("/generate", {**body(n=3), "return_logprob": True})
    assert [answer["text"] for answer in answers] == [text for text in expected() for _ in range(3)]
    for number, answer in enumerate(answers):
        told = answer["meta_info"]
        assert told["completion_tokens"] == NEW_TOKENS
        assert told["finish_reason"] == {"type": "length", "length": NEW_TOKENS}
        assert [value for value, *_ in told["output_token_logprobs"]] == pytest.approx(
            plain()[number // 3].logprobs, abs=1e-3
        )
    check("several_answers", Verdict.IDENTICAL)


def test_streamed_text_is_that_of_plain_decode(switching: HttpServer) -> None:
    texts, events = pieces(
        switching, completion(n=2, stream_options={"include_usage": True}, logprobs=1)
    )
    assert ["".join(texts[number]) for number in range(8)] == [
        text for text in expected() for _ in range(2)
    ]
    assert all(len(each) > 4 for each in texts.values()), "answers came in few pieces"
    (usage,) = [event["usage"] for event in events if event.get("usage")]
    assert usage["completion_tokens"] == 8 * NEW_TOKENS
    check("streamed_text", Verdict.IDENTICAL)


def test_text_ends_before_its_stop_string(switching: HttpServer) -> None:
    stops = list(STOPS)
    answers = switching.post("/generate", body(stop=stops))
    assert [answer["text"] for answer in answers] == up_to_stop()
    assert [answer["meta_info"]["finish_reason"]["matched"] for answer in answers] == stops
    kept = switching.post("/generate", body(stop=stops, no_stop_trim=True))
    assert [answer["text"] for answer in kept] == up_to_stop(with_it=True)
    texts, _ = pieces(switching, completion(stop=stops))
    assert ["".join(texts[number]) for number in range(4)] == up_to_stop()
    check("text_to_a_stop", Verdict.IDENTICAL)
