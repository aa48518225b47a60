"""Compares tokens of two servers that compute in bfloat16.

The two modes multiply matrices of different height, so their logits differ in the last bits, and
where two tokens are nearly as probable the other one may win. Such a *near tie* is told from a
wrong token by the log-probabilities of the reference run. What follows it is another text, so the
rest of that request is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# How far below the likeliest token, in nats, the other token may be. A bfloat16 has 8 significant
# bits: logits between 16 and 32 are multiples of 0.125, and each of two servers may be off by one.
BFLOAT16_MARGIN = 0.25


@dataclass(frozen=True)
class NearTie:
    """Where a request went another way.

    Attributes:
        rid: name of the request.
        position: number of the output token.
        margin: log-probability of the reference's token less that of the other one, in nats.
    """

    rid: str
    position: int
    margin: float


@dataclass
class Comparison:
    """Outcome for one set of requests.

    Attributes:
        total: output tokens of the reference.
        compared: how many of them were compared: all up to a request's near tie.
        ties: near ties, at most one a request.
        differences: a line for each request that is wrong.
    """

    total: int = 0
    compared: int = 0
    ties: list[NearTie] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def compare(
    reference: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]], margin: float
) -> Comparison:
    """Compare answers, request by request.

    Args:
        reference: answers with "rid", "output_ids" and "top_logprobs": per token the likeliest
            alternatives as (log-probability, token).
        found: answers of the other server in the same order, with "rid" and "output_ids".
        margin: largest margin of a near tie; 0 allows none.
    """
    outcome = Comparison()
    for right, answer in zip(reference, found, strict=True):
        assert right["rid"] == answer["rid"]
        _compare_one(right, answer["output_ids"], margin, outcome)
    return outcome


def _compare_one(
    right: dict[str, Any], ids: Sequence[int], margin: float, outcome: Comparison
) -> None:
    expected: Sequence[int] = right["output_ids"]
    outcome.total += len(expected)
    for position, (wanted, got) in enumerate(zip(expected, ids, strict=False)):
        if wanted != got:
            outcome.compared += position
            distance = _distance(right["top_logprobs"][position], wanted, got)
            if distance is not None and distance < margin:
                outcome.ties.append(NearTie(right["rid"], position, distance))
            else:
                size = "not among the likeliest" if distance is None else f"{distance:.3f} below"
                outcome.differences.append(
                    f"request {right['rid']}: token {position} is {got}, not {wanted} ({size})"
                )
            return
    outcome.compared += min(len(expected), len(ids))
    if len(expected) != len(ids):
        outcome.differences.append(
            f"request {right['rid']}: {len(ids)} tokens, not {len(expected)}"
        )


def _distance(alternatives: Sequence[tuple[float, int]], wanted: int, got: int) -> float | None:
    likelihood = {token: value for value, token in alternatives}
    if wanted not in likelihood or got not in likelihood:
        return None
    return likelihood[wanted] - likelihood[got]
