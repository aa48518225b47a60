"""`specswitch demo`: see a server switch, on a machine without a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

_ENGINE = "the servers need SGLang: pip install 'specswitch[engine]', or make venv in a checkout"
_NEEDED = {
    "matplotlib": "the report needs matplotlib: pip install 'specswitch[plot]'",
    "aiohttp": _ENGINE,
    "sglang": _ENGINE,
}


def missing() -> str | None:
    """What has to be installed before a demo can run, or None."""
    for module, advice in _NEEDED.items():
        if importlib.util.find_spec(module) is None:
            return advice
    return None


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the report and the servers' logs.", file_okay=False)
    ] = Path("demo-report"),
    config: Annotated[
        Path | None,
        typer.Option(help="Controller YAML, or the name of a ready one; default: cpu-demo."),
    ] = None,
) -> None:
    """Serve a tiny model under calm, burst and calm load, and show the switches.

    Starts a real SGLang server on the CPU with load-aware speculation, then one
    without speculation, and checks that both give the same answers. Takes a few
    minutes on two cores.

    Exit code: 0 all checks held, 1 a check failed, 2 the demo could not run,
    128 + signal number when it was interrupted.
    """
    console = Console()
    errors = Console(stderr=True)
    advice = missing()
    if advice is not None:
        errors.print(f"specswitch demo: {advice}", markup=False, soft_wrap=True)
        raise typer.Exit(2)

    # Imported here so that other commands start without the HTTP client.
    from specswitch.demo.errors import DemoError
    from specswitch.demo.main import run_demo
    from specswitch.demo.signals import Interrupted

    try:
        passed = run_demo(console, out, config)
    except Interrupted as stop:
        errors.print(f"specswitch demo: stopped by {stop}; all servers have ended", markup=False)
        raise typer.Exit(stop.exit_code) from None
    except DemoError as error:
        errors.print(f"specswitch demo: {error}", markup=False, soft_wrap=True, highlight=False)
        raise typer.Exit(2) from None
    if not passed:
        raise typer.Exit(1)
