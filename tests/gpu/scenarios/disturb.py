"""What a test does to a running server: let a step raise, or hold up a CUDA stream."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from specswitch.control.decision import Mode

# About a millisecond: longer than a step of the tiny model, so that what does not wait goes wrong.
_CYCLES = 2_000_000
_DELAYED_SHARE = 0.4


class InjectedFault(Exception):
    """Raised inside a step on purpose."""


@contextmanager
def one_fault(worker: Any, notes: dict[str, Any]) -> Iterator[None]:
    """The first target-only step in the block raises in the target's forward, then runs again.

    It raises where the model would run, after the inputs of a graph have been written. What the
    second attempt finds must not depend on the first.

    Args:
        worker: a specswitch worker.
        notes: receives "swapped" (the target had another attention backend or graph runner when it
            raised), "restored" (both are back after it) and "faults" (1).
    """
    runner = worker.target_worker.model_runner
    step, forward = worker.forward_batch_generation, runner.forward
    before = runner.attn_backend, runner.graph_runner
    notes |= {"faults": 0, "swapped": None, "restored": None}

    def unchanged() -> bool:
        return runner.attn_backend is before[0] and runner.graph_runner is before[1]

    def failing(forward_batch: Any, *_args: Any, **_kwargs: Any) -> Any:
        notes["swapped"] = not unchanged()
        graphs = runner.graph_runner
        if graphs is not None and graphs.can_run(forward_batch):
            graphs.replay_prepare(forward_batch)
        raise InjectedFault

    def step_with_fault(batch: Any) -> Any:
        decision = worker._decision
        if not notes["faults"] and decision is not None and decision.mode is Mode.TARGET_ONLY:
            notes["faults"] = 1
            runner.forward = failing
            try:
                step(batch)
            except InjectedFault:
                notes["restored"] = unchanged()
            finally:
                runner.forward = forward
            worker._decision = decision
        return step(batch)

    worker.forward_batch_generation = step_with_fault
    try:
        yield
    finally:
        worker.forward_batch_generation = step


@contextmanager
def delayed(worker: Any, stream: str, notes: dict[str, Any]) -> Iterator[None]:
    """At random steps in the block, one CUDA stream first waits for a millisecond.

    Work on the other stream that does not wait for it then sees old values.

    Args:
        worker: a specswitch worker.
        stream: "forward", on which the worker runs, or "schedule", on which it decides.
        notes: receives "delays", the number of steps held up.
    """
    name = {"forward": "forward_batch_generation", "schedule": "begin_step"}[stream]
    original: Callable[..., Any] = getattr(worker, name)
    rng = random.Random(5)
    notes["delays"] = 0

    def held_up(*args: Any) -> Any:
        if rng.random() < _DELAYED_SHARE:
            notes["delays"] += 1
            if torch.cuda.is_available():
                # Public under no other name; spins on the device without touching memory.
                torch.cuda._sleep(_CYCLES)
        return original(*args)

    setattr(worker, name, held_up)
    try:
        yield
    finally:
        setattr(worker, name, original)
