"""What the log says when a server starts: enough to know how it will decide and what bounds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import EngineDriver, run_scenario
from runs import periodic
from workloads import models

from specswitch.engine.settings import Settings
from specswitch.engine.startup import summary


def lines_of(config: Any, algorithm: str = "EAGLE3", **server_args: Any) -> list[str]:
    def scenario() -> list[str]:
        driver = EngineDriver(
            algorithm, "specswitch", config, models=models(algorithm), **server_args
        )
        settings = Settings.of(driver.server_args)
        assert settings is not None
        return summary(driver.worker, settings, driver.server_args)

    return run_scenario(scenario)


def test_it_names_worker_release_algorithm_and_policy(tmp_path: Path) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text("policy: {kind: periodic, period: 9}\nmax_speculative_batch: 5\n")
    text = "\n".join(lines_of(file))
    assert "SpecSwitchWorker on SGLang 0.5.12.post1, EAGLE3, 3 steps" in text
    assert "max_running_requests 8, max_speculative_batch 5" in text
    assert f"policy from {file}" in text
    assert "'period': 9" in text
    assert "graphs: none" in text
    assert "draft sync: deferred" in text
    assert "exactness strict: target_only as long as the decode batch holds" in text
    assert "frequency_penalty, presence_penalty" in text


def test_it_says_that_the_engine_has_bounded_both_modes_when_nobody_did() -> None:
    unset = "\n".join(lines_of({"policy": periodic(1)}, max_running_requests=None))
    assert "max_running_requests 48 (SGLang sets 48" in unset
    assert "--max-running-requests is unset" in unset
    chosen = "\n".join(lines_of({"policy": periodic(1)}, max_running_requests=48))
    assert "max_running_requests 48, " in chosen


@pytest.mark.parametrize("config", [None, {}], ids=["no file", "empty mapping"])
def test_without_values_of_its_own_the_defaults_are_shown(config: Any) -> None:
    text = "\n".join(lines_of(config, "STANDALONE"))
    assert "SpecSwitchStandaloneWorker" in text
    assert "'waiting': {'enter': 16, 'resume': 2}" in text
