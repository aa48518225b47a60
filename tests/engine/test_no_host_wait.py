"""After a target-only step the scheduler asks the device for nothing.

A CPU has no device to wait for, so the tensors that only the device would know are marked, and a
read of them on the host is an error.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from harness import EngineDriver
from runs import assert_same_answers, fixed, periodic, reference, run

from specswitch.control.decision import Mode


class HostRead(Exception):
    """The scheduler read a tensor of the device."""


class OnDevice(torch.Tensor):
    """A tensor whose values the host must not ask for."""

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise HostRead

    cpu = item = tolist = __bool__ = _refuse


class CopiedNever(torch.Tensor):
    """Lengths on the schedule stream: `filter_batch` sums them (managers/schedule_batch.py:2456),
    as it does without speculation, but nobody copies them."""

    def cpu(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise HostRead


def forbid_reads(driver: EngineDriver, notes: dict[str, Any]) -> None:
    """Mark what a target-only step leaves behind; the next step, on the device, may read it."""
    scheduler, worker = driver.scheduler, driver.worker
    forward, run_batch = worker.forward_batch_generation, scheduler.run_batch
    notes["marked"] = 0

    def forward_and_mark(batch: Any) -> Any:
        result = forward(batch)
        if worker.controller.mode is Mode.TARGET_ONLY and batch.forward_mode.is_decode():
            computed = result.next_draft_input
            assert computed.verify_done is None
            computed.new_seq_lens = computed.new_seq_lens.as_subclass(OnDevice)
            notes["marked"] += 1
        return result

    def run_and_mark(batch: Any) -> Any:
        batch.seq_lens = batch.seq_lens.as_subclass(torch.Tensor)
        result = run_batch(batch)
        if worker.controller.mode is Mode.TARGET_ONLY and batch.forward_mode.is_decode():
            assert not isinstance(batch.seq_lens, OnDevice)
            batch.seq_lens = batch.seq_lens.as_subclass(CopiedNever)
        return result

    worker.forward_batch_generation = forward_and_mark
    scheduler.run_batch = run_and_mark


def test_target_only_steps_never_wait_for_the_device() -> None:
    outcome = run("staggered", "EAGLE3", fixed(Mode.TARGET_ONLY), debug=False, prepare=forbid_reads)
    assert outcome.notes["marked"] == len(outcome.steps) > 20
    assert_same_answers(outcome, reference("staggered", "EAGLE3"))


def test_flips_wait_for_speculative_steps_only() -> None:
    outcome = run("staggered", "EAGLE3", periodic(3), debug=False, prepare=forbid_reads)
    assert outcome.notes["marked"] > 10
    assert_same_answers(outcome, reference("staggered", "EAGLE3"))
