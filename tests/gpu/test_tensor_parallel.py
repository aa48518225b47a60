"""Ranks of a tensor-parallel server take the same steps and give the right answers."""

from __future__ import annotations

from typing import Any

import pytest
from checks import assert_books_balance, assert_same_tokens, assert_settled
from scenarios.launch import Servers
from scenarios.plan import SERVERS, TP_SIZES

RUNS = ["first", "flip-1", "flip-3", "speculate", "target-only"]

# TP 1 as well: the same servers, so that a difference is one of tensor parallelism.
every_size = pytest.mark.parametrize("server", [f"tp{size}" for size in TP_SIZES])


@pytest.mark.multigpu
@every_size
@pytest.mark.parametrize("run", RUNS)
def test_tokens_are_those_of_a_server_without_speculation(
    servers: Servers, server: str, run: str, device: str, measured: dict[str, Any]
) -> None:
    assert_same_tokens(servers, server, run, device, measured)


@pytest.mark.multigpu
@every_size
@pytest.mark.parametrize("run", RUNS)
def test_all_ranks_take_the_same_steps(servers: Servers, server: str, run: str) -> None:
    ranks = [report["runs"][run] for report in servers.reports(server)]
    assert len(ranks) == SERVERS[server].tp
    for rank in ranks:
        assert rank["steps"] == ranks[0]["steps"]
        assert rank["counted"] == ranks[0]["counted"]
        assert [a["output_ids"] for a in rank["answers"]] == [
            a["output_ids"] for a in ranks[0]["answers"]
        ]
        assert_settled(rank)
    assert_books_balance(ranks[0])
