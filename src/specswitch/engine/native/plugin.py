"""Entry point ``sglang.srt.speculative_workers``, which engines with the native patch look for.

Only such an engine imports this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sglang.srt.speculative.worker_plugin import SpecWorkerPlugin, SpecWorkerRefusal

from specswitch.engine import handshake, internal_state
from specswitch.engine.errors import StartupRefusal
from specswitch.engine.flags import WORKERS, Request, from_environment, settings_attached
from specswitch.engine.settings import SPECSWITCH


class NativeRefusal(StartupRefusal, SpecWorkerRefusal):
    """A refusal that the engine prints without a traceback."""

    worker = SPECSWITCH


class SpecSwitchPlugin(SpecWorkerPlugin):
    """Offers the worker to the engine."""

    api_version = 1

    def selects(self, server_args: Any) -> bool:
        """Also by the environment. Called on arguments as they were given."""
        if server_args.speculative_worker not in (None, *WORKERS):
            return False
        with _refusals():
            return _asked(server_args).worker == SPECSWITCH

    @contextmanager
    def completing(self, server_args: Any) -> Iterator[None]:
        with _refusals():
            path = _asked(server_args).config_path
            settings = settings_attached(
                server_args,
                path,
                algorithm=server_args.speculative_algorithm,
                max_running_requests=server_args.max_running_requests,
            )
            with settings:
                yield

    def worker_class(self, builtin: type, server_args: Any) -> type:
        from specswitch.engine.worker import worker_class

        return worker_class(builtin)

    def check_ready(self, infos: Sequence[dict[str, Any]]) -> None:
        handshake.check_reports(infos)

    def set_internal_state(self, scheduler: Any, recv_req: Any) -> Any:
        return internal_state.answer(scheduler, recv_req)


def _asked(server_args: Any) -> Request:
    return Request(
        server_args.speculative_worker, server_args.speculative_worker_config
    ).in_environment(from_environment())


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn ours into one that the engine knows."""
    try:
        yield
    except StartupRefusal as refusal:
        raise NativeRefusal(str(refusal)) from None


plugin = SpecSwitchPlugin()
