"""KEY=VALUE on a command line, read as the same line would be read in a configuration file."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from specswitch.config import ConfigError
from specswitch.config_lines import UnreadableError, parse_scalar


def parse_assignments(texts: Iterable[str], hint: str, word: str = "") -> dict[str, object]:
    """Plain values by dotted key.

    Args:
        texts: e.g. `policy.waiting.enter=8`.
        hint: how the usage error names the argument.
        word: what other errors put before the key.

    Raises:
        typer.BadParameter: one is not of the form KEY=VALUE.
        ConfigError: a value would be read as something else than it looks like, or a key comes
            twice.
    """
    values: dict[str, object] = {}
    for text in texts:
        key, value = _parse(text, hint, word)
        if key in values:
            raise ConfigError(f"{word}{key}: given twice; give it once")
        values[key] = value
    return values


def _parse(text: str, hint: str, word: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not key or not equals:
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint=hint)
    try:
        return key, parse_scalar(value)
    except UnreadableError as error:
        raise ConfigError(f"{word}{key}: {error.message}") from None
