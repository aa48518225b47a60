"""Two tensor-parallel ranks with a planted difference of opinion: told, and not a hang.

The ranks exchange partial sums in each forward (gloo, on the CPU), and a speculative step has more
of them than a target-only one: ranks in different modes wait for each other for ever, or get
partial sums of another size.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import EngineDriver, ScenarioCrashed, import_engine, run_scenario
from harness.http_server import HttpServer
from harness.ports import reserve_port
from requests import ConnectionError
from runs import OnTick, periodic, reference
from test_http import ARGUMENTS, PROMPTS
from workloads import models, workload

from specswitch.control.decision import Mode
from specswitch.engine import compat, ranks
from specswitch.engine.errors import RanksDisagree

ENDED = 7
#: Pass of the scheduler's loop at which one rank gets another opinion; by then steps are under way.
WHEN = 30


def on_both_ranks(call: Callable[[int], Any]) -> list[Any]:
    """What `call` returns or raises on each rank, each in a process of its own."""
    import_engine()

    def on_rank(rank: int) -> Any:
        try:
            return run_scenario(call, rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(on_rank, range(2)))


def start(rank: int, port: int, *, debug: bool) -> EngineDriver:
    cores = sorted(os.sched_getaffinity(0))
    # The engine wants to be told the cores of each rank (model_executor/model_runner.py:3100).
    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = f"{cores[0]}|{cores[-1]}"
    os.environ["SPECSWITCH_DEBUG"] = "1" if debug else "0"
    return EngineDriver(
        "EAGLE3",
        "specswitch",
        {"policy": periodic(2)},
        models=models("EAGLE3"),
        rank=rank,
        tp_size=2,
        nccl_port=port,
    )


def plant(rank: int, driver: EngineDriver) -> OnTick:
    """Rank 1 alone hears an operator."""

    def on_tick(driver: EngineDriver) -> None:
        if rank == 1 and driver.tick == WHEN:
            driver.worker.controller.override(Mode.TARGET_ONLY)

    return on_tick


def test_ranks_that_agree_find_that_they_do() -> None:
    port = reserve_port()

    def serve(rank: int) -> tuple[list[list[int]], list[tuple[int, str, str]], int, int]:
        driver = start(rank, port, debug=False)
        decisions = []
        controller = driver.worker.controller
        decide = controller.decide

        def recorded(sample: Any) -> Any:
            decision = decide(sample)
            decisions.append((decision.step, str(decision.mode), str(decision.reason)))
            return decision

        controller.decide = recorded
        answers = [result.output_ids for result in driver.generate(workload("staggered", "EAGLE3"))]
        last = controller.last.step
        while driver.worker.snapshot()["ranks"]["compared_step"] != last:
            time.sleep(0.05)
        return answers, decisions, last, driver.worker.snapshot()["ranks"]["size"]

    one, other = on_both_ranks(serve)
    assert one == other
    answers, decisions, last, size = one
    assert answers == [result.output_ids for result in reference("staggered", "EAGLE3")]
    assert [step for step, _, _ in decisions] == list(range(last + 1))
    assert {mode for _, mode, _ in decisions} == set(map(str, Mode))
    assert size == 2


def test_in_debug_mode_a_difference_is_told_before_its_step_is_launched() -> None:
    port = reserve_port()

    def serve(rank: int) -> None:
        driver = start(rank, port, debug=True)
        driver.generate(workload("staggered", "EAGLE3"), plant(rank, driver))

    problems = on_both_ranks(serve)
    assert {type(problem) for problem in problems} == {RanksDisagree}
    (text,) = {str(problem) for problem in problems}
    assert "rank 0: speculate at step" in text
    assert "rank 1: target_only at step" in text


def test_ranks_whose_forward_hangs_or_fails_say_why_and_end_the_server(tmp_path: Path) -> None:
    port = reserve_port()

    def serve(rank: int) -> None:
        file = tmp_path / f"log{rank}"
        logging.getLogger("specswitch").addHandler(logging.FileHandler(file))

        def end() -> None:
            (tmp_path / f"ended{rank}").touch()
            # Ended by one parent in a server; here the other rank would see a lost connection.
            while not (tmp_path / f"ended{1 - rank}").exists():
                time.sleep(0.05)
            os._exit(ENDED)

        compat.release().end_server = end
        # Machines that run tests are slow at times.
        ranks.EXPLAIN_S = 120
        driver = start(rank, port, debug=False)
        driver.generate(workload("staggered", "EAGLE3"), plant(rank, driver))

    problems = on_both_ranks(serve)
    assert {type(problem) for problem in problems} == {ScenarioCrashed}
    assert {str(problem).rpartition(": ")[2] for problem in problems} == {f"exit status {ENDED}"}
    for rank in range(2):
        (line,) = (tmp_path / f"log{rank}").read_text().splitlines()
        assert "rank 0: speculate at step" in line
        assert "rank 1: target_only at step" in line
        assert "(override; " in line


# Another plug-in of the engine's: at one step rank 1 alone hears an operator.
PLUGIN = """
from specswitch.control.controller import Controller


def register():
    import torch.distributed as dist

    from specswitch.engine import ranks

    # Machines that run tests are slow at times.
    ranks.EXPLAIN_S = 120
    decide = Controller.decide

    def other_opinion(self, sample):
        if sample.step == 20 and dist.get_rank() == 1:
            self.override("target_only")
        return decide(self, sample)

    Controller.decide = other_opinion
"""


def install_plugin(folder: Path) -> None:
    """Make the plug-in one that Python finds when `folder` is on its path."""
    (folder / "planted.py").write_text(PLUGIN)
    about = folder / "planted-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[sglang.srt.plugins]\nplanted = planted:register\n")


def test_a_server_whose_ranks_disagree_ends_with_the_cause_in_its_log(tmp_path: Path) -> None:
    install_plugin(tmp_path)
    config = tmp_path / "worker.yaml"
    config.write_text("policy: {kind: fixed, mode: speculate}\n")
    arguments = [*ARGUMENTS, "--speculative-worker-config", str(config), "--tp-size", "2"]
    cores = sorted(os.sched_getaffinity(0))
    with HttpServer(
        arguments,
        tmp_path / "log",
        PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]),
        SGLANG_CPU_OMP_THREADS_BIND=f"{cores[0]}|{cores[-1]}",
    ) as server:
        server.wait_for(server.is_healthy)
        with pytest.raises(ConnectionError):
            server.post(
                "/generate",
                {
                    "text": PROMPTS[0],
                    "sampling_params": {"max_new_tokens": 200, "ignore_eos": True},
                },
            )
        server.wait_until_gone()
    lines = [line for line in server.log.read_text().splitlines() if "decided differently" in line]
    assert lines
    assert "rank 0: speculate at step 20 (fixed; " in lines[0]
    assert "rank 1: target_only at step 20 (override; " in lines[0]
