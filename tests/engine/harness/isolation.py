"""Runs each scenario in a forked child of one process that has imported the engine.

The engine keeps global state (process groups, parsed arguments, module-level constants) and has no
shutdown, so two engines do not fit into one process. Importing it takes several seconds; a fork
after the import takes none.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

import specswitch.cpu

T = TypeVar("T")


class ScenarioCrashed(RuntimeError):
    """A scenario's process ended without a result, or with one that cannot be pickled."""


class _ChildTraceback(Exception):
    """Shown as the cause of an exception that was raised in a scenario's process."""

    def __str__(self) -> str:
        return f"in the scenario's process:\n{self.args[0]}"


def import_engine() -> None:
    """Imports the engine on the CPU with plug-ins loaded; later calls do nothing.

    Raises:
        specswitch.cpu.CpuEngineError: the CPU engine cannot be used here.
    """
    specswitch.cpu.install(force=os.environ.get("SPECSWITCH_CPU") == "force")
    import torch

    # Threads do not survive a fork, and OpenMP waits for those it remembers.
    torch.set_num_threads(1)
    # The scheduler's own module does not import the model classes; each child would do it again.
    for name in ("sglang.srt.managers.scheduler", "sglang.srt.models.registry"):
        importlib.import_module(name)
    from sglang.srt.plugins import load_plugins

    load_plugins()


def run_scenario(scenario: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Calls ``scenario(*args, **kwargs)`` in a forked child and returns what it returns.

    Args:
        scenario: any callable, closures included; only its result is pickled.

    Raises:
        ScenarioCrashed: the child died, or its result or exception cannot be pickled.
        Exception: what the scenario raised, with the child's traceback as its cause.
    """
    import_engine()
    from harness.random_models import shared_random_models

    # Made here, so that scenarios share the files and this process deletes them.
    shared_random_models()
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _run_in_child(write_end, scenario, args, kwargs)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        raise ScenarioCrashed(f"the scenario's process ended without a result: {_describe(status)}")
    result, error, trace = pickle.loads(answer)
    if error is not None:
        raise error from _ChildTraceback(trace)
    return result


def _run_in_child(write_end: int, scenario: Callable[..., T], args: Any, kwargs: Any) -> None:
    # Never returns: the child must not run the rest of the test session, nor the parent's exit
    # handlers.
    status = 1
    try:
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(_answer(scenario, args, kwargs))
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _answer(scenario: Callable[..., T], args: Any, kwargs: Any) -> bytes:
    try:
        return pickle.dumps((scenario(*args, **kwargs), None, ""))
    except BaseException as error:
        trace = traceback.format_exc()
        try:
            return pickle.dumps((None, error, trace))
        except Exception:
            return pickle.dumps((None, ScenarioCrashed(repr(error)), trace))


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return f"exit status {os.WEXITSTATUS(status)}"
