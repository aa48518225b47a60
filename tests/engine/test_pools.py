"""KV slots, request rows and gaps when there is hardly room: whoever leaves in whatever mode.

`Books` looks at every page, row and gap at each pass of the scheduler's loop, in all engine tests.
The runs here make it hard: a pool that overflows, requests that are retracted in each mode, clients
that leave around the step of a switch, and a second round after ``flush_cache``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from harness import EngineDriver, Request
from harness.invariants import Books, BooksDoNotBalance
from runs import (
    OnTick,
    Run,
    assert_books_balance,
    assert_same_answers,
    assert_settled,
    fixed,
    periodic,
    reference,
    run,
)
from workloads import workload

from specswitch.control.decision import Mode

Undo = Callable[[], None]

#: Long after the first round has ended.
SECOND_ROUND = 600
EACH_ROUND = 8

_LOAD = {
    "kind": "queue_depth",
    "waiting": {"enter": 2, "resume": 1},
    "running": None,
    "kv_use": {"enter": 0.9, "resume": 0.8},
}
#: Name to (policy, further configuration).
PATTERNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "flips-1": (periodic(1), {}),
    "flips-3": (periodic(3), {}),
    "flips-7": (periodic(7), {}),
    "speculate": (fixed(Mode.SPECULATE), {}),
    "target_only": (fixed(Mode.TARGET_ONLY), {}),
    "by-load": (
        _LOAD,
        {"guard": {"dwell_steps": 0, "votes": 1, "max_switches_per_1000_steps": 1000}},
    ),
}


def two_rounds() -> list[Request]:
    """The same long answers twice."""
    once = workload("long_answers", "EAGLE3")
    return [
        replace(request, rid=f"{name} {number}", arrive=request.arrive + start)
        for name, start in (("first", 0), ("second", SECOND_ROUND))
        for number, request in enumerate(once)
    ]


def flush_between(driver: EngineDriver, notes: dict[str, Any]) -> OnTick:
    """Flush the cache when the first round is over; slots and rows must all be free then.

    In the first round the youngest request of the batch leaves while the step of a switch runs, and
    again one and two steps after switches.
    """
    from sglang.srt.managers.io_struct import AbortReq, FlushCacheReqInput

    scheduler, controller = driver.scheduler, driver.worker.controller
    books = Books(scheduler)
    notes |= {"aborted": [], "flushed": 0}
    switches: list[int] = []
    controller.add_listener(lambda switch: switches.append(switch.step))
    offsets = [0, 1, 2]

    def abort_near_a_switch() -> None:
        if not offsets:
            return
        running = scheduler.running_batch.reqs
        # Where the mode never flips a client leaves at some step all the same.
        step = controller.last.step
        due = step == switches[-1] + offsets[0] if switches else step >= 40
        if due and len(running) > 2:
            del offsets[0]
            victim = running[-1].rid
            notes["aborted"].append(victim)
            scheduler.abort_request(AbortReq(rid=victim))

    def on_tick(driver: EngineDriver) -> None:
        if driver.tick < SECOND_ROUND // 2:
            abort_near_a_switch()
        elif not notes["flushed"] and driver.tick < SECOND_ROUND and scheduler.is_fully_idle():
            assert scheduler.flush_cache_wrapped(FlushCacheReqInput()).success
            books.check_empty()
            notes["flushed"] = 1

    return on_tick


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_slot_is_lost_or_given_twice_when_there_is_hardly_room(
    pattern: str, page_size: int
) -> None:
    policy, config = PATTERNS[pattern]
    # Each page size with and without a prefix cache, each pattern too.
    radix = (list(PATTERNS).index(pattern) + page_size) % 2 == 0
    outcome = run(
        two_rounds(),
        "EAGLE3",
        policy,
        config={"draft_sync": {"window": 8}, **config},
        prepare=flush_between,
        # Room for about half of the requests.
        max_total_tokens=512 if page_size < 64 else 640,
        schedule_conservativeness=0.01,
        page_size=page_size,
        disable_radix_cache=not radix,
    )
    assert_same_answers_as_far_as_they_go(outcome)
    assert_settled(outcome)
    assert_books_balance(outcome)
    assert outcome.notes["flushed"]
    assert outcome.fullest > 0.9
    assert sum(result.retractions for result in outcome.results) >= 3
    assert len(outcome.notes["aborted"]) >= 1
    if pattern not in ("speculate", "target_only"):
        assert {mode for mode, _ in outcome.stretches} == set(Mode)
    if not radix:
        assert outcome.unavailable_slots == 0


def assert_same_answers_as_far_as_they_go(outcome: Run) -> None:
    """Whole answers; of those who left, the beginning."""
    expected = reference("long_answers", "EAGLE3")
    for number, mine in enumerate(outcome.results):
        theirs = expected[number % EACH_ROUND].output_ids
        aborted = mine.finish_reason["type"] == "abort"
        assert aborted == (mine.rid in outcome.notes["aborted"]), mine.rid
        both = min(len(mine.output_ids), len(theirs)) if aborted else None
        assert mine.output_ids[:both] == theirs[:both], mine.rid


def swap(owner: Any, name: str, value: Any) -> Undo:
    """Set an attribute; returns what puts it back."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


def two_slots_change_hands(driver: EngineDriver) -> Undo:
    """One slot lost and another listed twice: the sums are right."""
    allocator = driver.scheduler.token_to_kv_pool_allocator
    pages = allocator.free_pages.clone()
    pages[0] = pages[1]
    return swap(allocator, "free_pages", pages)


def a_slot_is_lost(driver: EngineDriver) -> Undo:
    allocator = driver.scheduler.token_to_kv_pool_allocator
    return swap(allocator, "free_pages", allocator.free_pages[1:])


def a_slot_is_freed_while_it_is_used(driver: EngineDriver) -> Undo:
    table, request = driver.scheduler.req_to_token_pool.req_to_token, oldest(driver)
    allocator = driver.scheduler.token_to_kv_pool_allocator
    used = table[request.req_pool_idx, request.kv_committed_len - 1 : request.kv_committed_len]
    return swap(allocator, "release_pages", used.long())


def two_requests_share_a_slot(driver: EngineDriver) -> Undo:
    table = driver.scheduler.req_to_token_pool.req_to_token
    request, other = driver.scheduler.running_batch.reqs[:2]
    place = request.req_pool_idx, request.kv_allocated_len - 1
    before = table[place].clone()
    table[place] = table[other.req_pool_idx, other.kv_allocated_len - 1]

    def undo() -> None:
        table[place] = before

    return undo


def a_row_is_lost(driver: EngineDriver) -> Undo:
    rows = driver.scheduler.req_to_token_pool
    return swap(rows, "free_slots", rows.free_slots[1:])


def a_row_is_given_away(driver: EngineDriver) -> Undo:
    rows = driver.scheduler.req_to_token_pool
    return swap(rows, "free_slots", [*rows.free_slots, oldest(driver).req_pool_idx])


def more_is_committed_than_allocated(driver: EngineDriver) -> Undo:
    request = oldest(driver)
    return swap(request, "kv_committed_len", request.kv_allocated_len + 1)


def less_is_committed_than_generated(driver: EngineDriver) -> Undo:
    request = oldest(driver)
    return swap(request, "kv_committed_len", request.kv_committed_len - 1)


def a_lock_is_kept(driver: EngineDriver) -> Undo:
    node = oldest(driver).last_node
    return swap(node, "lock_ref", 0)


def a_missed_position_is_not_counted(driver: EngineDriver) -> Undo:
    counts = driver.worker.sync.counts
    return swap(counts, "missed", counts.missed - 1)


def a_gap_goes_beyond_what_is_decoded(driver: EngineDriver) -> Undo:
    mine = gap_of(oldest(driver))
    return swap(mine, "decoded", mine.decoded + 9)


FAULTS = (
    *(two_slots_change_hands, a_slot_is_lost, a_slot_is_freed_while_it_is_used),
    *(two_requests_share_a_slot, a_row_is_lost, a_row_is_given_away),
    *(more_is_committed_than_allocated, less_is_committed_than_generated, a_lock_is_kept),
    *(a_missed_position_is_not_counted, a_gap_goes_beyond_what_is_decoded),
)


def oldest(driver: EngineDriver) -> Any:
    return driver.scheduler.running_batch.reqs[0]


def gap_of(request: Any) -> Any:
    from specswitch.engine.draft_sync import gap

    return gap.find(request)


def test_the_books_notice_each_kind_of_fault_and_only_that() -> None:
    def plant(driver: EngineDriver, notes: dict[str, Any]) -> OnTick:
        books = Books(driver.scheduler)

        def on_tick(driver: EngineDriver) -> None:
            if driver.tick != 30:
                return
            for fault in FAULTS:
                undo = fault(driver)
                try:
                    books.check()
                except BooksDoNotBalance as error:
                    notes[fault.__name__] = str(error)
                undo()
                books.check()

        return on_tick

    outcome = run("at_once", "EAGLE3", fixed(Mode.TARGET_ONLY), prepare=plant)
    assert outcome.notes.keys() == {fault.__name__ for fault in FAULTS}
    assert_same_answers(outcome, reference("at_once", "EAGLE3"))
