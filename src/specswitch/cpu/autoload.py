"""What ``specswitch-cpu.pth`` imports at interpreter start when ``SPECSWITCH_CPU`` is set.

A ``.pth`` file is the one mechanism that reaches all of ``sglang serve``, ``python -m
sglang.launch_server``, a user's script and the processes that multiprocessing spawns from them.
SGLang's own plug-in entry point comes too late: ``import sglang`` already fails on missing CUDA
packages, and it reads ``SGLANG_USE_CPU_ENGINE`` before plug-ins load.

Only a watch on the name ``sglang`` is set up here. A process that never imports it (pip, a test of
other code) pays nothing more, and torch is not imported.
"""

from __future__ import annotations

import sys

from specswitch.cpu import environment
from specswitch.cpu.errors import CpuEngineError
from specswitch.cpu.import_hooks import ImportHooks
from specswitch.cpu.install import install


def _install_or_exit() -> None:
    # A refusal is meant for the person at the terminal: one line, no traceback, non-zero exit.
    try:
        install(force=environment.requested() == "force")
    except CpuEngineError as error:
        sys.exit(f"specswitch: {error}")


def arm() -> None:
    """Makes the first import of ``sglang`` in this process install the CPU engine first."""
    ImportHooks(before={"sglang": _install_or_exit}).activate()


def arm_if_requested() -> None:
    """Calls `arm` unless ``SPECSWITCH_CPU`` is unset or off.

    A value that is not understood arms as well, so that it is reported where ``sglang`` is used
    rather than in every Python process of the shell.
    """
    try:
        wanted = environment.requested() is not None
    except CpuEngineError:
        wanted = True
    if wanted:
        arm()


arm_if_requested()
