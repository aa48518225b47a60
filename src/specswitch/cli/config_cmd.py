"""`specswitch config`: check a configuration and see what it amounts to, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specswitch.cli.assignments import parse_assignments
from specswitch.config import ConfigError, Origin, Resolved, json_schema, resolve

app = typer.Typer(
    help="Check, show and describe configurations.",
    no_args_is_help=True,
)

SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Put a value over the file's, e.g. max_speculative_batch=32. Can be repeated.",
    ),
]


@app.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def check(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="YAML files, or names of ready ones, to check."),
    ],
) -> None:
    """Check files; every problem is listed, one a line. Exit code 1 if there is any."""
    bad = False
    for file in files:
        try:
            resolve(file, {})
        except ConfigError as error:
            bad = True
            typer.echo(str(error), err=True)
        else:
            typer.echo(f"{file}: ok")
    if bad:
        raise typer.Exit(1)


@app.command()
def show(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="YAML file, or the name of a ready one; none: the defaults."
        ),
    ] = None,
    flags: SetOption = [],  # noqa: B006 - Typer reads the default, nobody changes it
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the values in effect, and where each comes from: default, file or flag."""
    try:
        values = parse_assignments(flags, "--set", "flag ")
        resolved = resolve(file, values)
    except ConfigError as error:
        _fail(error)
    if as_json:
        _print_json(resolved)
    else:
        _print_table(resolved)


def _fail(error: ConfigError) -> NoReturn:
    typer.echo(str(error), err=True)
    raise typer.Exit(1)


def _print_json(resolved: Resolved) -> None:
    typer.echo(
        json.dumps(
            {
                "config": resolved.config.model_dump(mode="json"),
                "origins": {key: origin.value for key, origin in resolved.origins.items()},
            },
            indent=2,
        )
    )


_STYLES = {Origin.DEFAULT: "dim", Origin.FILE: "green", Origin.FLAG: "yellow"}


def _print_table(resolved: Resolved) -> None:
    table = Table()
    table.add_column("key", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("origin")
    for key, value, origin in resolved.values():
        # A path may look like markup.
        shown = Text(json.dumps(value).strip('"'))
        table.add_row(key, shown, origin.value, style=_STYLES[origin])
    Console().print(table)
