"""`specswitch doctor`: would a server start with specswitch here, and what would it be."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specswitch.doctor.checks import configuration, devices, versions
from specswitch.doctor.findings import Section, Status, problems, to_json
from specswitch.engine import compat

_STYLES = {Status.OK: "green", Status.NOTE: "yellow", Status.PROBLEM: "bold red"}


def doctor(
    serve: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- SGLANG SERVE ARGUMENTS]",
            help="The server's command line, after --.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="YAML file, or the name of a ready one; default: what the server's arguments say.",
            dir_okay=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check installation, hooks, configuration and a server's arguments.

    Loads no weights and opens no port; it may take half a minute to import the engine.

    Exit code: 0 when nothing is in the way, 1 when there is a problem.
    """
    with _stdout_kept():
        sections = list(_sections(serve or [], config))
    if as_json:
        typer.echo(json.dumps(to_json(sections), indent=2))
    else:
        _print(sections)
    if problems(sections):
        raise typer.Exit(1)


@contextlib.contextmanager
def _stdout_kept() -> Iterator[None]:
    """Whatever the engine prints goes to stderr: stdout is the report's."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _sections(serve: list[str], config: Path | None) -> Iterator[Section]:
    yield versions()
    yield devices()
    if compat.installed_version() is None or not compat.is_supported():
        yield configuration(config)
        return
    # Imported here: the rest works without the engine.
    from specswitch.doctor.engine_checks import ServerPlan, hooks

    hooked = hooks()
    yield hooked
    if not serve or problems([hooked]):
        yield configuration(config)
        return
    plan = ServerPlan(serve, config)
    yield configuration(plan.config_path or config)
    yield plan.server()
    yield plan.memory()


def _print(sections: list[Section]) -> None:
    console = Console(highlight=False)
    for section in sections:
        if not section.findings:
            continue
        console.print(section.title, style="bold")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_column(overflow="fold", ratio=1)
        for finding in section.findings:
            style = _STYLES[finding.status]
            mark = Text(finding.status.value, style=style)
            table.add_row(mark, Text(finding.name), Text(finding.text))
            if finding.fix is not None:
                table.add_row("", "", Text(f"-> {finding.fix}", style=style))
        console.print(table)
    found = problems(sections)
    said = "no problem found" if not found else f"{len(found)} problem(s) found"
    console.print(said, style=_STYLES[Status.PROBLEM if found else Status.OK])
