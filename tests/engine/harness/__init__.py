"""Drives the real SGLang scheduler in one process: no tokenizer, no detokenizer, no HTTP.

A test describes requests (`Request`), runs them through an `EngineDriver` and looks at tokens, at
the worker and at the KV pool. Engines cannot be torn down, so each scenario runs in a forked child
(`run_scenario`); the children share one import of the engine, which takes longer than most
scenarios.
"""

from __future__ import annotations

from harness.driver import EngineDriver
from harness.isolation import ScenarioCrashed, import_engine, run_scenario
from harness.random_models import ModelPaths, make_random_models, shared_random_models
from harness.requests import Request, Result

__all__ = [
    "EngineDriver",
    "ModelPaths",
    "Request",
    "Result",
    "ScenarioCrashed",
    "import_engine",
    "make_random_models",
    "run_scenario",
    "shared_random_models",
]
