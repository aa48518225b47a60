"""After a target-only step the scheduler waits for nothing that the step computes.

A CPU has no stream to wait for. So every tensor that a target-only step makes is remembered, and
none of them may be what the scheduler prepares the next step from.
"""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
import torch
from harness import EngineDriver
from runs import assert_same_answers, fixed, periodic, reference, run
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from specswitch.control.decision import Mode


class MadeBy(TorchDispatchMode):
    """Remembers the tensors made, or written to, while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors: list[torch.Tensor] = []

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None):
        result = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self._tensors.append, result)
        return result

    def __contains__(self, tensor: torch.Tensor) -> bool:
        where = tensor.untyped_storage().data_ptr()
        return any(made.untyped_storage().data_ptr() == where for made in self._tensors)


class NotCopied(torch.Tensor):
    """Lengths on the device. `filter_batch` sums them (managers/schedule_batch.py:2456), as it
    does without speculation, but nobody has to copy them to the host."""

    def cpu(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise AssertionError("the scheduler copied sequence lengths from the device")


def watch_lengths(driver: EngineDriver, notes: dict[str, Any]) -> None:
    scheduler, worker = driver.scheduler, driver.worker
    forward, run_batch = worker.forward_batch_generation, scheduler.run_batch
    notes["checked"] = 0

    def watched_run(batch: Any) -> Any:
        # Reads by the step itself are on the device.
        batch.seq_lens = batch.seq_lens.as_subclass(torch.Tensor)
        made_by_step = MadeBy()

        def watched_forward(model_worker_batch: Any) -> Any:
            with made_by_step:
                return forward(model_worker_batch)

        worker.forward_batch_generation = watched_forward
        result = run_batch(batch)
        if batch.forward_mode.is_decode() and worker.controller.mode is Mode.TARGET_ONLY:
            assert result.next_token_ids in made_by_step
            assert batch.seq_lens not in made_by_step
            assert batch.seq_lens_cpu not in made_by_step
            # The event that filter_batch and merge_batch wait for.
            assert batch.spec_info.verify_done is None
            batch.seq_lens = batch.seq_lens.as_subclass(NotCopied)
            notes["checked"] += 1
        return result

    scheduler.run_batch = watched_run


@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE"])
def test_target_only_steps_never_wait_for_the_device(algorithm: str) -> None:
    outcome = run(
        "staggered", algorithm, fixed(Mode.TARGET_ONLY), debug=False, prepare=watch_lengths
    )
    assert outcome.notes["checked"] == len(outcome.steps) > 20
    assert_same_answers(outcome, reference("staggered", algorithm))


def test_flips_wait_for_speculative_steps_only() -> None:
    outcome = run("staggered", "EAGLE3", periodic(3), debug=False, prepare=watch_lengths)
    assert outcome.notes["checked"] == outcome.modes.count(Mode.TARGET_ONLY) > 10
    assert_same_answers(outcome, reference("staggered", "EAGLE3"))
