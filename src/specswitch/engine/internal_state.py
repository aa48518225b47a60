"""Control at run time: commands come in through the engine's ``POST /set_internal_state``.

The engine broadcasts control requests to all tensor-parallel ranks with the other requests, so each
rank carries out a command between the same two steps (managers/scheduler.py:1759). It checks the
API or admin key before a request gets here (entrypoints/http_server.py:677).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from specswitch.config import ConfigError
from specswitch.engine import compat
from specswitch.engine.scheduler import STATE_KEY, is_switching
from specswitch.steering import AUTO

logger = logging.getLogger(__name__)


def describe_control(worker: Any) -> dict[str, Any]:
    """The part of ``/server_info`` that tells what is in force and why.

    Returns:
        {"override": "auto" or a mode, "config": values in effect, "changed": {key: [start-up,
        now]}, "guard": see ``Controller.holds``, "failure": text of the exception that put the safe
        mode in place, or null, "errors": {"policy", "listener", "telemetry"}, "opt_outs": requests
        so far, "exactness": see ``InexactRequests.snapshot``, "max_running_requests"}.
    """
    controller, steering = worker.controller, worker.steering
    failure = controller.failure
    return {
        "override": str(controller.overridden or AUTO),
        "config": steering.config.model_dump(mode="json"),
        "changed": steering.differences(),
        "guard": controller.holds(),
        "failure": None if failure is None else f"{type(failure).__name__}: {failure}",
        "errors": {
            "policy": controller.counters.policy_errors,
            "listener": controller.counters.listener_errors,
            "telemetry": worker.containment.errors,
        },
        "opt_outs": worker.opt_outs.total,
        "exactness": worker.inexact.snapshot(),
        "max_running_requests": worker.max_running_requests,
    }


def set_state(original: Callable[..., Any], scheduler: Any, request: Any) -> Any:
    """AROUND ``Scheduler.set_internal_state``: answer what is for specswitch."""
    reply = answer(scheduler, request)
    return original(scheduler, request) if reply is None else reply


def answer(scheduler: Any, request: Any) -> Any:
    """Carry out ``{"specswitch": COMMAND}``; None for any other request.

    Settings of the engine that would make answers depend on the mode are refused as well.

    See ``Command.parse`` for the command. The reply's ``updated`` is {"accepted": true, "changed":
    lines, "specswitch": state} or {"accepted": false, "error": what to change}.
    """
    reports = compat.release().reports
    values = reports.internal_state_values(request)
    if STATE_KEY not in values:
        worker = compat.release().scheduler_worker(scheduler)
        problems = worker.inexact.problems_of(values) if is_switching(worker) else []
        if problems:
            return reports.internal_state_reply(_refused("; ".join(problems)))
        return None
    return reports.internal_state_reply(_carry_out(scheduler, values))


def _carry_out(scheduler: Any, values: dict[str, Any]) -> dict[str, Any]:
    worker = compat.release().scheduler_worker(scheduler)
    if not is_switching(worker):
        return _refused("this server runs without specswitch: start it with --speculative-worker")
    if len(values) > 1:
        return _refused("a request with specswitch holds nothing else; send the rest on its own")
    is_first = worker.target_worker.tp_rank == 0
    try:
        changed = worker.steering.apply(values[STATE_KEY])
    except ConfigError as error:
        return _refused(str(error))
    except Exception as error:
        # A request must not be able to end the scheduler.
        logger.exception("specswitch: a command failed")
        return _refused(f"internal error, nothing was changed: {error!r}")
    if is_first:
        for line in changed:
            logger.info("specswitch: operator: %s", line)
    state = worker.containment.run(worker.snapshot)
    return {"accepted": True, "changed": changed, STATE_KEY: state}


def _refused(error: str) -> dict[str, Any]:
    return {"accepted": False, "error": error}


async def answer_refusal(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """AROUND ``TokenizerManager.set_internal_state``, in the HTTP process: 400 for a refusal.

    The engine answers 200 to all that a scheduler has received.
    """
    answers = await original(manager, request)
    for said in answers:
        if isinstance(said, dict) and not said["accepted"]:
            from fastapi import HTTPException

            raise HTTPException(status_code=400, detail=said["error"])
    return answers
