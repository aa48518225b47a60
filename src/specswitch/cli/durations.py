"""Durations on a command line: their bounds keep out what a clock cannot wait for."""

from __future__ import annotations

import math

import typer

#: A week, in seconds; a server is watched for less.
LONGEST_S = 7 * 86400.0


def no_nan(seconds: float | None) -> float | None:
    """Callback of an option, because `nan` is neither below a lower bound nor above an upper one.

    Some releases of Typer find that out by themselves.

    Raises:
        typer.BadParameter: it is that.
    """
    if seconds is not None and math.isnan(seconds):
        raise typer.BadParameter("expected a number of seconds, got nan")
    return seconds
