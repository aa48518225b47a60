"""Steps that raise or whose streams are held up leave the answers alone.

No tool sees a missing wait between two CUDA streams, so one of them is delayed at random: what does
not wait for it then computes with old values.
"""

from __future__ import annotations

from typing import Any

import pytest
from checks import assert_books_balance, assert_same_tokens, assert_settled
from scenarios.launch import Servers


@pytest.mark.parametrize("server", ["fa3-small-graphs"])
def test_a_target_only_step_that_raises_leaves_the_engine_as_it_was(
    servers: Servers, server: str, device: str, measured: dict[str, Any]
) -> None:
    run = servers.report(server)["runs"]["faults"]
    on_gpu = device == "cuda"
    assert run["notes"] == {
        "swapped": [on_gpu, on_gpu],
        "graph": [False, on_gpu],
        "restored": [True, True],
    }
    assert_same_tokens(servers, server, "faults", device, measured)
    assert_books_balance(run)
    assert_settled(run)


@pytest.mark.parametrize("server", ["fa3-page1"])
@pytest.mark.parametrize("run", ["forward-delayed", "schedule-delayed", "target-only-delayed"])
def test_a_stream_that_is_held_up_changes_no_token(
    servers: Servers, server: str, run: str, device: str, measured: dict[str, Any]
) -> None:
    done = servers.report(server)["runs"][run]
    assert done["notes"]["delays"] > 10
    assert_same_tokens(servers, server, run, device, measured)
    assert_books_balance(done)
    assert_settled(done)
