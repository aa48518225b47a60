"""Requests that the engine tests serve, and the models that go with an algorithm."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import lru_cache

from harness import ModelPaths, Request, shared_random_models

from specswitch import tiny_pair

# Prompts of the trained pair run from 60 to 300 tokens, so they come in chunks of this size.
CHUNK = 64
# More new tokens than an answer that ends by itself needs. When an end and the length limit fall
# into one speculative step, the engine sees the limit only (managers/schedule_batch.py:1222).
ROOM = 165

Prompts = tuple[tuple[int, ...], ...]


def models(algorithm: str | None) -> ModelPaths:
    """The trained pair where it has a draft for the algorithm, the random models for EAGLE.

    Acceptance of the trained drafts hangs on their KV cache and the text on the whole prompt, so
    they show far more kinds of mistakes.
    """
    if algorithm == "EAGLE":
        return shared_random_models()
    return ModelPaths(
        tiny_pair.path("target"),
        {"EAGLE3": tiny_pair.path("eagle3"), "STANDALONE": tiny_pair.path("standalone")},
    )


def text(algorithm: str | None) -> Prompts:
    """Forty prompts for the target that goes with `algorithm`."""
    return _random_prompts() if algorithm == "EAGLE" else _text_prompts()


def workload(name: str, algorithm: str | None) -> list[Request]:
    """Requests by the name of one of the functions below, for the models of `algorithm`."""
    return _WORKLOADS[name](text(algorithm))


@lru_cache(maxsize=1)
def _text_prompts() -> Prompts:
    return _encode(tiny_pair.prompts(40, seed=3))


def _encode(texts: list[str]) -> Prompts:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny_pair.path("target") / "tokenizer.json"))
    return tuple(tuple(tokenizer.encode(text).ids) for text in texts)


@lru_cache(maxsize=1)
def _random_prompts() -> Prompts:
    rng = random.Random(7)
    return tuple(tuple(rng.randrange(500) for _ in range(rng.randint(20, 220))) for _ in range(40))


def staggered(prompts: Prompts) -> list[Request]:
    """Twelve requests that come and go at different steps; the last four find a cached prefix."""
    rng = random.Random(1)
    first = [
        Request(list(prompt), max_new_tokens=rng.randint(6, 44), arrive=3 * number)
        for number, prompt in enumerate(prompts[:8])
    ]
    again = [
        Request(
            [*prompts[number], *prompts[20 + number][:9]],
            max_new_tokens=rng.randint(6, 30),
            arrive=40 + 2 * number,
        )
        for number in range(4)
    ]
    return first + again


def at_once(prompts: Prompts) -> list[Request]:
    """Six requests that arrive together."""
    return [
        Request(list(prompt), max_new_tokens=24 + 5 * number)
        for number, prompt in enumerate(prompts[:6])
    ]


def calm_burst_calm(prompts: Prompts) -> list[Request]:
    """Two requests, thirty at tick 20, and two more long after those are done."""
    return [
        *(
            Request(list(prompt), max_new_tokens=30, arrive=number)
            for number, prompt in enumerate(prompts[:2])
        ),
        *(
            Request(list(prompt[:40]), max_new_tokens=12 + number % 7, arrive=20)
            for number, prompt in enumerate(prompts[2:32])
        ),
        *(Request(list(prompt), max_new_tokens=30, arrive=400) for prompt in prompts[32:34]),
    ]


def crowd(prompts: Prompts) -> list[Request]:
    """Thirty-six short requests within twelve ticks."""
    return [
        Request(
            list(prompts[number][: 12 + number]), max_new_tokens=3 + number % 9, arrive=number // 3
        )
        for number in range(36)
    ]


def long_answers(prompts: Prompts) -> list[Request]:
    """Eight requests whose answers are several times as long as their prompts.

    They may end at an end token, so that the engine admits them on a guess of their length; it
    makes room for the whole of an answer that ignores end tokens.
    """
    return [
        Request(
            list(prompt[:24]),
            max_new_tokens=90 + number,
            arrive=number,
            sampling={"ignore_eos": False},
        )
        for number, prompt in enumerate(prompts[:8])
    ]


def to_the_end(_prompts: Prompts) -> list[Request]:
    """Requests that the trained target itself ends, with an end token, after some time."""
    prompts = _encode(tiny_pair.prompts(16, seed=5, open_ended=True))
    return [
        Request(
            list(prompt),
            max_new_tokens=ROOM,
            arrive=3 * number,
            sampling={"ignore_eos": False},
        )
        for number, prompt in enumerate(prompts)
    ]


_WORKLOADS: dict[str, Callable[[Prompts], list[Request]]] = {
    function.__name__: function
    for function in (staggered, at_once, calm_burst_calm, crowd, long_answers, to_the_end)
}
