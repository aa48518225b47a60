"""The two flags, and how their values get onto the engine's ``ServerArgs``.

Three ways in, one way on: the command line (``from_cli_args``), keywords of
``sglang.Engine(...)`` or ``ServerArgs(...)``, and the environment. All end in the hook on
``ServerArgs.__init__``, which reads and checks the YAML before the engine does anything, lets the
engine finish its own arguments, refuses what cannot work and attaches the settings.
"""

from __future__ import annotations

import argparse
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from specswitch.config import ConfigError, load_config
from specswitch.engine import compat
from specswitch.engine.errors import StartupRefusal
from specswitch.engine.exactness import check_server
from specswitch.engine.refusals import check_algorithm, check_server_args
from specswitch.engine.settings import (
    CONFIG_ATTRIBUTE,
    SPECSWITCH,
    STOCK,
    WORKER_ATTRIBUTE,
    Settings,
)

WORKERS = (STOCK, SPECSWITCH)

WORKER_VARIABLE = "SPECSWITCH_WORKER"
CONFIG_VARIABLE = "SPECSWITCH_WORKER_CONFIG"


@dataclass(frozen=True)
class Request:
    """Which worker was asked for, and with which file. None: not said."""

    worker: str | None = None
    config_path: str | None = None

    def in_environment(self, environment: Request) -> Request:
        """This request, with what it leaves open taken from the environment.

        A file named in the environment alone asks for nothing: it waits for a server that does.

        Raises:
            StartupRefusal: unknown worker name, or a config file given for the stock worker.
        """
        worker, name = self.worker, "--speculative-worker"
        if worker is None and environment.worker is not None:
            worker, name = environment.worker, WORKER_VARIABLE
        worker = STOCK if worker is None else worker
        if worker not in WORKERS:
            raise StartupRefusal(f"{name} is {worker!r}: set it to one of {', '.join(WORKERS)}")
        if worker == STOCK and self.config_path is not None:
            raise StartupRefusal(
                f"--speculative-worker-config {self.config_path} has no effect on SGLang's own "
                "worker: add --speculative-worker specswitch, or drop it"
            )
        path = self.config_path if self.config_path is not None else environment.config_path
        return Request(worker, path)

    def or_else(self, other: Request) -> Request:
        """This request, with what it leaves open taken from ``other``."""
        return Request(
            self.worker if self.worker is not None else other.worker,
            self.config_path if self.config_path is not None else other.config_path,
        )


_from_command_line: ContextVar[Request] = ContextVar("specswitch_request")


def add_flags(_result: None, parser: argparse.ArgumentParser) -> None:
    """AFTER ``ServerArgs.add_cli_args``: offer the flags to ``sglang serve``."""
    group = parser.add_argument_group("specswitch")
    group.add_argument(
        "--speculative-worker",
        choices=WORKERS,
        default=None,
        help="Worker for EAGLE, EAGLE3 and STANDALONE: 'eagle' is SGLang's own (default), "
        "'specswitch' decodes target-only while load is high. "
        f"Environment: {WORKER_VARIABLE}.",
    )
    group.add_argument(
        "--speculative-worker-config",
        metavar="FILE",
        default=None,
        help="YAML file with specswitch's policy and guard, or the name of a ready one. "
        f"Environment: {CONFIG_VARIABLE}.",
    )


def carry_flags(original: Callable[..., Any], cls: type, args: argparse.Namespace) -> Any:
    """AROUND ``ServerArgs.from_cli_args``: hand the flags on, exit with one clear line.

    ``from_cli_args`` passes on declared fields only (server_args.py:7140), so the flags travel
    beside it.
    """
    token = _from_command_line.set(
        Request(getattr(args, WORKER_ATTRIBUTE, None), getattr(args, CONFIG_ATTRIBUTE, None))
    )
    try:
        return original(cls, args)
    except StartupRefusal as refusal:
        raise SystemExit(
            "\n".join(f"specswitch: {line}" for line in str(refusal).splitlines())
        ) from None
    finally:
        _from_command_line.reset(token)


def attach_settings(
    original: Callable[..., None], server_args: Any, *args: Any, **kwargs: Any
) -> None:
    """AROUND ``ServerArgs.__init__``: see the module's text.

    Raises:
        StartupRefusal: bad file, bad flag, or a combination that cannot work.
    """
    asked = Request(kwargs.pop(WORKER_ATTRIBUTE, None), kwargs.pop(CONFIG_ATTRIBUTE, None))
    asked = asked.or_else(_from_command_line.get(Request())).in_environment(from_environment())
    if asked.worker == STOCK:
        original(server_args, *args, **kwargs)
        return
    given = inspect.signature(original).bind(server_args, *args, **kwargs).arguments
    with settings_attached(
        server_args,
        asked.config_path,
        algorithm=given.get("speculative_algorithm"),
        max_running_requests=given.get("max_running_requests"),
    ):
        original(server_args, *args, **kwargs)


@contextmanager
def settings_attached(
    server_args: Any,
    path: str | None,
    *,
    algorithm: str | None,
    max_running_requests: int | None,
) -> Iterator[None]:
    """Read and check the YAML, let the engine complete its arguments inside, check those and
    attach the settings to them.

    Args:
        server_args: the engine's, incomplete.
        path: the YAML file, None for the defaults.
        algorithm, max_running_requests: as given to the engine.

    Raises:
        StartupRefusal: bad file, or a combination that cannot work.
    """
    release = compat.release()
    try:
        config = load_config(path)
    except ConfigError as error:
        raise StartupRefusal(str(error)) from None
    check_algorithm(algorithm)
    yield
    check_server_args(server_args)
    check_server(config.exactness, server_args)
    Settings(
        config=config,
        path=path,
        max_running_requests_unset=max_running_requests is None,
        target_only_batch_sizes=release.bound_verify_graphs(
            server_args, config.max_speculative_batch
        ),
    ).attach(server_args)


def from_environment() -> Request:
    """What the environment asks for."""
    # Empty means unset, so that a variable can be cleared for one command.
    return Request(os.environ.get(WORKER_VARIABLE) or None, os.environ.get(CONFIG_VARIABLE) or None)
