"""Training rows: documents of the tiny pair's text, packed, with a weight for each token.

Why weights: names and phrases of a list are random when they first appear. A model that is asked
to predict them learns nothing but to be unsure; the continuation is what must be sharp.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from specswitch.tiny_pair.text import BREAK, CHAIN_KINDS, document

GIVEN_WEIGHT = 0.02
ROUNDS_SHARE = 0.3
OPEN_ENDED_SHARE = 0.4

Batch = tuple[Tensor, Tensor]


class Rows(IterableDataset[Batch]):
    """Endless batches of (ids int64 [rows, length + 2], weights float32 of the same shape).

    A draft that looks two tokens ahead then has `length` slots, which attention kernels like to
    be a multiple of 8.

    Row r of worker w depends on the seed and w alone, so a run with the same number of workers
    sees the same rows.
    """

    def __init__(self, ids: dict[str, int], rows: int, length: int, seed: int) -> None:
        super().__init__()
        self.ids, self.rows, self.length, self.seed = ids, rows, length + 2, seed

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        rng = random.Random(
            f"specswitch tiny pair, training, {self.seed}, {worker.id if worker else 0}"
        )
        while True:
            ids = np.empty((self.rows, self.length), dtype=np.int64)
            weights = np.empty((self.rows, self.length), dtype=np.float32)
            for r in range(self.rows):
                ids[r], weights[r] = self._row(rng)
            yield torch.from_numpy(ids), torch.from_numpy(weights)

    def _row(self, rng: random.Random) -> tuple[list[int], list[float]]:
        # STANDALONE and EAGLE3 drafts never see a prompt's first token, and a prefix cache may
        # cut anywhere near: a row may start a few tokens late.
        skip = rng.randrange(3)
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) < self.length + skip:
            if ids:
                ids.append(self.ids[BREAK])
                weights.append(0.0)
            if rng.random() < ROUNDS_SHARE:
                doc = document(rng, "rounds", rng.randint(5, 10))
                wanted = 160
            else:
                # A list of the longest chains fills 3/8 of a row; short ones are as frequent.
                longest = max(4.0, self.length / 48)
                size = round(math.exp(rng.uniform(math.log(3), math.log(longest))))
                open_ended = rng.random() < OPEN_ENDED_SHARE
                doc = document(rng, rng.choice(CHAIN_KINDS), size, open_ended=open_ended)
                wanted = 18 * size * 3
            ids += [self.ids[piece] for piece in doc.given]
            weights += [GIVEN_WEIGHT] * len(doc.given)
            stop = min(len(ids) + rng.randint(wanted // 2, wanted), self.length + skip)
            for line in doc.lines:
                ids += [self.ids[piece] for piece in line]
                weights += [1.0] * len(line)
                if len(ids) >= stop:
                    break
        end = self.length + skip
        return ids[skip:end], weights[skip:end]


def batches(
    ids: dict[str, int], rows: int, length: int, seed: int, workers: int
) -> Iterator[Batch]:
    """Batches of `Rows`, made by `workers` processes (0: by this one)."""
    return iter(
        DataLoader(
            Rows(ids, rows, length, seed),
            batch_size=None,
            num_workers=workers,
            pin_memory=workers > 0,
        )
    )
