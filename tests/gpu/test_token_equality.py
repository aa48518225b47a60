"""Answers are those of a server without speculation, in each mode and however often it flips."""

from __future__ import annotations

from typing import Any

import pytest
from checks import assert_books_balance, assert_same_tokens, assert_settled
from near_ties import BFLOAT16_MARGIN
from scenarios.launch import Servers
from scenarios.plan import SERVERS

EVERY_KIND = [
    "fa3-page1",
    "fa3-page16",
    "fa3-page64",
    "fa3-standalone",
    "triton-page1",
    "triton-page64",
]
MAIN_RUNS = ["flip-1", "flip-3", "speculate", "target-only"]

every_run = pytest.mark.parametrize(
    ("server", "run"),
    [
        *((server, run) for server in EVERY_KIND for run in MAIN_RUNS),
        ("fa3-page1", "flip-17"),
        ("fa3-page1", "logprobs"),
    ],
)


@every_run
def test_tokens_are_those_of_a_server_without_speculation(
    servers: Servers, server: str, run: str, device: str, measured: dict[str, Any]
) -> None:
    assert_same_tokens(servers, server, run, device, measured)


@every_run
def test_modes_follow_the_policy_step_by_step(servers: Servers, server: str, run: str) -> None:
    modes = [step["mode"] for step in servers.report(server)["runs"][run]["steps"]]
    both = ("speculate", "target_only")
    period = {"flip-1": 1, "flip-3": 3, "flip-17": 17, "logprobs": 3}.get(run)
    if period is None:
        assert set(modes) == {run.replace("-", "_")}
    else:
        assert modes == [both[number // period % 2] for number in range(len(modes))]
        assert len(modes) > 4 * period, "too few steps to flip both ways twice"


@every_run
def test_every_step_is_accounted_for_and_nothing_is_left_behind(
    servers: Servers, server: str, run: str, device: str
) -> None:
    done = servers.report(server)["runs"][run]
    assert_books_balance(done)
    assert_settled(done)
    assert all(step["graph"] for step in done["steps"]) == (device == "cuda")


@pytest.mark.parametrize("server", EVERY_KIND)
def test_the_server_runs_our_worker_with_overlap_and_both_graph_sets(
    servers: Servers, server: str, device: str, measured: dict[str, Any]
) -> None:
    report = servers.report(server)
    standalone = SERVERS[server].algorithm == "STANDALONE"
    assert report["worker"] == ("SpecSwitchStandaloneWorker" if standalone else "SpecSwitchWorker")
    assert report["overlap"]
    # Free memory is of the GPU, and other servers start on it meanwhile.
    known = {key: value for key, value in report["graphs"].items() if key != "target_only_gb"}
    measured[f"{server} graphs"] = known | report["seconds"]
    if device == "cuda":
        assert report["graphs"]["target_only_max_batch"] == SERVERS[server].graph_max_batch
        assert report["graphs"]["speculate_max_batch"] == SERVERS[server].graph_max_batch


@pytest.mark.parametrize("server", EVERY_KIND)
def test_drafts_are_accepted_when_the_server_never_leaves_speculation(
    servers: Servers, server: str
) -> None:
    assert servers.report(server)["runs"]["speculate"]["acceptance_length"] > 1.5


@pytest.mark.parametrize("server", ["fa3-page1"])
def test_prefixes_come_from_the_radix_cache(servers: Servers, server: str) -> None:
    answers = servers.report(server)["runs"]["flip-1"]["answers"]
    assert sum(answer["cached_tokens"] > 10 for answer in answers) >= 4


@pytest.mark.parametrize("server", ["fa3-page1"])
def test_log_probabilities_do_not_depend_on_the_mode(
    servers: Servers, server: str, device: str, measured: dict[str, Any]
) -> None:
    right = servers.report(SERVERS[server].reference)["runs"]["staggered"]["answers"]
    found = servers.report(server)["runs"]["logprobs"]["answers"]
    gaps = []
    for theirs, ours in zip(right, found, strict=True):
        assert len(ours["logprobs"]) == len(ours["output_ids"])
        for position, token in enumerate(ours["output_ids"]):
            if token != theirs["output_ids"][position]:
                break
            gaps.append(abs(ours["logprobs"][position] - theirs["logprobs"][position]))
    measured[f"{server} logprobs, largest difference"] = round(max(gaps), 5)
    assert max(gaps) < (BFLOAT16_MARGIN if device == "cuda" else 1e-3)


@pytest.mark.parametrize("server", [*EVERY_KIND, "fa3-bounded"])
def test_the_first_step_of_each_mode_after_start_up_gives_the_right_tokens(
    servers: Servers, server: str, device: str, measured: dict[str, Any]
) -> None:
    report = servers.report(server)
    assert next(iter(report["runs"])) == "first"
    modes = [step["mode"] for step in report["runs"]["first"]["steps"]]
    if server == "fa3-bounded":
        # Three requests are above its bound of two: it starts target-only.
        assert modes[0] == "target_only"
        assert "speculate" in modes
    else:
        assert modes[:2] == ["speculate", "target_only"]
    assert_same_tokens(servers, server, "first", device, measured)
    assert_settled(report["runs"]["first"])
