"""Proof that every scheduler process runs the worker that the parent asked for.

A child in which the plug-in did not load would run the stock worker without a word, and no check
inside that child could say so. Children therefore name their worker in the message that tells the
parent they are ready, and the parent refuses to serve when one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specswitch.engine import compat
from specswitch.engine.errors import HookNotApplied
from specswitch.engine.scheduler import is_switching
from specswitch.engine.settings import Settings

KEY = "specswitch"


def report_worker(info: dict[str, Any], scheduler: Any) -> dict[str, Any]:
    """AFTER ``Scheduler.get_init_info``: add the class name of a specswitch worker."""
    worker = compat.release().scheduler_worker(scheduler)
    if is_switching(worker):
        info.update(report(worker))
    return info


def report(worker: Any) -> dict[str, Any]:
    """What a scheduler process says of its specswitch worker."""
    return {KEY: {"worker": type(worker).__name__}}


def check_reports(infos: Sequence[dict[str, Any]]) -> None:
    """All scheduler processes of this node have said that they are ready.

    Raises:
        HookNotApplied: some of them run the engine's own worker.
    """
    silent = [rank for rank, info in enumerate(infos) if KEY not in info]
    if silent:
        raise HookNotApplied(
            f"scheduler process(es) {silent} run SGLang's own worker: the plug-in did not load "
            "there; look for 'Failed to load plugin' above, and if SGLANG_PLUGINS is set, add "
            "specswitch to it"
        )


def require_worker(
    launched: tuple[Any, Any], _cls: type, server_args: Any, *_args: Any, **_kwargs: Any
) -> tuple[Any, Any]:
    """AFTER ``Engine._launch_scheduler_processes``: check each child's report once all are ready.

    With ``--dp-size`` above 1 the engine's data-parallel controller keeps the children's reports to
    itself (managers/data_parallel_controller.py:557), so they cannot be checked.
    """
    result, _processes = launched
    if Settings.of(server_args) is not None and server_args.dp_size == 1:
        result.wait_for_ready = _checked(result)
    return launched


def _checked(result: Any) -> Callable[[], None]:
    wait_for_ready: Callable[[], None] = result.wait_for_ready

    def wait_and_check() -> None:
        wait_for_ready()
        check_reports(result.scheduler_infos)

    return wait_and_check
