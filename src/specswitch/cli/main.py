"""The `specswitch` command: only puts the sub-commands together."""

from __future__ import annotations

from typing import Annotated

import typer

from specswitch import __version__
from specswitch.cli import config_cmd, ctl_cmd, demo_cmd, doctor_cmd, patch_cmd, plot_cmd, watch_cmd

app = typer.Typer(
    name="specswitch",
    help="Load-aware speculative decoding for the SGLang inference server.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(config_cmd.app, name="config")
app.add_typer(ctl_cmd.app, name="ctl")
app.add_typer(patch_cmd.app, name="patch")
app.command()(doctor_cmd.doctor)
app.command()(watch_cmd.watch)
app.command()(plot_cmd.plot)
app.command()(demo_cmd.demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specswitch {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    # Options before the sub-command; each acts in its own callback.
    pass
