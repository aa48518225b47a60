"""The event log: what is written when, rotation, and a file that cannot be written to."""

from __future__ import annotations

import json
import logging
import os
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specswitch.config import Config
from specswitch.control import Mode, build_controller
from specswitch.control.load import LoadSample
from specswitch.engine.containment import Containment
from specswitch.engine.event_log import open_event_log, replica_path
from specswitch.engine.stats import StepStats


class Worker:
    """As much of a switching worker as the log reads; `run` stands for its decode steps."""

    def __init__(self, path: Path | None, *, tp_rank: int = 0, period: int = 10, **keys: Any):
        log = {"path": None if path is None else str(path), **keys}
        policy = {"kind": "periodic", "period": period}
        self.config = Config.model_validate({"policy": policy, "event_log": log})
        self.steering = SimpleNamespace(config=self.config)
        self.target_worker = SimpleNamespace(tp_rank=tp_rank)
        self.controller = build_controller(self.config)
        self.containment = Containment()
        self.stats = StepStats()
        self.load: LoadSample | None = None
        self.log = open_event_log(self, None)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = 0 if self.load is None else self.load.step + 1
            self.load = LoadSample(step, 5, 3, 0.25)
            mode = self.controller.decide(self.load).mode
            self.stats.count_step(mode)
            self.stats.count_result(mode, 3, 3)
            if self.log is not None:
                self.log.after_step()


def lines(path: Path, event: str | None = None) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in found if event in (None, line["event"])]


def test_each_switch_is_a_line_with_its_cause_and_the_time(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "events.jsonl", sample_steps=0)
    worker.run(25)
    start, *switches = lines(tmp_path / "events.jsonl")
    assert start["event"] == "start"
    assert Config.model_validate(start["config"]) == worker.config
    assert [(s["step"], s["from"], s["to"], s["reason"]) for s in switches] == [
        (10, "speculate", "target_only", "periodic"),
        (20, "target_only", "speculate", "periodic"),
    ]
    for switch in switches:
        assert (switch["waiting"], switch["running"], switch["kv_use"]) == (5, 3, 0.25)
        assert datetime.fromisoformat(switch["time"]).utcoffset() is not None


def test_samples_come_every_so_many_steps_and_round_an_idle_time(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "events.jsonl", period=1000, sample_steps=8)
    worker.run(20)
    for _ in range(3):
        worker.log.idle()
    worker.run(10)
    samples = lines(tmp_path / "events.jsonl", "sample")
    assert [(s["step"], s["running"]) for s in samples] == [
        *((0, 3), (8, 3), (16, 3)),
        *((19, 0), (20, 3), (28, 3)),
    ]
    last = samples[-1]
    assert (last["mode"], last["reason"], last["waiting"]) == ("speculate", "periodic", 5)
    assert last["steps"] == {"speculate": 29, "target_only": 0}
    assert last["tokens"] == {"speculate": 87, "target_only": 0}
    assert last["acceptance_length"] == 1.0


def test_a_server_that_never_decoded_has_nothing_to_sample(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "events.jsonl")
    worker.log.idle()
    assert [line["event"] for line in lines(tmp_path / "events.jsonl")] == ["start"]


def test_a_restarted_server_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        Worker(tmp_path / "events.jsonl", sample_steps=0).run(12)
    events = [line["event"] for line in lines(tmp_path / "events.jsonl")]
    assert events == ["start", "switch", "start", "switch"]


def test_only_rank_0_writes_and_only_when_asked(tmp_path: Path) -> None:
    assert Worker(None).log is None
    assert Worker(tmp_path / "events.jsonl", tp_rank=1).log is None
    assert list(tmp_path.iterdir()) == []


def test_replicas_have_files_of_their_own() -> None:
    assert replica_path("logs/events.jsonl", None) == Path("logs/events.jsonl")
    assert replica_path("logs/events.jsonl", 1) == Path("logs/events.dp1.jsonl")
    assert replica_path("events", 0) == Path("events.dp0")


def test_files_rotate_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    Worker(path, period=1, sample_steps=1, max_bytes=4096, backups=2).run(200)
    files = [path, *(tmp_path / f"events.jsonl.{n}" for n in (1, 2))]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    steps = [line["step"] for file in reversed(files) for line in lines(file)]
    assert steps == sorted(steps)
    assert steps[-1] == 199
    assert all(file.stat().st_size <= 4096 for file in files)


def assert_harmless(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    worker.run(30)
    assert worker.controller.mode is Mode.SPECULATE
    assert worker.stats.switches == 0 or worker.controller.counters.listener_errors == 0
    assert worker.containment.errors == 1 + 30 + 2  # start, samples, switches
    assert len([record for record in caplog.records if record.exc_info]) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_logged_once_and_counted(caplog) -> None:
    with caplog.at_level(logging.ERROR):
        assert_harmless(Worker(Path("/dev/full"), sample_steps=1), caplog)
    assert "No space left on device" in caplog.text


def test_a_directory_that_is_not_there_is_logged_once_and_counted(tmp_path, caplog) -> None:
    with caplog.at_level(logging.ERROR):
        assert_harmless(Worker(tmp_path / "none" / "events.jsonl", sample_steps=1), caplog)
    assert "No such file or directory" in caplog.text


def test_the_log_is_taken_up_again_once_it_can_be_written_to(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    worker = Worker(folder / "events.jsonl", sample_steps=1)
    worker.run(5)
    folder.mkdir()
    worker.run(5)
    assert [line["step"] for line in lines(folder / "events.jsonl")] == [5, 6, 7, 8, 9]
