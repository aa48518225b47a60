"""The prompts: a pure function of the seed, so that every arm is sent the same ones.

Prompts never repeat within a server's life. A repeated prompt would be answered
from the prefix cache, and the second repeat would measure something else.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.client import Prompt
from benchmarks.errors import BenchmarkError
from benchmarks.setup import TINY_PAIR, Setup

#: Low ids are special tokens in most vocabularies; an end token in a prompt is not a prompt.
_FIRST_ID_SHARE = 0.1


class Workload:
    """Makes prompts for one setup.

    Args:
        setup: lengths, seed, vocabulary and, with real weights, the file of texts.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        named = setup.prompts is not None and setup.prompts != TINY_PAIR
        self._texts = read_texts(str(setup.prompts)) if named else None
        self._vocabulary = setup.vocabulary

    def prompts(self, count: int, *labels: int | str, input_len: int | None = None) -> list[Prompt]:
        """`count` prompts for the measurement named by `labels`: other labels, other prompts."""
        source = random.Random(repr((self._setup.seed, labels)))
        if self._setup.prompts == TINY_PAIR:
            from specswitch import tiny_pair

            return list(tiny_pair.prompts(count, seed=source.randrange(2**32)))
        length = self._setup.input_len if input_len is None else input_len
        return [self._one(source, length) for _ in range(count)]

    def _one(self, source: random.Random, length: int) -> Prompt:
        if self._texts is not None:
            # The number in front keeps a text that is drawn twice out of the prefix cache.
            return f"{source.randrange(10**9)}. {source.choice(self._texts)}"
        first = int(self._vocabulary * _FIRST_ID_SHARE)
        return [source.randrange(first, self._vocabulary) for _ in range(length)]


def read_texts(path: str) -> Sequence[str]:
    """The non-empty lines of a UTF-8 file, one prompt each.

    Raises BenchmarkError when the file cannot be read or holds no text.
    """
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"cannot read the prompts in {path}: {error}") from error
    texts = [line for line in lines if line]
    if not texts:
        raise BenchmarkError(f"{path} holds no prompts: give one text a line")
    return texts
