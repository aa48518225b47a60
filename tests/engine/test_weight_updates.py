"""New weights for the target while the server runs, between modes and in the middle of a gap.

Afterwards answers are those of a server that was started with the new weights, or, where the engine
keeps the old KV, of a server without speculation that was updated at the same token. Weights come
as tensors for the target alone: from a file SGLang 0.5.12.post1 loads the target's weights into the
draft as well, and ends with an exception when they do not fit (speculative/eagle_worker_v2.py:1231,
with its own worker too).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from draft_sync_cases import ROOM, follow, off_until
from harness import EngineDriver, ModelPaths, Request, Result, run_scenario
from runs import (
    OnTick,
    Prepare,
    Run,
    assert_books_balance,
    assert_settled,
    periodic,
    reference,
    run,
    run_plain,
)
from workloads import models, text, workload

from specswitch.control.decision import Mode

NEW_TOKENS = 60
#: Passes of the scheduler's loop; far more than a round needs.
ROUND = 400
#: Batches of any kind that have run when requests get new weights: their gap is some 20 positions.
MIDDLE = 25


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained target with some noise on its weights, enough for other answers."""
    import torch
    from safetensors.torch import load_file, save_file

    directory = tmp_path_factory.mktemp("changed") / "target"
    shutil.copytree(models("EAGLE3").target, directory)
    noise = torch.Generator().manual_seed(5)
    weights = {
        name: weight
        + 0.4 * weight.std() * torch.randn(weight.shape, generator=noise) * (weight.dim() > 1)
        for name, weight in load_file(directory / "model.safetensors").items()
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


def request_for(directory: Path, *, flush: bool) -> Any:
    """Body of ``POST /update_weights_from_tensor``.

    To be made before the first update: from then on the engine's pickling of tensors knows GPU
    tensors only (utils/patch_torch.py:74), in the process that was updated.
    """
    from safetensors.torch import load_file
    from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
    from sglang.srt.utils import MultiprocessingSerializer

    tensors = list(load_file(directory / "model.safetensors").items())
    return UpdateWeightsFromTensorReqInput(
        [MultiprocessingSerializer.serialize(tensors)],
        flush_cache=flush,
        disable_draft_model=True,
    )


def update(scheduler: Any, request: Any) -> None:
    """What the scheduler does with it."""
    reply = scheduler.update_weights_from_tensor(request)
    assert reply.success, reply.message


def pause(scheduler: Any, mode: str) -> None:
    """What ``POST /pause_generation`` has the scheduler do."""
    from sglang.srt.managers.io_struct import PauseGenerationReqInput

    scheduler.pause_generation(PauseGenerationReqInput(mode))


def go_on(scheduler: Any) -> None:
    """What ``POST /continue_generation`` has the scheduler do."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput

    scheduler.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))


def served_by(directory: Path, requests: Sequence[Request]) -> list[Result]:
    """Answers of a server without speculation, started with these weights."""

    def serve() -> list[Result]:
        return EngineDriver(None, models=ModelPaths(directory, {}), **ROOM).generate(requests)

    return run_scenario(serve)


def tokens(results: Sequence[Result]) -> list[list[int]]:
    return [result.output_ids for result in results]


def check(outcome: Run) -> None:
    assert_settled(outcome)
    assert_books_balance(outcome)


def test_after_an_update_between_requests_answers_are_those_of_the_new_weights(
    changed: Path,
) -> None:
    rounds = (models("EAGLE3").target, changed, models("EAGLE3").target)

    def at_start_of_round(_driver: EngineDriver, _notes: dict[str, Any]) -> OnTick:
        to_come = [request_for(directory, flush=True) for directory in rounds]

        def on_tick(driver: EngineDriver) -> None:
            if to_come and driver.tick == ROUND * (len(rounds) - len(to_come) + 1) - 1:
                update(driver.scheduler, to_come.pop(0))

        return on_tick

    once = workload("at_once", "EAGLE3")
    requests = [
        Request(one.input_ids, one.max_new_tokens, arrive=ROUND * number)
        for number in range(len(rounds) + 1)
        for one in once
    ]
    outcome = run(requests, "EAGLE3", periodic(3), prepare=at_start_of_round)
    old, new = tokens(reference("at_once", "EAGLE3")), tokens(served_by(changed, once))
    assert old != new
    # As started, after an update with the same weights, with new ones, with the old ones again.
    assert tokens(outcome.results) == [*old, *old, *new, *old]
    # What weights of before have computed is found in no cache.
    cached = [result.cached_tokens for result in outcome.results]
    assert cached == cached[: len(once)] * (len(rounds) + 1)
    check(outcome)


def six(count: int = NEW_TOKENS) -> list[Request]:
    return [
        Request(list(prompt), count, rid=f"r{n}") for n, prompt in enumerate(text("EAGLE3")[:6])
    ]


def in_the_middle(act: Callable[[Any], None]) -> Prepare:
    """Once, when so many batches have run; notes what was generated and missed by then."""

    def prepare(driver: EngineDriver, notes: dict[str, Any]) -> OnTick:
        def on_tick(driver: EngineDriver) -> None:
            scheduler = driver.scheduler
            if "before" in notes or scheduler.forward_ct < MIDDLE:
                return
            requests = list(scheduler.running_batch.reqs)
            sync = getattr(driver.worker, "sync", None)
            notes["pending"] = sync.counts.pending if sync else 0
            act(scheduler)
            notes["before"] = {one.rid: list(one.output_ids) for one in requests}

        return on_tick

    return prepare


def switched(prepare: Prepare, **server_args: Any) -> Run:
    """Target-only until well after the middle, then speculation."""
    return run(
        six(),
        "EAGLE3",
        periodic(1_000_000),
        prepare=follow(off_until(MIDDLE + 5), prepare),
        **(ROOM | server_args),
    )


def test_requests_that_go_on_with_old_kv_get_the_answers_of_a_server_without_speculation(
    changed: Path,
) -> None:
    def in_place(scheduler: Any) -> None:
        pause(scheduler, "in_place")
        update(scheduler, request_for(changed, flush=False))
        go_on(scheduler)

    mine = switched(in_the_middle(in_place))
    plain = run_plain(six(), "EAGLE3", in_the_middle(in_place), **ROOM)
    assert mine.notes["before"] == plain.notes["before"]
    assert mine.notes["pending"] > 0
    assert tokens(mine.results) == tokens(plain.results)
    assert tokens(mine.results) != tokens(run_plain(six(), "EAGLE3", **ROOM).results)
    assert min(mine.tokens(mode) for mode in Mode) > 0
    check(mine)


def test_requests_that_are_retracted_for_an_update_go_on_with_the_new_weights(
    changed: Path,
) -> None:
    def retracted(scheduler: Any) -> None:
        pause(scheduler, "retract")
        # The engine flushes nothing while requests wait (managers/scheduler.py:3444).
        update(scheduler, request_for(changed, flush=False))
        go_on(scheduler)

    mine = switched(in_the_middle(retracted), disable_radix_cache=True)
    before = mine.notes["before"]
    assert mine.notes["pending"] > 0
    # Retracted with what the draft had missed, which is worth nothing with the prefill to come.
    assert mine.snapshot["draft_sync"]["discarded"] >= mine.notes["pending"]
    rest = [
        Request([*one.input_ids, *before[one.rid]], NEW_TOKENS - len(before[one.rid]))
        for one in six()
    ]
    expected = [
        before[one.rid] + result.output_ids
        for one, result in zip(six(), served_by(changed, rest), strict=True)
    ]
    assert tokens(mine.results) == expected
    assert tokens(mine.results) != tokens(run_plain(six(), "EAGLE3", **ROOM).results)
    assert min(mine.tokens(mode) for mode in Mode) > 0
    assert mine.unavailable_slots == 0
    check(mine)
