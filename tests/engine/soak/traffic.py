"""Random requests whose answers are known beforehand.

Greedy decoding goes on in the same way from any place of a text. So a few texts, written once by an
engine without speculation, hold the answers to thousands of different requests.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from harness import Request, Result
from runs import run_plain
from workloads import models, text

#: Texts, and tokens that each goes on after its prompt.
TEXTS, CONTINUED = 24, 160
#: Tokens of a text that a request may take for its prompt, beyond the text's own.
_AFTER = 40
_LONGEST = 48
#: Room for an answer that a stop token ends. When an end and the length limit fall into one
#: speculative step, the engine sees the limit only (managers/schedule_batch.py:1222).
_ROOM = CONTINUED - _AFTER


@dataclass(frozen=True)
class Text:
    """A prompt and what the target says after it."""

    tokens: tuple[int, ...]
    prompt: int


def write_texts() -> tuple[Text, ...]:
    """Texts of the trained pair's target, by an engine that never drafts."""
    prompts = sorted(text("EAGLE3"), key=len)[:TEXTS]
    plain = run_plain(
        [Request(list(prompt), max_new_tokens=CONTINUED) for prompt in prompts],
        "EAGLE3",
        max_running_requests=TEXTS,
        max_total_tokens=16384,
        chunked_prefill_size=-1,
    )
    return tuple(
        Text((*prompt, *result.output_ids), len(prompt))
        for prompt, result in zip(prompts, plain.results, strict=True)
    )


@dataclass(frozen=True)
class Asked:
    """A request and the answer to it.

    Attributes:
        answer: complete when the request is not aborted.
    """

    request: Request
    answer: tuple[int, ...]

    def is_answered_by(self, result: Result) -> bool:
        """Whether the tokens are right, and an answer that ends early was aborted."""
        given = tuple(result.output_ids)
        if result.finish_reason is not None and result.finish_reason["type"] != "abort":
            return given == self.answer
        # An aborted request keeps what its last step accepted, even beyond its end
        # (managers/schedule_batch.py:1217).
        both = min(len(given), len(self.answer))
        return self.request.abort is not None and given[:both] == self.answer[:both]


class Traffic:
    """Makes requests: of all lengths, in bursts, some aborted, some ended by a stop token, some
    that opt out of speculation.

    Args:
        texts: what the answers are taken from.
        seed: the same seed makes the same requests.
    """

    def __init__(self, texts: Sequence[Text], seed: int) -> None:
        self._texts = texts
        self._random = random.Random(seed)
        configuration = json.loads((models("EAGLE3").target / "config.json").read_text())
        self._end: int = configuration["eos_token_id"]

    def some(self, count: int, first: int = 0) -> list[Asked]:
        """Requests of which the first arrives at tick ``first``."""
        asked, tick = [], first
        for _ in range(count):
            asked.append(self._one(tick))
            tick += self._random.choice([0, 0, 0, 1, 2, 3, 4, 8, 16])
        return asked

    def _one(self, tick: int) -> Asked:
        dice = self._random
        source = dice.choice(self._texts)
        begin = source.prompt + dice.randrange(_AFTER)
        prompt, answer = source.tokens[:begin], source.tokens[begin:]
        sampling: dict[str, object] = {}
        if dice.random() < 0.15:
            stop = answer[dice.randrange(_LONGEST)]
            ends = min(answer.index(one) for one in {stop, self._end} & set(answer))
            length, answer = _ROOM, answer[: ends + 1]
            sampling = {"stop_token_ids": [stop], "ignore_eos": False}
        else:
            length = dice.choice([1, 2, 3, dice.randint(4, _LONGEST)])
            answer = answer[:length]
        if dice.random() < 0.02:
            sampling["custom_params"] = {"specswitch": {"speculate": False}}
        abort = tick + dice.randrange(25) if dice.random() < 0.1 else None
        return Asked(Request(list(prompt), length, tick, abort, sampling=sampling), answer)
