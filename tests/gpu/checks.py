"""What must hold for a run on a specswitch server, whatever its policy."""

from __future__ import annotations

from collections import Counter
from typing import Any

from near_ties import BFLOAT16_MARGIN, compare
from scenarios.launch import Servers
from scenarios.plan import SERVERS

# Near ties cut requests short; a run in which little is left has shown little.
_LEAST_COMPARED = 0.7


def assert_same_tokens(
    servers: Servers, server: str, run: str, device: str, measured: dict[str, Any]
) -> None:
    """The answers of a run are those of its reference server, near ties apart."""
    plan = SERVERS[server]
    requests = next(planned.requests for planned in plan.runs if planned.name == run)
    right = servers.report(plan.reference)["runs"][requests.removesuffix("-logprobs")]["answers"]
    found = servers.report(server)["runs"][run]
    outcome = compare(right, found["answers"], BFLOAT16_MARGIN if device == "cuda" else 0.0)
    measured[f"{server} {run}"] = {
        "tokens": outcome.total,
        "compared": outcome.compared,
        "near_ties": [round(tie.margin, 4) for tie in outcome.ties],
        "wrong": len(outcome.differences),
        "acceptance_length": found["acceptance_length"] and round(found["acceptance_length"], 3),
        "steps": found["counted"]["steps"],
        "seconds": found["seconds"],
    }
    assert outcome.differences == []
    assert outcome.compared >= _LEAST_COMPARED * outcome.total
    assert all(answer["finish_reason"]["type"] == "length" for answer in found["answers"])


def assert_books_balance(run: dict[str, Any]) -> None:
    """Counters say what the forward passes did, and every token comes from one of them."""
    steps = run["steps"]
    modes = Counter(step["mode"] for step in steps)
    assert run["counted"]["steps"] == {mode: modes[mode] for mode in run["counted"]["steps"]}
    emitted: Counter[str] = Counter()
    for step in steps:
        tokens = [*step["kept"].values(), *step["discarded"].values()]
        emitted[step["mode"]] += sum(tokens)
        if step["mode"] == "target_only":
            assert set(tokens) == {1}
        else:
            assert min(tokens) >= 1
            assert max(tokens) <= 4
    assert run["counted"]["tokens"] == {mode: emitted[mode] for mode in run["counted"]["tokens"]}
    for answer in run["answers"]:
        kept = [step["kept"][answer["rid"]] for step in steps if answer["rid"] in step["kept"]]
        # One token is the prefill's. The last step may have accepted more than was asked for.
        spare = 1 + sum(kept) - len(answer["output_ids"])
        assert 0 <= spare < kept[-1], answer["rid"]


def assert_settled(run: dict[str, Any]) -> None:
    """The idle server has all its KV slots back and has captured nothing."""
    assert run["lost_slots"] == 0
    assert run["captures_while_serving"] == 0
