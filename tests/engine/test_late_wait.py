"""After a speculative step the scheduler waits for its lengths where it needs them, not before.

A CPU has no stream to wait for, so it is the calls that are watched: what the event of the
verification is asked for, and when the lengths are copied to the host; to read them before the
event was asked is an error. That the copy is right is what debug mode checks at each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from harness import EngineDriver, Request
from runs import (
    Run,
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    fixed,
    periodic,
    reference,
    run,
)
from torch.utils._pytree import tree_leaves, tree_map

from specswitch.control.decision import Mode


class WatchedEvent:
    """In the place of the engine's event; notes what is asked of it."""

    def __init__(self, event: Any, asked: list[str]) -> None:
        self._event = event
        self._asked = asked

    def synchronize(self) -> None:
        self._asked.append("host waits")
        self._event.synchronize()

    def wait(self, stream: Any = None) -> None:
        self._asked.append("stream waits")
        self._event.wait(stream)


class UnreadyLengths(torch.Tensor):
    """Lengths that a verification still makes: `asked` is empty as long as nobody waits for it."""

    plain: torch.Tensor
    asked: list[str]

    @classmethod
    def of(cls, lengths: torch.Tensor, asked: list[str]) -> UnreadyLengths:
        made = lengths.as_subclass(cls)
        made.plain, made.asked = lengths, asked
        return made

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), kwargs: Any = None):
        name = getattr(function, "__name__", "")
        if name == "__get__":
            name = function.__self__.__name__
        values = (args, kwargs or {})
        for value in tree_leaves(values):
            if isinstance(value, cls) and not value.asked and name not in _KNOWN_BEFORE:
                raise AssertionError(f"{name} reads lengths that are still being made")
        args, kwargs = tree_map(lambda v: v.plain if isinstance(v, cls) else v, values)
        return function(*args, **kwargs)


_KNOWN_BEFORE = ("shape", "device", "dtype", "__len__")


@dataclass
class Passage:
    """From a speculative step to the decode step after it.

    Attributes:
        asked: of the event, in order.
        quiet: the same requests took part in both steps, and none came in between.
        left: requests left, and none came.
        copied: the lengths were on the host when the mode was decided.
    """

    asked: list[str] = field(default_factory=list)
    quiet: bool = False
    left: bool = False
    copied: bool = False


def watch(driver: EngineDriver, notes: dict[str, Any]) -> None:
    scheduler, worker = driver.scheduler, driver.worker
    run_batch, begin_step = scheduler.run_batch, worker.begin_step
    notes["passages"] = []
    running: Any = None
    passage = Passage()
    # Requests of the speculative step before; None after anything else.
    before: set[str] | None = None

    def watched_begin(*load: Any) -> Mode:
        # On a CPU a copy to the host is the tensor itself.
        lengths = running.seq_lens
        passage.copied = running.seq_lens_cpu is getattr(lengths, "plain", lengths)
        return begin_step(*load)

    def watched_run(batch: Any) -> Any:
        nonlocal running, passage, before
        running = batch
        decodes = batch.forward_mode.is_decode()
        requests = {request.rid for request in batch.reqs}
        if decodes and before is not None:
            passage.quiet = requests == before
            passage.left = requests < before
        result = run_batch(batch)
        if decodes and before is not None:
            notes["passages"].append(vars(passage))
        before, passage = None, Passage()
        if decodes and worker.controller.mode is Mode.SPECULATE:
            before = requests
            batch.spec_info.verify_done = WatchedEvent(batch.spec_info.verify_done, passage.asked)
            batch.seq_lens = UnreadyLengths.of(batch.seq_lens, passage.asked)
        return result

    worker.begin_step = watched_begin
    scheduler.run_batch = watched_run


def check(outcome: Run, algorithm: str) -> None:
    assert_same_answers(outcome, reference("staggered", algorithm))
    assert_settled(outcome)
    assert_books_balance(outcome)
    passages = [Passage(**found) for found in outcome.notes["passages"]]
    quiet = [one for one in passages if one.quiet]
    assert len(quiet) > 10
    for one in quiet:
        assert one.asked == ["stream waits"]
        assert not one.copied
    left = [one for one in passages if one.left]
    assert left, "no request left a batch"
    for one in left:
        # Its row and slots may be another's soon.
        assert one.asked[0] == "host waits"


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("algorithm", ["EAGLE3", "STANDALONE"])
def test_a_step_is_prepared_and_decided_while_the_one_before_is_verified(
    algorithm: str, page_size: int
) -> None:
    outcome = run("staggered", algorithm, fixed(Mode.SPECULATE), prepare=watch, page_size=page_size)
    check(outcome, algorithm)
    assert set(outcome.modes) == {Mode.SPECULATE}


def test_so_is_the_first_target_only_step() -> None:
    outcome = run("staggered", "EAGLE3", periodic(3), prepare=watch)
    check(outcome, "EAGLE3")
    assert set(outcome.modes) == set(Mode)


def test_with_penalties_the_engine_keeps_its_order() -> None:
    """It counts emitted tokens for them when it prepares a step."""
    requests = [
        Request([token, token + 1], max_new_tokens=40, sampling={"frequency_penalty": 0.3})
        for token in (10, 20)
    ]
    outcome = run(
        requests, "EAGLE3", fixed(Mode.SPECULATE), prepare=watch, config={"exactness": "warn"}
    )
    assert_settled(outcome)
    passages = [Passage(**found) for found in outcome.notes["passages"]]
    assert len(passages) > 5
    assert all(one.asked[:1] == ["host waits"] and one.copied for one in passages)
