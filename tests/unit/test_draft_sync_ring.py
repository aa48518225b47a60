"""The ring gives back what it was given, as long as a gap may last; debug mode sees if not."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")

import torch

from specswitch.engine.debug import check_missed_tokens
from specswitch.engine.draft_sync.ring import HiddenRing
from specswitch.engine.errors import RingMismatch

ROWS, WINDOW, WIDTH = 6, 8, 3


class Span(NamedTuple):
    index: int
    start: int
    end: int


class Request:
    def __init__(self, prompt: list[int], emitted: list[int]) -> None:
        self.rid, self.origin_input_ids, self.output_ids = "r", prompt, emitted


@pytest.mark.parametrize("width", [WIDTH, None])
def test_a_request_reads_back_all_it_has_missed_however_rows_are_reused(width: int | None) -> None:
    ring = HiddenRing(ROWS, WINDOW, width, torch.float64, "cpu")
    rng = random.Random(1)
    stamp = 0
    # Position of the next write, and tokens written since the request's gap began, by row.
    following = {row: rng.randrange(300) for row in range(ROWS)}
    missed: dict[int, list[int]] = {row: [] for row in range(ROWS)}
    for _ in range(500):
        rows = [row for row in range(ROWS) if len(missed[row]) < WINDOW and rng.random() < 0.8]
        tokens = torch.arange(stamp, stamp + len(rows), dtype=torch.int32)
        stamp += len(rows)
        positions = [following[row] for row in rows]
        ring.write(
            torch.tensor(rows).long(), torch.tensor(positions).long(), tokens, hidden(tokens)
        )
        for row, token in zip(rows, tokens.tolist(), strict=True):
            missed[row].append(token)
            following[row] += 1
        for row in range(ROWS):
            if len(missed[row]) == WINDOW or rng.random() < 0.1:
                assert read(ring, row, following[row], len(missed[row]), width) == missed[row]
                missed[row] = []
                # The gap is filled; now and then the row goes to another request as well.
                following[row] = rng.choice([following[row], rng.randrange(300)])


def hidden(tokens: Any) -> Any:
    """Hidden states that tell which token they belong to."""
    return tokens.double().unsqueeze(1) + torch.arange(WIDTH) / 8


def read(ring: HiddenRing, row: int, end: int, count: int, width: int | None) -> list[int]:
    positions = torch.arange(end - count, end)
    tokens, states = ring.read(torch.full_like(positions, row), positions)
    assert (states is None) if width is None else torch.equal(states, hidden(tokens))
    return tokens.tolist()


def test_hidden_states_of_another_width_are_refused() -> None:
    ring = HiddenRing(ROWS, WINDOW, WIDTH, torch.float64, "cpu")
    one = torch.tensor([1])
    with pytest.raises(ValueError, match="width 2, the draft takes 3"):
        ring.write(one, one, one, torch.zeros(1, 2, dtype=torch.float64))


def test_memory_of_a_position_is_what_the_ring_takes() -> None:
    ring = HiddenRing(ROWS, WINDOW, WIDTH, torch.bfloat16, "cpu")
    assert ring.nbytes == WINDOW * HiddenRing.bytes_per_position(ROWS, WIDTH, torch.bfloat16)
    tokens_only = HiddenRing(ROWS, WINDOW, None, torch.bfloat16, "cpu")
    assert tokens_only.nbytes == WINDOW * HiddenRing.bytes_per_position(ROWS, None, torch.bfloat16)


def test_debug_mode_accepts_the_tokens_that_follow_the_missed_positions() -> None:
    requests = [Request([1, 2, 3], [4, 5, 6, 7]), Request([9], [8, 7])]
    # The last two tokens of the first request are still on the device.
    check_missed_tokens(
        requests, [Span(0, 3, 8), Span(1, 1, 2)], torch.tensor([5, 6, 7, 70, 71, 7])
    )


@pytest.mark.parametrize(
    "tokens",
    [[4, 5, 6, 7], [6, 7, 70, 71], [5, 6, 9, 70], [8, 7, 0, 0]],
    ids=["a position early", "a position late", "one overwritten", "of another row"],
)
def test_debug_mode_refuses_other_tokens(tokens: list[int]) -> None:
    with pytest.raises(RingMismatch, match="positions 3 to 6"):
        check_missed_tokens(
            [Request([1, 2, 3], [4, 5, 6, 7])], [Span(0, 3, 7)], torch.tensor(tokens)
        )


def test_debug_mode_refuses_positions_that_nobody_has_emitted() -> None:
    with pytest.raises(RingMismatch):
        check_missed_tokens([Request([1, 2], [])], [Span(0, 3, 7)], torch.tensor([0, 0, 0, 0]))
