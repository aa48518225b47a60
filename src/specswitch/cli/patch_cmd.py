"""`specswitch patch`: give the installed engine natively what is hooked otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from specswitch.patching import actions
from specswitch.patching.errors import PatchRefusal

app = typer.Typer(
    help="The native patch for SGLang: check it, apply it, take it off. See patches/README.md.",
    no_args_is_help=True,
)

SitePackages = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder with the package sglang; default: the one that this Python imports.",
        file_okay=False,
        show_default=False,
    ),
]


@app.command()
def check(site_packages: SitePackages = None) -> None:
    """Say whether the engine is patched, or could be. Changes nothing.

    Exit code: 1 when it is neither as released nor as patched.
    """
    _run(actions.check, site_packages)


@app.command()
def apply(site_packages: SitePackages = None) -> None:
    """Patch the engine: all files, or none. Twice is as good as once."""
    _run(actions.apply, site_packages)


@app.command()
def revert(site_packages: SitePackages = None) -> None:
    """Put the released files back, byte for byte."""
    _run(actions.revert, site_packages)


@app.command()
def diff(site_packages: SitePackages = None) -> None:
    """Print the patches, as `git am` takes them."""
    _run(actions.diff, site_packages)


def _run(action: Callable[[Path | None], str], site_packages: Path | None) -> None:
    try:
        said = action(site_packages)
    except PatchRefusal as refusal:
        typer.echo(f"specswitch: {refusal}", err=True)
        raise typer.Exit(1) from None
    typer.echo(said.rstrip("\n"))
