"""Two tensor-parallel ranks carry out every command at the same step.

The ranks exchange partial sums in each forward (gloo, on the CPU), and the two modes run different
ones: ranks in different modes would hang or get nonsense. Both ranks report metrics here, so that
their counters can be compared.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator

import httpx
import pytest
from live_server import Load, generate, live_server
from prometheus_client.parser import text_string_to_metric_families

from specswitch.cli.server_client import Refused, ServerClient
from specswitch.config_files import ready_configs

# A clock of its own each rank has; the rest is decided by equal inputs.
OF_ONE_RANK = {"specswitch_decode_seconds_total"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cores = sorted(os.sched_getaffinity(0))
    with live_server(
        tmp_path_factory.mktemp("server"),
        ready_configs()["cpu-demo"],
        *("--tp-size", "2", "--enable-metrics", "--enable-metrics-for-all-schedulers"),
        # The engine wants to be told the cores of each rank (model_executor/model_runner.py:3100).
        SGLANG_CPU_OMP_THREADS_BIND=f"{cores[0]}|{cores[-1]}",
        SPECSWITCH_DEBUG="1",
    ) as address:
        yield address


def by_rank(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """specswitch's metrics of each rank."""
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    text = httpx.get(f"{url}/metrics", timeout=None).raise_for_status().text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("specswitch_") and sample.name not in OF_ONE_RANK:
                labels = {k: v for k, v in sample.labels.items() if k != "tp_rank"}
                key = (sample.name, *map(str, sorted(labels.items())))
                found[sample.labels["tp_rank"]][key] = sample.value
    return found


def test_ranks_follow_every_command_at_the_same_step(url: str) -> None:
    expected = generate(url)["output_ids"]
    with ServerClient(url, timeout_s=600) as client, Load(url, 5) as load:
        for turn in range(12):
            client.command({"mode": ("target_only", "speculate", "auto")[turn % 3]})
            if turn % 4 == 0:
                client.command({"set": {"policy.waiting.enter": 1 + turn, "guard.votes": 1}})
            with pytest.raises(Refused):
                client.command({"set": {"policy.waiting.enter": -turn}})
            answered = len(load.answers)
            while len(load.answers) < answered + 4:
                client.states()
        client.command({"reset": True})
        (state,) = client.states()
    # In debug mode ranks compare each decision before its step is launched.
    assert state["ranks"] == {"size": 2, "compared_step": state["step"]}
    answers = {tuple(answer["output_ids"]) for answer in load.answers}
    assert answers == {tuple(expected)}
    ranks = settled(url)
    assert ranks["0"] == ranks["1"]
    switches = [v for k, v in ranks["0"].items() if k[0] == "specswitch_switches_total"]
    assert sum(switches) >= 8
    commands = {k[1:]: v for k, v in ranks["1"].items() if k[0] == "specswitch_commands_total"}
    assert sorted(commands.values()) == [12, 16]


def settled(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The metrics once both ranks have fallen idle and told all."""
    before: dict[str, dict[tuple[str, ...], float]] = {}
    while True:
        found = by_rank(url)
        with ServerClient(url, timeout_s=600) as client:
            steps = client.states()[0]["steps"]
        told = sum(v for k, v in found["0"].items() if k[0] == "specswitch_decode_steps_total")
        if found == before and told == sum(steps.values()):
            return found
        before = found
        time.sleep(0.5)
