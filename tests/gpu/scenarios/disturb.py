"""What a test does to a running server: let a step raise, or hold up a CUDA stream."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
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
def faults(worker: Any, at: Sequence[int], notes: dict[str, Any]) -> Iterator[None]:
    """Some target-only steps in the block raise in the target's forward, then run again.

    They raise where the model would run, after the inputs of a graph have been written. What the
    second attempt finds must not depend on the first.

    Args:
        worker: a specswitch worker.
        at: numbers of the target-only steps that raise, counted from 0.
        notes: receives a list entry a fault: "swapped" (the target had another attention backend or
            graph runner when it raised), "graph" (inputs of a graph had been written) and
            "restored" (backend and runner are back).
    """
    runner = worker.target_worker.model_runner
    step, forward = worker.forward_batch_generation, runner.forward
    before = runner.attn_backend, runner.graph_runner
    notes |= {"swapped": [], "graph": [], "restored": []}
    number = -1

    def unchanged() -> bool:
        return runner.attn_backend is before[0] and runner.graph_runner is before[1]

    def failing(forward_batch: Any, *_args: Any, **_kwargs: Any) -> Any:
        notes["swapped"].append(not unchanged())
        graphs = runner.graph_runner
        replays = graphs is not None and bool(graphs.can_run(forward_batch))
        if replays:
            graphs.replay_prepare(forward_batch)
        notes["graph"].append(replays)
        raise InjectedFault

    def step_with_fault(batch: Any) -> Any:
        nonlocal number
        decision = worker._decision
        if decision is not None and decision.mode is Mode.TARGET_ONLY:
            number += 1
            if number in at:
                runner.forward = failing
                try:
                    step(batch)
                except InjectedFault:
                    notes["restored"].append(unchanged())
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
