"""How the choice of worker and its configuration get onto ServerArgs, and stay there."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import run_scenario

from specswitch import tiny_pair
from specswitch.config import load_config
from specswitch.engine.errors import StartupRefusal
from specswitch.engine.settings import Settings

ARGUMENTS: dict[str, Any] = {
    "model_path": str(tiny_pair.path("target")),
    "speculative_draft_model_path": str(tiny_pair.path("eagle3")),
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "worker.yaml"
    path.write_text("policy: {kind: periodic, period: 5}\nmax_speculative_batch: 7\n")
    return path


def settings_of(before: Callable[[], None] = lambda: None, **arguments: Any) -> Settings | None:
    """Settings of a ServerArgs made with `arguments`, in a process of its own."""

    def scenario() -> Settings | None:
        from sglang.srt.server_args import ServerArgs

        before()
        return Settings.of(ServerArgs(**ARGUMENTS | arguments))

    return run_scenario(scenario)


def test_keywords_choose_the_worker_and_its_file(file: Path) -> None:
    settings = settings_of(speculative_worker="specswitch", speculative_worker_config=str(file))
    assert settings is not None
    assert settings.path == str(file)
    assert settings.config == load_config(file)
    assert settings.config.max_speculative_batch == 7


def test_variables_choose_the_worker_and_its_file(file: Path) -> None:
    def export() -> None:
        os.environ["SPECSWITCH_WORKER"] = "specswitch"
        os.environ["SPECSWITCH_WORKER_CONFIG"] = str(file)

    settings = settings_of(export)
    assert settings is not None
    assert settings.config == load_config(file)


def test_keywords_win_over_variables(file: Path) -> None:
    def export() -> None:
        os.environ["SPECSWITCH_WORKER"] = "specswitch"

    assert settings_of(export, speculative_worker="eagle") is None


def test_empty_variables_mean_nothing() -> None:
    def export() -> None:
        os.environ["SPECSWITCH_WORKER"] = ""
        os.environ["SPECSWITCH_WORKER_CONFIG"] = ""

    assert settings_of(export) is None


def test_without_a_file_the_defaults_apply() -> None:
    settings = settings_of(speculative_worker="specswitch")
    assert settings is not None
    assert settings.path is None
    assert settings.config == load_config(None)


def test_a_server_that_does_not_ask_has_no_settings() -> None:
    assert settings_of() is None
    assert settings_of(speculative_worker="eagle") is None


def test_the_settings_know_whether_the_engine_chose_the_number_of_requests() -> None:
    unset = settings_of(speculative_worker="specswitch")
    chosen = settings_of(speculative_worker="specswitch", max_running_requests=48)
    assert unset is not None
    assert chosen is not None
    assert unset.max_running_requests_unset
    assert not chosen.max_running_requests_unset


def test_a_copy_in_another_process_keeps_the_values_when_the_file_is_gone(file: Path) -> None:
    def scenario() -> tuple[bytes, Settings | None]:
        from sglang.srt.server_args import ServerArgs

        arguments = ServerArgs(
            **ARGUMENTS, speculative_worker="specswitch", speculative_worker_config=str(file)
        )
        return pickle.dumps(arguments), Settings.of(arguments)

    def receive() -> Settings | None:
        return Settings.of(pickle.loads(pickled))

    pickled, original = run_scenario(scenario)
    file.unlink()
    assert original is not None
    assert run_scenario(receive) == original


def test_users_of_the_class_get_an_exception_with_the_reason(file: Path) -> None:
    with pytest.raises(StartupRefusal, match="--speculative-algorithm is NGRAM"):
        settings_of(speculative_worker="specswitch", speculative_algorithm="NGRAM")
    file.write_text("max_speculative_batch: 0\n")
    with pytest.raises(StartupRefusal, match=f"{file}:1: max_speculative_batch"):
        settings_of(speculative_worker="specswitch", speculative_worker_config=str(file))
