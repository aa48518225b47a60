"""What happens to a scheduler from outside, at the worst moment: pauses, idle time, empty batches.

What a request's end does is in test_ends.py, what hardly any memory does in test_pools.py, and a
client that is killed in test_faults_http.py.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from harness import EngineDriver, Request
from runs import (
    OnTick,
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    flip_pattern,
    periodic,
    reference,
    run,
)
from workloads import CHUNK, workload

from specswitch.control.decision import Mode

#: Modes of ``POST /pause_generation`` that reach the scheduler; ``abort``, the third, is carried
#: out before it (managers/tokenizer_manager.py:1500).
PAUSES = ["in_place", "retract"]
PAUSED_PASSES = 5


@pytest.mark.parametrize("period", [1, 4])
def test_a_pause_while_any_kind_of_batch_is_in_flight_changes_no_answer(period: int) -> None:
    def pause(driver: EngineDriver, notes: dict[str, Any]) -> OnTick:
        from sglang.srt.managers.io_struct import (
            ContinueGenerationReqInput,
            PauseGenerationReqInput,
        )

        scheduler, controller = driver.scheduler, driver.worker.controller
        wanted = notes["left"] = [(how, kind) for how in PAUSES for kind in (*Mode, "prefill")]
        paused: list[tuple[int, int]] = []

        def in_flight() -> Mode | str | None:
            if scheduler.last_batch is None or len(scheduler.running_batch.reqs) < 3:
                return None
            return controller.mode if scheduler.last_batch.forward_mode.is_decode() else "prefill"

        def on_tick(driver: EngineDriver) -> None:
            if paused:
                until, launched = paused[0]
                assert scheduler.forward_ct == launched
                if driver.tick == until:
                    scheduler.continue_generation(ContinueGenerationReqInput(False))
                    paused.clear()
            elif driver.tick % 3 == 0 and (kind := in_flight()) is not None:
                here = next((one for one in wanted if one[1] == kind), None)
                if here is not None:
                    wanted.remove(here)
                    scheduler.pause_generation(PauseGenerationReqInput(here[0]))
                    paused.append((driver.tick + PAUSED_PASSES, scheduler.forward_ct))

        return on_tick

    outcome = run(
        "staggered", "EAGLE3", periodic(period), prepare=pause, chunked_prefill_size=CHUNK
    )
    assert outcome.notes["left"] == []
    assert sum(result.retractions for result in outcome.results) >= 6
    assert_same_answers(outcome, reference("staggered", "EAGLE3"))
    assert_settled(outcome)
    assert_books_balance(outcome)
    assert outcome.modes == flip_pattern(period, len(outcome.modes))


@pytest.mark.parametrize("before", list(Mode))
def test_an_engine_that_idles_between_modes_goes_on_in_the_other_one(before: Mode) -> None:
    after = next(mode for mode in Mode if mode is not before)
    later = 600

    def switch_while_idle(driver: EngineDriver, notes: dict[str, Any]) -> OnTick:
        scheduler, controller = driver.scheduler, driver.worker.controller
        controller.override(before)

        def on_tick(driver: EngineDriver) -> None:
            if driver.tick == later - 100:
                assert scheduler.is_fully_idle()
                notes["steps before"] = controller.last.step + 1
            elif driver.tick == later - 50:
                time.sleep(1)
                controller.override(after)

        return on_tick

    # The second half finds the first one's prefixes in the cache.
    once = workload("at_once", "EAGLE3")
    requests = [*once, *(replace(one, arrive=later + one.arrive) for one in once)]
    outcome = run(requests, "EAGLE3", periodic(1_000_000), prepare=switch_while_idle)
    assert_same_answers(outcome, reference_twice())
    assert_settled(outcome)
    assert_books_balance(outcome)
    count = outcome.notes["steps before"]
    assert set(outcome.modes[:count]) == {before}
    assert set(outcome.modes[count:]) == {after}
    assert all(result.cached_tokens for result in outcome.results[len(once) :])


def reference_twice() -> list[Any]:
    return [*reference("at_once", "EAGLE3"), *reference("at_once", "EAGLE3")]


def test_requests_that_end_on_the_step_of_a_switch_get_their_whole_answer() -> None:
    period = 3
    outcome = run("crowd", "EAGLE3", periodic(period), max_running_requests=8)
    assert_same_answers(outcome, reference("crowd", "EAGLE3"))
    assert_settled(outcome)
    assert_books_balance(outcome)
    last = {rid: number for number, step in enumerate(outcome.steps) for rid in step.kept}
    switches = {number for number in last.values() if number and number % period == 0}
    assert {outcome.modes[number] for number in switches} == set(Mode)


def test_no_batch_is_ever_empty() -> None:
    """Also when all clients leave together, again and again.

    Only with data-parallel attention, which is refused, does the engine run empty batches
    (managers/scheduler_dp_attn_mixin.py:260).
    """

    def all_leave(driver: EngineDriver, notes: dict[str, Any]) -> OnTick:
        from sglang.srt.managers.io_struct import AbortReq

        worker = driver.worker
        forward = worker.forward_batch_generation
        notes |= {"decode": [], "prefill": []}

        def recorded(batch: Any) -> Any:
            kind = "decode" if batch.forward_mode.is_decode() else "prefill"
            assert kind == "decode" or batch.forward_mode.is_extend()
            notes[kind].append(len(batch.reqs))
            return forward(batch)

        worker.forward_batch_generation = recorded

        def on_tick(driver: EngineDriver) -> None:
            if driver.tick % 4 == 3:
                driver.scheduler.abort_request(AbortReq(abort_all=True))

        return on_tick

    requests = [
        Request(list(one.input_ids), max_new_tokens=40, arrive=4 * number, abort=4 * number + 3)
        for number, one in enumerate(workload("crowd", "EAGLE3"))
    ]
    outcome = run(requests, "EAGLE3", periodic(1), prepare=all_leave)
    assert all(result.finish_reason["type"] == "abort" for result in outcome.results)
    assert min(outcome.notes["decode"]) >= 1
    assert min(outcome.notes["prefill"]) >= 1
    assert_settled(outcome)
