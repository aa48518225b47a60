"""The request sets. Prompts are held-out text of the trained pair."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from harness import Request

from specswitch import tiny_pair

Prompts = list[list[int]]

# Alternatives returned at each position of a reference run: where another run says another token,
# that token is among them if it was nearly as probable.
ALTERNATIVES = 5


def request_set(name: str, tokenizer: Path) -> list[Request]:
    """The requests of one set; same arguments, same requests.

    Args:
        name: key in `_SETS`.
        tokenizer: directory of a model of the pair.
    """
    made = _SETS[name](_prompts(tokenizer))
    return [replace(request, rid=f"{number:02d}") for number, request in enumerate(made)]


def with_logprobs(requests: list[Request]) -> list[Request]:
    """The same requests, asking for the log-probabilities of the likeliest tokens."""
    return [replace(request, logprobs=True, top_logprobs=ALTERNATIVES) for request in requests]


def _prompts(tokenizer: Path) -> Prompts:
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(str(tokenizer / "tokenizer.json")).encode
    return [encode(text).ids for text in tiny_pair.prompts(24, seed=11)]


def _first(prompts: Prompts) -> list[Request]:
    """Three requests of different length: the last one also decodes alone."""
    return [
        Request(prompt, max_new_tokens=length)
        for prompt, length in zip(prompts, (10, 16, 28), strict=False)
    ]


def _staggered(prompts: Prompts) -> list[Request]:
    """Requests that come and go at different steps; the last four find a cached prefix."""
    rng = random.Random(1)
    first = [
        Request(prompt, max_new_tokens=rng.randint(24, 96), arrive=5 * number)
        for number, prompt in enumerate(prompts[:8])
    ]
    again = [
        # Whole prompts: after half of one the model is in doubt, and every token is a near tie.
        Request(prompts[number], max_new_tokens=rng.randint(16, 48), arrive=70 + 3 * number)
        for number in range(4)
    ]
    return first + again


def _crowd(prompts: Prompts) -> list[Request]:
    """Eight requests at once, which leave one by one; two come back when few are left."""
    lengths = (8, 16, 28, 40, 52, 64, 80, 96)
    crowd = [
        Request(prompt, max_new_tokens=length)
        for prompt, length in zip(prompts, lengths, strict=False)
    ]
    late = [Request(prompt, max_new_tokens=30, arrive=60) for prompt in prompts[8:10]]
    return crowd + late


def _tiny(prompts: Prompts) -> list[Request]:
    """Three short requests: a batch above the two that have graphs, then below."""
    return [
        Request(prompt[-24:], max_new_tokens=length)
        for prompt, length in zip(prompts, (3, 6, 9), strict=False)
    ]


_SETS: Mapping[str, Callable[[Prompts], list[Request]]] = {
    "first": _first,
    "staggered": _staggered,
    "staggered-logprobs": lambda prompts: with_logprobs(_staggered(prompts)),
    "crowd": _crowd,
    "tiny": _tiny,
}
