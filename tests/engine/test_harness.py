"""The harness itself: what goes wrong in a scenario's process is seen in the test."""

from __future__ import annotations

import os
import signal
import socket
import tempfile

import pytest
from harness import EngineDriver, Request, ScenarioCrashed, run_scenario
from harness.driver import NoProgress
from harness.ports import reserve_port

from specswitch.demo.server import HOST


def test_a_scenario_returns_its_result_and_leaves_no_trace():
    seen = []

    def scenario(value):
        seen.append(value)
        return {"value": value}

    assert run_scenario(scenario, 3) == {"value": 3}
    assert seen == []


def test_an_exception_keeps_its_type_and_shows_where_it_was_raised():
    def deep_inside():
        raise KeyError("slot")

    with pytest.raises(KeyError, match="slot") as caught:
        run_scenario(deep_inside)
    assert "in deep_inside" in str(caught.value.__cause__)


def test_a_failed_assertion_fails_the_test():
    def scenario():
        assert 1 + 1 == 3

    with pytest.raises(AssertionError):
        run_scenario(scenario)


def test_an_exception_that_cannot_be_pickled_is_reported_by_its_text():
    class Local(Exception):
        pass

    def scenario():
        raise Local("details")

    with pytest.raises(ScenarioCrashed, match="details"):
        run_scenario(scenario)


def test_a_process_that_dies_is_reported_with_its_signal():
    with pytest.raises(ScenarioCrashed, match="signal 9"):
        run_scenario(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_requests_arrive_and_leave_at_their_ticks():
    def scenario():
        driver = EngineDriver("EAGLE3")
        running = []

        def watch(driver):
            running.append((driver.tick, len(driver.scheduler.running_batch.reqs)))

        results = driver.generate(
            [
                Request([1, 2, 3], max_new_tokens=400),
                Request([4, 5, 6], arrive=30),
                Request([7, 8], arrive=5, abort=12, max_new_tokens=400),
            ],
            on_tick=watch,
        )
        return running, [(r.finish_reason["type"], r.finished_tick) for r in results]

    running, results = run_scenario(scenario)
    assert [tick for tick, _ in running] == list(range(len(running)))
    busy = dict(running)
    assert (busy[4], busy[10], busy[28], busy[36]) == (1, 2, 1, 2)
    assert [reason for reason, _ in results] == ["length", "length", "abort"]
    assert 12 <= results[2][1] <= 14
    assert results[1][1] > 30


def test_a_slot_that_is_not_given_back_is_counted():
    def scenario():
        driver = EngineDriver("EAGLE3")
        lost = []

        def take_one(driver):
            if driver.tick == 3:
                driver.scheduler.token_to_kv_pool_allocator.alloc(1)
            lost.append(driver.lost_slots)

        # The engine's own check finds it too, once it is idle.
        with pytest.raises(ValueError, match="leak"):
            driver.generate([[1, 2, 3]], on_tick=take_one)
        return lost[-1]

    assert run_scenario(scenario) == 1


def test_a_scheduler_that_stops_working_is_an_error_not_an_endless_wait():
    def scenario():
        driver = EngineDriver(None)
        driver.scheduler.get_next_batch_to_run = lambda: None
        driver.scheduler.on_idle = lambda: None
        driver.generate([[1, 2, 3]])

    with pytest.raises(NoProgress, match="unfinished"):
        run_scenario(scenario)


def test_parallel_workers_have_no_port_in_common(monkeypatch):
    given = []
    for worker in ("gw0", "gw1"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        given.append({reserve_port() for _ in range(1000)})
    assert not given[0] & given[1]
    # The system gives out no number below 32768 by itself.
    assert max(given[0] | given[1]) + 10_000 < 32_768


def test_a_port_is_not_given_twice_before_a_server_had_time_to_bind_it():
    ports = [reserve_port() for _ in range(200)]
    assert len(set(ports)) == len(ports)


def test_a_port_in_use_is_passed_over():
    with socket.socket() as taken:
        taken.bind((HOST, reserve_port()))
        taken.listen()
        assert taken.getsockname()[1] not in {reserve_port() for _ in range(1000)}


def test_what_engines_leave_behind_lies_in_a_folder_that_goes_away():
    def scenario():
        EngineDriver(None)
        return tempfile.gettempdir(), os.environ["TMPDIR"], len(os.listdir(tempfile.gettempdir()))

    folder, inherited, files = run_scenario(scenario)
    assert folder == inherited == tempfile.gettempdir()
    assert os.path.basename(folder).startswith("specswitch-")
    assert files >= 5
