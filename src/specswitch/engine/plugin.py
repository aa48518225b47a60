"""Entry point ``sglang.srt.plugins``: registers the hooks in every process of the engine.

Without ``--speculative-worker specswitch`` each hook hands the call on unchanged. On a release
that is not supported only the flags are registered, so that asking for specswitch is refused with
a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specswitch.engine import (
    compat,
    engine_figures,
    flags,
    handshake,
    internal_state,
    observers,
    relay,
    scheduler,
)
from specswitch.engine.draft_sync import gap
from specswitch.engine.hooks import Hook, verify
from specswitch.engine.settings import Settings


def register() -> None:
    """Called by the engine's ``load_plugins()`` (plugins/__init__.py:129), once a process."""
    for hook in hooks():
        hook.register()


def hooks() -> tuple[Hook, ...]:
    """What has to be hooked on the installed engine: nothing, if it has the native patch.

    Such an engine finds ``native.plugin`` by itself.
    """
    if compat.is_patched():
        return ()
    return (*flag_hooks(), *(engine_hooks() if compat.is_supported() else ()))


def flag_hooks() -> tuple[Hook, ...]:
    """Hooks that the parent process needs before it has its arguments."""
    return (
        Hook(compat.ADD_CLI_ARGS, flags.add_flags, "AFTER"),
        Hook(compat.FROM_CLI_ARGS, flags.carry_flags, "AROUND"),
        Hook(compat.SERVER_ARGS_INIT, flags.attach_settings, "AROUND"),
    )


def engine_hooks() -> tuple[Hook, ...]:
    """Hooks that need a supported release."""
    return (*step_hooks(), *report_hooks())


def step_hooks() -> tuple[Hook, ...]:
    """Worker class, load, results, requests that leave, handshake."""
    names = compat.release()
    return (
        Hook(names.CREATE_WORKER, choose_worker, "AROUND"),
        Hook(names.RUN_BATCH, scheduler.run_batch, "AROUND"),
        Hook(names.RESOLVE_RESULT, scheduler.count_result, "AFTER"),
        Hook(names.RESOLVE_FUTURE, relay.resolve_future, "AROUND"),
        Hook(names.STORE_FUTURE, relay.store_future, "AROUND"),
        Hook(names.RELEASE_KV, gap.leave, "BEFORE"),
        Hook(names.INIT_INFO, handshake.report_worker, "AFTER"),
        Hook(names.LAUNCH_SCHEDULERS, handshake.require_worker, "AFTER"),
    )


def report_hooks() -> tuple[Hook, ...]:
    """Read-out, metrics, the engine's own acceptance figures, control at run time, opt-outs."""
    names = compat.release().reports
    return (
        Hook(compat.release().INTERNAL_STATE, scheduler.show_state, "AFTER"),
        Hook(names.INIT_MODEL_WORKER, observers.attach, "AFTER"),
        Hook(names.ENQUEUE, observers.note_request, "BEFORE"),
        Hook(names.PROCESS_RESULT, observers.end_batch, "AFTER"),
        Hook(names.ON_IDLE, observers.publish_when_idle, "BEFORE"),
        Hook(compat.release().RESOLVE_RESULT, engine_figures.uncount_result, "AFTER"),
        Hook(names.COUNT_SPECULATION, engine_figures.count_speculation, "AROUND"),
        Hook(names.REPORT_DECODE, engine_figures.report_decode, "AROUND"),
        Hook(names.REQUEST_FIGURES, engine_figures.correct_request, "AFTER"),
        Hook(names.SET_INTERNAL_STATE, internal_state.set_state, "AROUND"),
        Hook(names.SEND_INTERNAL_STATE, internal_state.answer_refusal, "AROUND"),
    )


def choose_worker(original: Callable[..., type], algorithm: Any, server_args: Any) -> type:
    """AROUND ``SpeculativeAlgorithm.create_worker``, in a scheduler process.

    Returns:
        The engine's own class, or specswitch's subclass of it when the server asks for it.

    Raises:
        HookNotApplied: a hook is missing in this process.
        StartupRefusal: the engine chose a worker that specswitch does not extend.
    """
    stock = original(algorithm, server_args)
    if Settings.of(server_args) is None:
        return stock
    verify((*flag_hooks(), *engine_hooks()))
    from specswitch.engine.worker import worker_class

    return worker_class(stock)
