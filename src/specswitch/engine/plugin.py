"""Entry point ``sglang.srt.plugins``: registers the hooks in every process of the engine.

Without ``--speculative-worker specswitch`` each hook hands the call on unchanged. On a release
that is not supported only the flags are registered, so that asking for specswitch is refused with
a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specswitch.engine import compat, flags, handshake, relay, scheduler
from specswitch.engine.draft_sync import gap
from specswitch.engine.hooks import Hook, verify
from specswitch.engine.settings import Settings


def register() -> None:
    """Called by the engine's ``load_plugins()`` (plugins/__init__.py:129), once a process."""
    for hook in (*flag_hooks(), *(engine_hooks() if compat.is_supported() else ())):
        hook.register()


def flag_hooks() -> tuple[Hook, ...]:
    """Hooks that the parent process needs before it has its arguments."""
    return (
        Hook(compat.ADD_CLI_ARGS, flags.add_flags, "AFTER"),
        Hook(compat.FROM_CLI_ARGS, flags.carry_flags, "AROUND"),
        Hook(compat.SERVER_ARGS_INIT, flags.attach_settings, "AROUND"),
    )


def engine_hooks() -> tuple[Hook, ...]:
    """Hooks that need a supported release: worker class, load, results, read-out, handshake."""
    names = compat.release()
    return (
        Hook(names.CREATE_WORKER, choose_worker, "AROUND"),
        Hook(names.RUN_BATCH, scheduler.run_batch, "AROUND"),
        Hook(names.RESOLVE_RESULT, scheduler.count_result, "AFTER"),
        Hook(names.RESOLVE_FUTURE, relay.resolve_future, "AROUND"),
        Hook(names.STORE_FUTURE, relay.store_future, "AROUND"),
        Hook(names.RELEASE_KV, gap.leave, "BEFORE"),
        Hook(names.INTERNAL_STATE, scheduler.show_state, "AFTER"),
        Hook(names.INIT_INFO, handshake.report_worker, "AFTER"),
        Hook(names.LAUNCH_SCHEDULERS, handshake.require_worker, "AFTER"),
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
