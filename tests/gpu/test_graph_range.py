"""Batches above the largest graph, or above max_speculative_batch, and back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from checks import assert_books_balance, assert_same_tokens, assert_settled
from scenarios.launch import Servers
from scenarios.plan import SERVERS

SMALL_RUNS = ["speculate", "target-only", "flip-3"]


@pytest.mark.parametrize("server", ["fa3-small-graphs"])
@pytest.mark.parametrize("run", SMALL_RUNS)
def test_a_batch_above_the_largest_graph_runs_eagerly_until_it_shrinks(
    servers: Servers, server: str, run: str, device: str
) -> None:
    largest = SERVERS[server].graph_max_batch
    steps = servers.report(server)["runs"][run]["steps"]
    above = [step["requests"] > largest for step in steps]
    shrinks = [before and not after for before, after in pairwise(above)]
    assert any(shrinks)
    if device == "cuda":
        assert [step["graph"] for step in steps] == [not over for over in above]


@pytest.mark.parametrize("server", ["fa3-small-graphs"])
@pytest.mark.parametrize("run", SMALL_RUNS)
def test_eager_steps_and_graphs_give_the_same_answers(
    servers: Servers, server: str, run: str, device: str, measured: dict[str, Any]
) -> None:
    assert_same_tokens(servers, server, run, device, measured)
    assert_books_balance(servers.report(server)["runs"][run])
    assert_settled(servers.report(server)["runs"][run])


@pytest.mark.parametrize("server", ["fa3-bounded"])
@pytest.mark.parametrize("run", ["speculate", "flip-3"])
def test_a_batch_above_max_speculative_batch_is_target_only_on_a_graph(
    servers: Servers, server: str, run: str, device: str, measured: dict[str, Any]
) -> None:
    bound = SERVERS[server].max_speculative_batch
    done = servers.report(server)["runs"][run]
    over = [step for step in done["steps"] if step["requests"] > bound]
    assert over
    assert {step["mode"] for step in over} == {"target_only"}
    below = [step["mode"] for step in done["steps"] if step["requests"] <= bound]
    assert "speculate" in below
    if device == "cuda":
        assert all(step["graph"] for step in done["steps"])
    assert_same_tokens(servers, server, run, device, measured)
    assert_books_balance(done)
    assert_settled(done)


@pytest.mark.parametrize("server", ["fa3-bounded"])
def test_speculative_graphs_stop_at_max_speculative_batch(
    servers: Servers, server: str, device: str
) -> None:
    if device != "cuda":
        pytest.skip("the CPU engine has no graphs")
    graphs = servers.report(server)["graphs"]
    assert graphs["speculate_max_batch"] == SERVERS[server].max_speculative_batch
    assert graphs["target_only_max_batch"] == SERVERS[server].graph_max_batch
