"""Checks with the engine imported: hooks, server arguments, what would be refused, memory.

The engine is asked as it would be at start-up: the plug-ins are loaded, and the arguments go
through its own parser and specswitch's hooks on it.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from specswitch.doctor.checks import CPU_VARIABLE
from specswitch.doctor.estimates import BASIS, graphs_gib
from specswitch.doctor.findings import Finding, Section, Status
from specswitch.engine import compat
from specswitch.engine.exactness import inherited
from specswitch.engine.flags import CONFIG_VARIABLE, WORKER_VARIABLE
from specswitch.engine.hooks import Hook
from specswitch.engine.settings import SPECSWITCH, Settings
from specswitch.patching.actions import is_half_patched

_WORKER_FLAG, _CONFIG_FLAG = "--speculative-worker", "--speculative-worker-config"


def hooks() -> Section:
    """Every hook with the two places, and whether it took in this process; or that a patched
    engine, which needs none, finds the plug-in."""
    try:
        if compat.is_patched():
            return Section("hooks", [_native()])
        compat.release().plans.load_plugins()
        from specswitch.engine.plugin import engine_hooks, flag_hooks

        registered = (*flag_hooks(), *engine_hooks())
    except Exception as error:
        return Section("hooks", [_cannot_import(error)])
    return Section("hooks", [_hook(hook) for hook in registered])


def _native() -> Finding:
    if is_half_patched(None):
        return Finding(
            "native patch",
            "some files of the engine are patched and some are not",
            Status.PROBLEM,
            "run specswitch patch apply, or revert",
        )
    known = compat.release().plans.speculative_workers()
    if SPECSWITCH in known:
        return Finding("none", "the engine has the native patch, and finds the plug-in")
    return Finding(
        "none",
        "the engine has the native patch, but does not find the plug-in",
        Status.PROBLEM,
        "install specswitch again with pip; if SGLANG_PLUGINS is set, add specswitch to it",
    )


def _cannot_import(error: Exception) -> Finding:
    return Finding(
        "sglang",
        f"cannot be imported: {_said(error)}",
        Status.PROBLEM,
        "repair the installation"
        if os.environ.get(CPU_VARIABLE)
        else f"repair the installation; on a machine without a GPU, set {CPU_VARIABLE}=1",
    )


def _hook(hook: Hook) -> Finding:
    ours = f"{hook.kind} {hook.function.__name__} ({place(hook.function)})"
    engine = hook.engine_function()
    if engine is None:
        return Finding(
            hook.target,
            f"{ours}: the engine has no such function, or its module cannot be imported",
            Status.PROBLEM,
            "look for 'Failed to apply hooks' above; is this SGLang the one that was released?",
        )
    where = f"{ours} on {place(engine)}"
    if hook.is_applied():
        return Finding(hook.target, where)
    return Finding(
        hook.target,
        f"{where}: did not take",
        Status.PROBLEM,
        "another plug-in may have replaced it: set SGLANG_PLUGINS=specswitch to load no other",
    )


def place(function: Any) -> str:
    """``package/module.py:line`` of a function."""
    if not isinstance(function, FunctionType):
        return "unknown"
    code = function.__code__
    if code.co_filename.startswith("<"):
        # A dataclass's __init__ is in no file.
        return f"generated in {function.__module__}"
    parts = Path(code.co_filename).parts
    package = function.__module__.partition(".")[0]
    # From the package's folder on: the rest is the same for all.
    start = len(parts) - 1 - parts[::-1].index(package) if package in parts else -1
    return f"{'/'.join(parts[start:])}:{code.co_firstlineno}"


class ServerPlan:
    """A server as its command line describes it.

    Args:
        words: arguments of ``sglang serve``; the command itself may stand before them.
        config: YAML file, used where the arguments name none.

    Attributes:
        arguments: the engine's completed ``ServerArgs``; None when they are refused.
        settings: specswitch's; None when refused.
    """

    def __init__(self, words: Sequence[str], config: Path | None) -> None:
        self._words = _flags_only(words)
        self._added = self._add_missing(config)
        self._refusals: list[str] = []
        self.arguments: Any = None
        self.settings: Settings | None = None
        self._resolve()

    def _add_missing(self, config: Path | None) -> list[Finding]:
        added = []
        if not _has(self._words, _WORKER_FLAG) and not os.environ.get(WORKER_VARIABLE):
            self._words += [_WORKER_FLAG, "specswitch"]
            fix = f"add {_WORKER_FLAG} specswitch"
            text = "not asked for: such a server runs without specswitch; checked as if it were"
            added.append(Finding(_WORKER_FLAG, text, Status.NOTE, fix))
        if (
            config is not None
            and not _has(self._words, _CONFIG_FLAG)
            and not os.environ.get(CONFIG_VARIABLE)
        ):
            self._words += [_CONFIG_FLAG, str(config)]
            fix = f"add {_CONFIG_FLAG} {config}"
            text = "not in the arguments: checked as if it were"
            added.append(Finding(_CONFIG_FLAG, text, Status.NOTE, fix))
        return added

    def _resolve(self) -> None:
        # The parser prints its usage, and the engine's log handler takes this stream.
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                self.arguments = compat.release().plans.server_args(self._words)
        except SystemExit as refused:
            code = refused.code
            text = code if isinstance(code, str) else said.getvalue().strip()
            lines = text.splitlines() or ["the arguments are refused"]
            # argparse: the last line says what is wrong, the ones before are its usage.
            chosen = lines if isinstance(code, str) else lines[-1:]
            self._refusals = [line.removeprefix("specswitch: ") for line in chosen]
        except Exception as error:
            self._refusals = [f"SGLang refuses the arguments: {_said(error)}"]
        else:
            self.settings = Settings.of(self.arguments)

    @property
    def config_path(self) -> Path | None:
        """The YAML file that the server would read."""
        path = self.settings.path if self.settings is not None else None
        return None if path is None else Path(path)

    def server(self) -> Section:
        """What would be refused, or what the server would be."""
        found = list(self._added)
        # Each names the flag to change itself.
        found += [Finding("refused", line, Status.PROBLEM) for line in self._refusals]
        if self.arguments is not None and self.settings is not None:
            found.append(Finding("refused", "nothing"))
            found += self._figures(self.settings)
        elif self.arguments is not None:
            text = "the arguments or the environment choose SGLang's own worker"
            found.append(
                Finding(_WORKER_FLAG, text, Status.PROBLEM, f"set {_WORKER_FLAG} specswitch")
            )
        return Section("server", found)

    def _figures(self, settings: Settings) -> Iterator[Finding]:
        arguments, release = self.arguments, compat.release()
        yield Finding(
            "speculation",
            f"{arguments.speculative_algorithm}, {arguments.speculative_num_steps} steps, "
            f"{arguments.speculative_num_draft_tokens} draft tokens",
        )
        prefill, decode = release.plans.attention_backends(arguments)
        yield Finding(
            "attention backend", f"prefill {prefill}, decode {decode}, on {arguments.device}"
        )
        setting = settings.config.exactness
        caution = inherited(setting, release.plans.target_config(arguments))
        yield Finding(
            "exactness", caution or setting, Status.OK if caution is None else Status.NOTE
        )
        running = f"{arguments.max_running_requests} in either mode"
        limit = f"{settings.config.max_speculative_batch} may speculate"
        if settings.max_running_requests_unset:
            yield Finding(
                "max_running_requests",
                f"{running}: SGLang's choice for a speculative server; {limit}",
                Status.NOTE,
                "set --max-running-requests if target-only decode is to serve more",
            )
        else:
            yield Finding("max_running_requests", f"{running}; {limit}")

    def memory(self) -> Section:
        """Memory that specswitch takes for itself: estimates, each with what it rests on."""
        if self.settings is None:
            return Section("memory", [])
        try:
            return Section("memory", [self._ring(self.settings), *self._graphs(self.settings)])
        except Exception as error:
            text = f"cannot be estimated: {_said(error)}"
            return Section("memory", [Finding("estimate", text, Status.NOTE)])

    def _ring(self, settings: Settings) -> Finding:
        from specswitch.engine.draft_sync.ring import HiddenRing

        sync, plans = settings.config.draft_sync, compat.release().plans
        if sync.mode == "off":
            return Finding("ring", "none: draft_sync.mode is off")
        window = sync.window if sync.mode == "deferred" else 1
        rows, width = plans.pool_rows(self.arguments), plans.draft_input_width(self.arguments)
        dtype = plans.target_config(self.arguments).dtype
        size = window * HiddenRing.bytes_per_position(rows, width, dtype)
        kept = "tokens only" if width is None else f"{width} hidden values of {dtype}"
        return Finding(
            "ring",
            f"{size / 2**30:.3f} GiB on each GPU, computed: {rows} rows x {window} positions x "
            f"({kept})",
        )

    def _graphs(self, settings: Settings) -> Iterator[Finding]:
        sizes = settings.target_only_batch_sizes
        if sizes is None:
            yield Finding("graphs", "none: both modes run eagerly")
            return
        vocabulary = compat.release().plans.target_config(self.arguments).vocab_size
        tokens = self.arguments.speculative_num_draft_tokens
        verify = max(self.arguments.cuda_graph_bs)
        yield Finding(
            "target-only graphs",
            f"about {graphs_gib(max(sizes), vocabulary):.2f} GiB for {len(sizes)} sizes up to "
            f"batch {max(sizes)}, on top of a server without specswitch; an estimate, {BASIS}",
        )
        yield Finding(
            "verify graphs",
            f"about {graphs_gib(verify * tokens, vocabulary):.2f} GiB up to batch {verify} "
            f"({max(sizes)} without specswitch: "
            f"{graphs_gib(max(sizes) * tokens, vocabulary):.2f}); the same estimate",
        )


def _flags_only(words: Sequence[str]) -> list[str]:
    """The words without ``sglang serve`` or ``python -m sglang.launch_server`` before them."""
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return list(words[first:])


def _has(words: Sequence[str], flag: str) -> bool:
    return any(word == flag or word.startswith(f"{flag}=") for word in words)


def _said(error: Exception) -> str:
    """An exception on one line."""
    text = " ".join(str(error).split())[:500]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
