"""Ranks that decide differently find out, at whatever step and however far apart they are."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from specswitch.control.decision import Decision, Mode, Reason
from specswitch.control.load import LoadSample
from specswitch.engine import ranks as module
from specswitch.engine.errors import RanksDisagree
from specswitch.engine.ranks import EVERY, KEPT, ComparedBefore, ComparedBehind, make_ranks

torch = pytest.importorskip("torch")

SPECULATE = (Mode.SPECULATE, Reason.STEADY)
TARGET_ONLY = (Mode.TARGET_ONLY, Reason.WAITING_HIGH)
OVERRIDDEN = (Mode.TARGET_ONLY, Reason.OVERRIDE)


class Meeting:
    """A process group of threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._given: list[Any] = [None] * size
        self._all_here = threading.Barrier(size)
        self._here = threading.local()

    def size(self) -> int:
        return self._size

    def enter(self, rank: int) -> None:
        """The calling thread is this rank."""
        self._here.rank = rank

    def leave(self) -> None:
        """This rank's process has ended."""
        self._all_here.abort()

    def gather(self, places: list[Any], mine: Any) -> None:
        try:
            self._given[self._here.rank] = mine
            self._all_here.wait()
            for rank, value in enumerate(self._given):
                if isinstance(value, torch.Tensor):
                    places[rank].copy_(value)
                else:
                    places[rank] = value
            self._all_here.wait()
        except threading.BrokenBarrierError:
            raise RuntimeError("Connection closed by peer") from None


@pytest.fixture(autouse=True)
def _meet(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    for name in ("all_gather", "all_gather_object"):
        monkeypatch.setattr(dist, name, lambda places, mine, group: group.gather(places, mine))


def sample(step: int) -> LoadSample:
    return LoadSample(step, waiting=step % 7, running=3, kv_use=0.25)


def decision(step: int, kind: tuple[Mode, Reason]) -> Decision:
    return Decision(step, *kind, switched=False)


def together(size: int, call: Callable[[int, Meeting], Any]) -> list[Any]:
    """What `call` returns or raises on each rank."""
    meeting = Meeting(size)

    def on_rank(rank: int) -> Any:
        meeting.enter(rank)
        try:
            return call(rank, meeting)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(on_rank, range(size)))


def behind(rank_steps: Sequence[Sequence[tuple[Mode, Reason]]]) -> list[Any]:
    """Ranks that decided this, and compare once: the compared step, or the exception of each."""

    def call(rank: int, meeting: Meeting) -> Any:
        ranks = ComparedBehind(meeting, end_server=lambda: None)
        for step, kind in enumerate(rank_steps[rank]):
            ranks.note(decision(step, kind), sample(step))
        ranks.compare()
        return ranks.snapshot()["compared_step"]

    return together(len(rank_steps), call)


def test_equal_decisions_are_equal_as_far_as_all_ranks_have_got() -> None:
    steps = [SPECULATE, TARGET_ONLY] * KEPT
    assert behind([steps, steps[:-1], steps[:-5]]) == [len(steps) - 6] * 3


def test_ranks_that_have_decided_nothing_agree() -> None:
    assert behind([[], []]) == [None, None]
    assert behind([[SPECULATE], []]) == [None, None]


@pytest.mark.parametrize("wrong", [0, 1, EVERY, KEPT - 1, KEPT, 3 * KEPT])
@pytest.mark.parametrize("later", [0, 1, EVERY])
def test_the_first_step_that_differs_is_named_with_what_each_rank_decided(
    wrong: int, later: int
) -> None:
    common = [SPECULATE, TARGET_ONLY] * (2 * KEPT)
    right = [*common[:wrong], SPECULATE, *[SPECULATE] * later]
    other = [*common[:wrong], OVERRIDDEN, *[SPECULATE] * later]
    problems = behind([right, right, other])
    assert {type(problem) for problem in problems} == {RanksDisagree}
    (text,) = {str(problem) for problem in problems}
    assert f"rank 1: speculate at step {wrong} (steady; waiting {wrong % 7}, running 3" in text
    assert f"rank 2: target_only at step {wrong} (override; waiting {wrong % 7}, running 3" in text
    assert "earlier" not in text


def test_another_reason_for_the_same_mode_is_a_difference() -> None:
    problems = behind([[TARGET_ONLY], [OVERRIDDEN]])
    assert all(isinstance(problem, RanksDisagree) for problem in problems)


def test_a_difference_is_found_when_its_step_is_long_forgotten() -> None:
    rest = [SPECULATE] * (3 * KEPT)
    problems = behind([[SPECULATE, *rest], [TARGET_ONLY, *rest]])
    assert all(isinstance(problem, RanksDisagree) for problem in problems)
    assert str(problems[0]).endswith(", or at an earlier step")


def test_ranks_too_far_apart_for_a_common_step_say_nothing() -> None:
    steps = [SPECULATE] * (2 * KEPT)
    assert behind([steps[: KEPT + 5], steps[:6]]) == [5, 5]
    assert behind([steps[: KEPT + 6], steps[:6]]) == [None, None]


class Ended(threading.Event):
    """What ends the server; a call says so."""

    __call__ = threading.Event.set


def test_ranks_that_hang_in_a_step_end_the_server_with_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    meeting, ended = Meeting(2), [Ended(), Ended()]

    def compare(rank: int) -> None:
        meeting.enter(rank)
        ranks[rank]._run()

    ranks = [ComparedBehind(meeting, end_server=end) for end in ended]
    for one, kind in zip(ranks, (SPECULATE, TARGET_ONLY), strict=True):
        one.note(decision(0, SPECULATE), sample(0))
        one.note(decision(1, kind), sample(1))
    # No further step: in the forward of this one the ranks wait for each other.
    with caplog.at_level(logging.CRITICAL), ThreadPoolExecutor(2) as threads:
        list(threads.map(compare, range(2)))
    assert all(end.is_set() for end in ended)
    assert len(caplog.messages) == 2
    assert "rank 0: speculate at step 1 (steady" in caplog.messages[0]
    assert caplog.messages[0].endswith("the server ends")


def test_a_step_that_fails_waits_until_the_cause_has_been_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One rank fails, the other hangs: a comparison needs both."""
    monkeypatch.setattr(module, "PAUSE_S", 0.5)
    monkeypatch.setattr(module, "EXPLAIN_S", 60)
    meeting, ended = Meeting(2), Ended()
    ranks = [ComparedBehind(meeting, end_server=ended) for _ in range(2)]
    for rank, one in enumerate(ranks):
        compare = one.compare
        monkeypatch.setattr(one, "compare", lambda r=rank, c=compare: (meeting.enter(r), c()))
        one.note(decision(0, TARGET_ONLY if rank else SPECULATE), sample(0))
        one.start()
    with pytest.raises(RuntimeError, match="sizes differ"), ranks[0]:
        raise RuntimeError("sizes differ")
    assert ended.is_set()
    assert "decided differently" in caplog.messages[0]


def test_every_so_many_steps_ranks_compare_without_waiting_for_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", None)
    compared: list[int] = []
    told = threading.Event()
    ranks = ComparedBehind(Meeting(1), end_server=lambda: None)

    def compare() -> None:
        compared.append(ranks._digest)
        told.set()

    monkeypatch.setattr(ranks, "compare", compare)
    ranks.start()
    for step in range(1, 2 * EVERY + 1):
        ranks.note(decision(step, SPECULATE), sample(step))
        if step % EVERY == 0:
            told.wait()
            told.clear()
    assert len(compared) == 2


def test_a_rank_that_is_gone_is_told_and_ends_nothing_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def call(rank: int, meeting: Meeting) -> None:
        if rank == 1:
            meeting.leave()
        else:
            ComparedBehind(meeting, end_server=lambda: pytest.fail("ended the server"))._run()

    assert together(2, call) == [None, None]
    (message,) = caplog.messages
    assert "no longer compare" in message
    assert "Connection closed" in message


def test_before_a_step_a_difference_is_raised_on_all_ranks() -> None:
    def call(rank: int, meeting: Meeting) -> Any:
        ranks = ComparedBefore(meeting)
        ranks.note(decision(0, SPECULATE), sample(0))
        assert ranks.snapshot() == {"size": 3, "compared_step": 0}
        ranks.note(decision(1, TARGET_ONLY if rank == 2 else SPECULATE), sample(1))

    problems = together(3, call)
    assert {type(problem) for problem in problems} == {RanksDisagree}
    (text,) = {str(problem) for problem in problems}
    assert "rank 0: speculate at step 1" in text
    assert "rank 2: target_only at step 1" in text


def test_before_a_step_unequal_loads_are_a_difference_even_if_the_decisions_agree() -> None:
    def call(rank: int, meeting: Meeting) -> None:
        ComparedBefore(meeting).note(decision(0, SPECULATE), sample(5 + rank))

    assert all(isinstance(problem, RanksDisagree) for problem in together(2, call))


def test_before_a_step_a_rank_that_does_not_decide_is_told() -> None:
    def call(rank: int, meeting: Meeting) -> None:
        if rank == 1:
            meeting.leave()
        else:
            ComparedBefore(meeting).note(decision(4, SPECULATE), sample(4))

    problem, _ = together(2, call)
    assert isinstance(problem, RanksDisagree)
    assert str(problem).startswith("this rank decided speculate at step 4 (steady")
    assert "does not say" in str(problem)


@pytest.mark.parametrize("debug", [False, True])
def test_a_single_rank_has_nothing_to_compare(debug: bool) -> None:
    ranks = make_ranks([0], debug=debug, end_server=lambda: None)
    ranks.note(decision(0, SPECULATE), sample(0))
    assert ranks.snapshot() == {"size": 1, "compared_step": None}
