"""The batch that a target-only step hands to the target is the one of plain decoding.

Answers alone cannot show it: which fields are read depends on the attention backend, and the one of
the CPU reads few of them.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

import pytest
import torch
from harness import EngineDriver
from runs import fixed, periodic, run, run_plain

from specswitch.control.decision import Mode

# Where the pools put things, and what holds them.
PLACES = {"req_pool_indices", "out_cache_loc", "req_to_token_pool", "token_to_kv_pool"}
# Hidden states are for draft sync. The original lengths are int32 in the engine and int64 here;
# only dual-chunk attention reads them (dual_chunk_flashattention_backend.py:183).
DIFFERENT = {"capture_hidden_mode", "orig_seq_lens"}


def plain_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if value is None or isinstance(value, (bool, int, float, str, list, tuple)):
        return value
    return value.name if isinstance(value, Enum) else type(value).__name__


def record_decode_batches(driver: EngineDriver, notes: dict[str, Any]) -> None:
    """Keep each decode batch that reaches the target, field by field."""
    runner = driver.scheduler.tp_worker.model_runner
    forward = runner.forward
    notes["batches"], notes["sampling"] = [], []

    def recorded(batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.forward_mode.is_decode():
            fields = {
                field.name: plain_value(getattr(batch, field.name))
                for field in dataclasses.fields(batch)
                if field.name not in PLACES
            }
            rows = runner.req_to_token_pool.req_to_token[batch.req_pool_indices]
            slots = rows.gather(1, (batch.seq_lens - 1).unsqueeze(1)).squeeze(1)
            fields["slots agree with the table"] = batch.out_cache_loc.tolist() == slots.tolist()
            notes["batches"].append(fields)
            notes["sampling"].append(
                {name: plain_value(value) for name, value in vars(batch.sampling_info).items()}
            )
        return forward(batch, *args, **kwargs)

    runner.forward = recorded


@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE"])
def test_each_batch_is_the_one_of_an_engine_without_speculation(algorithm: str) -> None:
    policy = fixed(Mode.TARGET_ONLY)
    ours = run("staggered", algorithm, policy, prepare=record_decode_batches)
    plain = run_plain("staggered", algorithm, record_decode_batches)
    assert len(ours.notes["batches"]) == len(plain.notes["batches"]) > 50
    for mine, theirs in zip(ours.notes["batches"], plain.notes["batches"], strict=True):
        assert {name for name in mine if mine[name] != theirs[name]} <= DIFFERENT
        assert mine["orig_seq_lens"][1] == theirs["orig_seq_lens"][1]
    assert ours.notes["sampling"] == plain.notes["sampling"]


@pytest.mark.parametrize("page_size", [1, 16])
def test_each_batch_is_consistent_when_modes_flip(page_size: int) -> None:
    outcome = run(
        "staggered", "EAGLE3", periodic(2), prepare=record_decode_batches, page_size=page_size
    )
    assert len(outcome.notes["batches"]) == outcome.modes.count(Mode.TARGET_ONLY) > 10
    for batch in outcome.notes["batches"]:
        _, lengths = batch["seq_lens"]
        assert batch["seq_lens_cpu"][1] == batch["orig_seq_lens"][1] == lengths
        assert batch["seq_lens_sum"] == sum(lengths)
        assert batch["positions"][1] == [length - 1 for length in lengths]
        assert batch["slots agree with the table"]
        assert batch["spec_info"] is None
