"""Runs SGLang's launcher as a command would, for servers that must refuse to start.

A refusal takes milliseconds and the imports before it ten seconds, so the launcher runs in a fork
of a process that has them; `command` starts it for real. Both give what a shell would see.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness.isolation import import_engine

# What the shell of whoever runs the tests may hold for servers of its own.
FOREIGN = (
    "SPECSWITCH_WORKER",
    "SPECSWITCH_WORKER_CONFIG",
    "SPECSWITCH_DEBUG",
    "SPECSWITCH_ALLOW_UNTESTED_ENGINE",
    "SGLANG_PLUGINS",
    "SGLANG_ENABLE_SPEC_V2",
)


@dataclass(frozen=True)
class Outcome:
    """What a shell sees of a command that has ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        """What specswitch had to say on stderr."""
        return [line for line in self.stderr.splitlines() if line.startswith("specswitch: ")]


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment for a server on the CPU, with changes."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return {**kept, "SPECSWITCH_CPU": "force", "HF_HUB_OFFLINE": "1", **changes}


def command(arguments: Sequence[str], **variables: str) -> Outcome:
    """Run a Python command line, e.g. ``["-m", "sglang.launch_server", ...]``, to its end."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment(variables),
        capture_output=True,
        text=True,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def launch_forked(
    arguments: Sequence[str],
    *,
    before: Callable[[], None] | None = None,
    **variables: str,
) -> Outcome:
    """Run ``python -m sglang.launch_server`` with arguments in a fork of this process.

    Args:
        before: called in the fork first, to break something there.
        variables: environment variables.
    """
    import_engine()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _run_launcher(arguments, before, variables, out.fileno(), err.fileno())
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        return Outcome(os.waitstatus_to_exitcode(status), out.read(), err.read())


def _run_launcher(
    arguments: Sequence[str],
    before: Callable[[], None] | None,
    variables: Mapping[str, str],
    out: int,
    err: int,
) -> None:
    # Never returns: the fork must not go on with the test session.
    os.dup2(out, 1)
    os.dup2(err, 2)
    # pytest has put its own objects there.
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    wanted = environment(variables)
    os.environ.clear()
    os.environ.update(wanted)
    sys.argv = ["sglang.launch_server", *arguments]
    code = 1
    try:
        if before is not None:
            before()
        runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = _exit_code(leaving)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _exit_code(leaving: SystemExit) -> int:
    """What the interpreter makes of it."""
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    print(leaving.code, file=sys.stderr)
    return 1
