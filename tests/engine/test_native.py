"""An engine with the native patch: nothing is hooked, and the engine asks for all there is.

Everything else that such an engine must do is in the other engine tests, which `make test` runs on
both kinds.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from harness import EngineDriver, Request, run_scenario
from harness.launcher import launch_forked
from runs import fixed
from workloads import models

from specswitch.control.decision import Mode
from specswitch.engine import compat, plugin
from specswitch.engine.errors import HookNotApplied, StartupRefusal

ASKED = os.environ.get("SPECSWITCH_TEST_NATIVE") == "1"
if not ASKED and not compat.is_patched():
    pytest.skip("the engine is not patched: make test-native", allow_module_level=True)


def start(worker: str | None = "specswitch", **server_args: Any) -> EngineDriver:
    config = {"policy": fixed(Mode.TARGET_ONLY)} if worker == "specswitch" else None
    return EngineDriver("EAGLE3", worker, config, models=models("EAGLE3"), **server_args)


def test_the_engine_is_patched() -> None:
    assert compat.is_patched()


def test_nothing_is_hooked() -> None:
    def scenario() -> tuple[list[str], list[str], str]:
        driver = start()
        from sglang.srt.plugins.hook_registry import HookRegistry

        hooks = (*plugin.flag_hooks(), *plugin.engine_hooks())
        applied = [
            hook.target for hook in hooks if hook.is_applied() or hook.engine_function() is None
        ]
        return list(HookRegistry._hooks), applied, type(driver.worker).__name__

    registered, applied, worker = run_scenario(scenario)
    assert registered == []
    # A target that is gone would count as hooked.
    assert applied == []
    assert worker == "SpecSwitchWorker"


def test_the_engines_callbacks_reach_the_worker() -> None:
    def scenario() -> dict[str, list[str]]:
        from sglang.srt.speculative.base_spec_worker import SpecWorkerCallbacks

        driver = start()
        offered = [name for name in vars(SpecWorkerCallbacks) if not name.startswith("_")]
        stock = [
            name
            for name in offered
            if getattr(type(driver.worker), name) is getattr(SpecWorkerCallbacks, name)
        ]
        called = []
        for name in offered:
            method = getattr(driver.worker, name)
            if callable(method):

                def note(*args: Any, name: str = name, method: Any = method) -> Any:
                    called.append(name)
                    return method(*args)

                setattr(driver.worker, name, note)
        # on_kv_release and on_scheduler_ready were taken at start-up.
        driver.generate([Request([1, 2, 3], max_new_tokens=4)])
        driver.scheduler.get_init_info()
        return {"stock": stock, "called": called}

    said = run_scenario(scenario)
    assert said["stock"] == []
    assert {
        "on_request_queued",
        "begin_decode",
        "on_decode_result",
        "on_batch_end",
        "on_idle",
        "get_init_info",
    } <= set(said["called"])


def test_the_engines_own_worker_is_asked_nothing() -> None:
    def scenario() -> dict[str, Any]:
        driver = start(None)
        info = driver.scheduler.get_init_info()
        return {
            "worker": type(driver.worker).__name__,
            "info": sorted(info),
            "asked": driver.scheduler.spec_callbacks.chooses_steps,
        }

    said = run_scenario(scenario)
    assert said["worker"] == "EAGLEWorkerV2"
    assert said["info"] == ["max_req_input_len", "max_total_num_tokens", "status"]
    assert not said["asked"]


def test_the_parent_refuses_a_scheduler_that_reports_no_worker() -> None:
    def silent(*arguments: Any) -> None:
        arguments[-1].send({"status": "ready"})

    def scenario() -> None:
        from sglang.srt.entrypoints.engine import Engine
        from sglang.srt.server_args import PortArgs, ServerArgs

        arguments = ServerArgs(
            model_path=str(models("EAGLE3").target),
            speculative_algorithm="EAGLE3",
            speculative_draft_model_path=str(models("EAGLE3").drafts["EAGLE3"]),
            speculative_num_steps=3,
            speculative_eagle_topk=1,
            speculative_num_draft_tokens=4,
            speculative_worker="specswitch",
            device="cpu",
        )
        launched, _ = Engine._launch_scheduler_processes(
            arguments, PortArgs.init_new(arguments), silent
        )
        launched.wait_for_ready()

    with pytest.raises(HookNotApplied, match=r"\[0\] run SGLang's own worker"):
        run_scenario(scenario)


def test_a_plug_in_for_another_interface_is_refused() -> None:
    def scenario() -> None:
        from specswitch.engine.native.plugin import SpecSwitchPlugin

        SpecSwitchPlugin.api_version = 99
        start()

    with pytest.raises(ValueError, match="made for version 99 of the plugin interface"):
        run_scenario(scenario)


def test_a_worker_that_nobody_brings_is_refused() -> None:
    with pytest.raises(ValueError, match="'medusa': set it to one of eagle, specswitch"):
        run_scenario(start, "medusa")


def test_a_refusal_is_ours_and_the_engines() -> None:
    def scenario() -> list[str]:
        try:
            start(speculative_adaptive=True)
        except StartupRefusal as refusal:
            return [base.__name__ for base in type(refusal).__mro__]
        return []

    assert {"StartupRefusal", "SpecWorkerRefusal"} <= set(run_scenario(scenario))


def test_the_environment_chooses_the_worker_of_a_server_that_names_none() -> None:
    def scenario() -> str:
        os.environ["SPECSWITCH_WORKER"] = "specswitch"
        return type(start(None).worker).__name__

    assert run_scenario(scenario) == "SpecSwitchWorker"


def test_help_names_the_workers_that_are_installed() -> None:
    outcome = launch_forked(["--help"])
    assert "--speculative-worker {eagle,specswitch}" in outcome.stdout
