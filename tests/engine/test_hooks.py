"""Hooks that did not take: the server does not start, and says which."""

from __future__ import annotations

import pkgutil
from typing import Any

import pytest
from harness import EngineDriver, run_scenario
from runs import fixed
from workloads import models

from specswitch.control.decision import Mode
from specswitch.engine import compat, plugin
from specswitch.engine.errors import HookNotApplied
from specswitch.engine.hooks import verify

HOOKS = (*plugin.flag_hooks(), *plugin.engine_hooks())

hooked = pytest.mark.skipif(compat.is_patched(), reason="the engine is patched: there are no hooks")


def start() -> EngineDriver:
    return EngineDriver(
        "EAGLE3", "specswitch", {"policy": fixed(Mode.SPECULATE)}, models=models("EAGLE3")
    )


def undo(target: str) -> None:
    """Put the engine's own function back, as a plug-in that replaces it would."""
    owner_path, _, name = target.rpartition(".")
    owner = pkgutil.resolve_name(owner_path)
    held: Any = owner.__dict__[name]
    original = getattr(held, "__func__", held)
    while hasattr(original, "__wrapped__"):
        original = original.__wrapped__
    setattr(owner, name, type(held)(original) if hasattr(held, "__func__") else original)


@hooked
def test_every_hook_is_in_place_once_plug_ins_are_loaded() -> None:
    run_scenario(verify, HOOKS)


@hooked
@pytest.mark.parametrize(
    "target",
    [hook.target for hook in plugin.engine_hooks() if not hook.target.endswith("create_worker")],
    ids=lambda target: target.rpartition(".")[2],
)
def test_a_hook_that_did_not_take_stops_the_engine(target: str) -> None:
    def scenario() -> None:
        undo(target)
        start()

    with pytest.raises(HookNotApplied, match=target.replace(".", r"\.")) as refusal:
        run_scenario(scenario)
    assert "\n" not in str(refusal.value)
    assert "SGLANG_PLUGINS" in str(refusal.value)


@hooked
def test_without_the_hook_on_the_worker_class_the_scheduler_reports_no_worker() -> None:
    def scenario() -> tuple[str, dict[str, Any]]:
        undo("sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker")
        driver = start()
        return type(driver.worker).__name__, driver.scheduler.get_init_info()

    worker, info = run_scenario(scenario)
    # The parent refuses to serve then: tests/unit/test_engine_handshake.py.
    assert worker == "EAGLEWorkerV2"
    assert "specswitch" not in info


def test_with_all_hooks_the_scheduler_reports_the_worker() -> None:
    def scenario() -> dict[str, Any]:
        return start().scheduler.get_init_info()

    assert run_scenario(scenario)["specswitch"] == {"worker": "SpecSwitchWorker"}
