"""The language of the tiny pair: endless text that can only be continued by looking far back.

Why: random weights accept almost nothing, and text with strong local structure is drafted well
from the last few tokens alone. In both cases nothing that happens to the draft's KV cache can be
seen in the acceptance length. Here almost every token is a copy of something random, found 10 to
600 tokens earlier.

Two families of documents:

- *chains* (`ledger`, `log`, `letters`): a list of records in random order, each with a random
  name, number and phrase, and the name of the record that comes next; then a walk along those
  names that quotes each record again. A closed chain goes on for ever. An open chain ends in an
  end-of-text token; whoever goes on after it (`ignore_eos`) starts the walk again.
- *rounds*: rows of names in which neighbours change places (`hand` rows swap places 1-2, 3-4,
  ...; `back` rows 2-3, 4-5, ...). Each row follows from the row before and from nothing older, so
  a draft whose *recent* KV is missing goes wrong at once, which a chain does not show.

Text is produced as pieces. Each piece is exactly one token of the tokenizer built from
`vocabulary()`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

Kind = Literal["ledger", "log", "letters", "rounds"]
CHAIN_KINDS: tuple[Kind, ...] = ("ledger", "log", "letters")
KINDS: tuple[Kind, ...] = (*CHAIN_KINDS, "rounds")

EOS = "</s>"
"""End of text; the tokenizer's eos token."""
BREAK = "<s>"
"""Stands between two documents of one training row; never predicted, never needed in a prompt."""

_ONSETS, _VOWELS, _CODAS = "bdfghklmnprstvz", "aeiou", "lmnrst"
_ALL_SYLLABLES = [o + v + c for o in _ONSETS for v in _VOWELS for c in _CODAS]
# 7 and 450 have no common factor: the choice spreads over all onsets, vowels and codas.
SYLLABLES: tuple[str, ...] = tuple(_ALL_SYLLABLES[7 * i % len(_ALL_SYLLABLES)] for i in range(120))
WORDS: tuple[str, ...] = (
    *("ledger", "log", "letters", "rounds", "from", "owes", "for", "then", "nobody", "at", "next"),
    *("wrote", "to", "hand", "back"),
)
RINGERS: tuple[str, ...] = (
    *("Ada", "Ben", "Cleo", "Dora", "Ezra", "Finn", "Gwen", "Hugo", "Iris", "Jack", "Kira", "Leo"),
    *("Mona", "Ned", "Olga", "Paul", "Rosa", "Sam", "Tess", "Uma", "Vera", "Walt", "Yara", "Zoe"),
)
_MARKS = ("\n-", "\n>", "\n*", ",", ";", ":")
_NOBODY = (" nobody",)

Pieces = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A document cut where guessing ends: `given` cannot be predicted, every piece of `lines` can.

    `lines` never ends; each item is one line of pieces, which starts with its own line break. A
    line may hold `EOS` (open chains).
    """

    kind: Kind
    given: Pieces
    lines: Iterator[Pieces]


def document(rng: random.Random, kind: Kind, size: int, *, open_ended: bool = False) -> Document:
    """Draw one document.

    Args:
        rng: the only source of chance.
        kind: see `KINDS`.
        size: records of a chain (2..len(SYLLABLES)) or names of a row of rounds (3..len(RINGERS)).
        open_ended: a chain that runs into `EOS` instead of closing on itself.

    Raises:
        ValueError: `size` out of range, or `open_ended` asked of rounds.
    """
    if kind == "rounds":
        if open_ended:
            raise ValueError(
                "rounds have no end: use a chain (ledger, log, letters) with open_ended=True"
            )
        return _rounds(rng, size)
    return _chain(rng, kind, size, open_ended)


def prompts(
    n: int,
    seed: int = 0,
    *,
    kind: Kind | None = None,
    size: int | None = None,
    open_ended: bool = False,
) -> list[str]:
    """Held-out prompts whose continuation is determined by what they say.

    The same arguments give the same prompts.

    Args:
        n: number of prompts.
        seed: training text uses another stream of random numbers, so no seed repeats it.
        kind: one kind for all; default: the kinds in turn (without `rounds` when `open_ended`).
        size: records or row length; default: drawn per prompt, for prompts of about 60 to 300
            tokens.
        open_ended: chains that end in the end-of-text token, at most 2/3 of a walk away.
    """
    rng = random.Random(f"specswitch tiny pair, held out, {seed}")
    kinds = (kind,) if kind else CHAIN_KINDS if open_ended else KINDS
    out = []
    for i in range(n):
        this = kinds[i % len(kinds)]
        length = size or (rng.randint(6, 10) if this == "rounds" else rng.randint(4, 14))
        doc = document(rng, this, length, open_ended=open_ended)
        shown = 3 if this == "rounds" else 1 + length // 3 if open_ended else 1
        out.append("".join([*doc.given, *(p for line in islice(doc.lines, shown) for p in line)]))
    return out


def vocabulary() -> list[str]:
    """Every piece that documents are made of, once, in a fixed order; no special tokens."""
    pieces = [*_MARKS, *(f" {d}" for d in range(10)), *(str(d) for d in range(10))]
    pieces += [w for word in WORDS for w in (word, f" {word}")] + [f" {name}" for name in RINGERS]
    for syllable in SYLLABLES:
        pieces += [syllable, f" {syllable}", f" {syllable.capitalize()}"]
    return list(dict.fromkeys(pieces))


def _number(rng: random.Random) -> Pieces:
    return (f" {rng.randrange(10)}", str(rng.randrange(10)), str(rng.randrange(10)))


def _word(rng: random.Random) -> Pieces:
    first, *rest = rng.choices(SYLLABLES, k=rng.randint(1, 3))
    return (f" {first}", *rest)


def _names(rng: random.Random, n: int) -> list[Pieces]:
    """`n` names of 2 or 3 syllables, each known from its first one."""
    heads = rng.sample(SYLLABLES, n)
    return [
        (f" {head.capitalize()}", *rng.choices(SYLLABLES, k=rng.randint(1, 2))) for head in heads
    ]


def _record(rng: random.Random, kind: Kind, name: Pieces, following: Pieces) -> Pieces:
    number = _number(rng)
    phrase = tuple(piece for _ in range(rng.randint(2, 3)) for piece in _word(rng))
    if kind == "ledger":
        return (*name, " owes", *number, " for", *phrase, ",", " then", *following)
    if kind == "log":
        return (*name, ":", *phrase, " at", *number, ";", " next", *following)
    return (*name, " wrote", *phrase, *number, " to", *following)


def _chain(rng: random.Random, kind: Kind, size: int, open_ended: bool) -> Document:
    if not 2 <= size <= len(SYLLABLES):
        raise ValueError(f"a chain has 2 to {len(SYLLABLES)} records, not {size}")
    names = _names(rng, size)
    records = [
        _record(rng, kind, name, _NOBODY if open_ended and i == size - 1 else names[(i + 1) % size])
        for i, name in enumerate(names)
    ]
    given: list[str] = [kind, *_number(rng)]
    for record in rng.sample(records, size):
        given += ["\n-", *record]
    start: Pieces = ("\n*", " from", *names[0])

    def lines() -> Iterator[Pieces]:
        while True:
            for i, record in enumerate(records):
                last = open_ended and i == size - 1
                yield ("\n>", *record, *((EOS, *start) if last else ()))

    return Document(kind, (*given, *start), lines())


def _rounds(rng: random.Random, size: int) -> Document:
    if not 3 <= size <= len(RINGERS):
        raise ValueError(f"rounds have 3 to {len(RINGERS)} names, not {size}")
    row = [f" {name}" for name in rng.sample(RINGERS, size)]
    given: Pieces = ("rounds", *_number(rng), "\n-", *row)

    def lines() -> Iterator[Pieces]:
        current = list(row)
        while True:
            for stroke, first in ((" hand", 0), (" back", 1)):
                for i in range(first, size - 1, 2):
                    current[i], current[i + 1] = current[i + 1], current[i]
                yield ("\n>", stroke, *current)

    return Document("rounds", given, lines())
