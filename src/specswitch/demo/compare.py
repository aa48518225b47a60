"""Whether two servers gave the same answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Answers = Mapping[int, tuple[int, ...]]
"""Token ids by request index."""


@dataclass(frozen=True)
class Difference:
    """The first place where two answers to one request part.

    Attributes:
        index: the request.
        position: number of equal tokens before the difference.
        got, expected: the token ids there; None where an answer had ended.
    """

    index: int
    position: int
    got: int | None
    expected: int | None

    def __str__(self) -> str:
        return (
            f"request {self.index}: token {self.position} is {self.got}, "
            f"without speculation it is {self.expected}"
        )


def differences(got: Answers, expected: Answers) -> list[Difference]:
    """All requests that were answered differently, in order of their index.

    Raises:
        ValueError: the two servers were not asked the same requests.
    """
    if got.keys() != expected.keys():
        raise ValueError("the servers were given different requests")
    found = []
    for index in sorted(got):
        ours, theirs = got[index], expected[index]
        if ours == theirs:
            continue
        equal = 0
        for a, b in zip(ours, theirs, strict=False):
            if a != b:
                break
            equal += 1
        found.append(
            Difference(
                index,
                equal,
                ours[equal] if equal < len(ours) else None,
                theirs[equal] if equal < len(theirs) else None,
            )
        )
    return found
