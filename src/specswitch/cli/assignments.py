"""KEY=VALUE on a command line, read as the same line would be read in a configuration file."""

from __future__ import annotations

import typer

from specswitch.config import ConfigError
from specswitch.config_lines import UnreadableError, parse_scalar


def parse_assignment(text: str, hint: str, word: str = "") -> tuple[str, object]:
    """A dotted key and a plain value.

    Args:
        text: e.g. `policy.waiting.enter=8`.
        hint: how the usage error names the argument.
        word: what other errors put before the key.

    Raises:
        typer.BadParameter: not of the form KEY=VALUE.
        ConfigError: the value would be read as something else than it looks like.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not key or not equals:
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint=hint)
    try:
        return key, parse_scalar(value)
    except UnreadableError as error:
        raise ConfigError(f"{word}{key}: {error.message}") from None
