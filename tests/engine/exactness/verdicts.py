"""The words of the matrix. Imports nothing of the engine, so that the page is made without one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """What a client can see of the mode."""

    IDENTICAL = "identical"
    """Tokens, reasons to finish, log-probabilities: all as without speculation."""
    SAME_DISTRIBUTION = "same distribution"
    """Drawn at random, from the same distribution."""
    TARGET_ONLY = "target-only by the exactness rule"
    """Speculation would change the answer, so a batch that holds such a request does not."""
    REFUSED = "refused by the engine"
    """The engine does not take such a request, with speculation or at all."""
    REFUSED_AT_START = "refused at start-up"
    """specswitch does not start a server that offers it."""
    DIFFERS = "differs"
    """The mode shows; the row says how."""
    NOT_TESTED = "not tested"
    """Cannot be run on the CPU engine; the row says what was read instead."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Row:
    """One line of the page.

    Attributes:
        key: name of the row in the stored results.
        title: what is tested.
        ask: how a client asks for it, in Markdown; empty: nothing to ask for.
        remark: what to know, in Markdown, with the engine's file and line where it depends on it.
    """

    key: str
    title: str
    ask: str = ""
    remark: str = ""
