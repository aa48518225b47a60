"""Settings on ServerArgs: plain values that survive the way to another process."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace

from specswitch.config import Config
from specswitch.engine.settings import Settings


def make(**changes: object) -> Settings:
    values: dict[str, object] = {
        "config": Config.model_validate({"policy": {"kind": "periodic", "period": 3}}),
        "path": "worker.yaml",
        "max_running_requests_unset": True,
        "target_only_batch_sizes": [1, 2, 4],
    }
    return Settings(**values | changes)


def test_what_was_attached_is_read_back() -> None:
    server_args = SimpleNamespace()
    settings = make()
    settings.attach(server_args)
    assert Settings.of(server_args) == settings
    assert Settings.of(pickle.loads(pickle.dumps(server_args))) == settings


def test_only_plain_values_are_attached() -> None:
    server_args = SimpleNamespace()
    make().attach(server_args)
    # /server_info shows ServerArgs as JSON.
    assert json.loads(json.dumps(vars(server_args))) == vars(server_args)


def test_arguments_without_settings_have_none() -> None:
    assert Settings.of(SimpleNamespace()) is None
    assert Settings.of(SimpleNamespace(speculative_worker="eagle")) is None
