"""Reads, checks and resolves the configuration: a YAML file, and flags on top of it.

Read once, in the parent process; children get `config.model_dump(mode="json")` and
rebuild it with `Config.model_validate`, so a file that changes later cannot part ranks.
Imports neither torch nor sglang.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specswitch.config_files import locate
from specswitch.config_lines import Document, UnreadableError, read_document
from specswitch.config_model import (
    Config,
    EventLogConfig,
    FixedConfig,
    GuardConfig,
    KvUseMarks,
    PeriodicConfig,
    PolicyConfig,
    QueueDepthConfig,
    RunningMarks,
    WaitingMarks,
)
from specswitch.config_problems import explain
from specswitch.config_sources import Origin, Sources, leaves

__all__ = [
    "Config",
    "ConfigError",
    "EventLogConfig",
    "FixedConfig",
    "GuardConfig",
    "KvUseMarks",
    "Origin",
    "PeriodicConfig",
    "PolicyConfig",
    "QueueDepthConfig",
    "Resolved",
    "RunningMarks",
    "WaitingMarks",
    "json_schema",
    "load_config",
    "resolve",
    "update",
]


#: What is not meant to be a configuration can break a rule on each of its lines, or be one long
#: key; nobody reads more than this of it.
_MOST_LINES, _LONGEST_LINE = 20, 500


class ConfigError(ValueError):
    """The configuration cannot be used.

    The message has one line per problem: `FILE:LINE: key: what is wrong; what to change`,
    or `flag KEY: ...` for a value that came from a flag. Beyond the first twenty they are
    counted only.

    Attributes:
        problems: the lines.
    """

    def __init__(self, *problems: str) -> None:
        lines = [_printable(problem) for problem in problems]
        if len(lines) > _MOST_LINES + 1:
            lines[_MOST_LINES:] = [f"... and {len(lines) - _MOST_LINES} more problems"]
        self.problems = tuple(lines)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, ...]]:
        # Exceptions are pickled with the joined message, which would come back as one problem.
        return type(self), self.problems


def _printable(text: str) -> str:
    """The text on one line: keys and file names may hold line breaks and terminal codes."""
    if len(text) > _LONGEST_LINE:
        # What is wrong stands at the end.
        text = f"{text[: _LONGEST_LINE // 2]}...{text[-_LONGEST_LINE // 2 :]}"
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


@dataclass(frozen=True)
class Resolved:
    """An effective configuration.

    Attributes:
        config: the values.
        origins: who set each value, by dotted key, in the order of `config`.
    """

    config: Config
    origins: Mapping[str, Origin]

    def values(self) -> Iterator[tuple[str, object, Origin]]:
        """Each effective value as (dotted key, plain value, origin)."""
        for path, value in leaves(self.config.model_dump(mode="json")):
            key = ".".join(path)
            yield key, value, self.origins[key]


def load_config(path: str | Path | None) -> Config:
    """The configuration in a YAML file.

    Args:
        path: the file, or the name of a ready one such as `throughput`; None for the defaults.

    Raises:
        ConfigError: the file cannot be read, or breaks a rule.
    """
    return resolve(path, {}).config


def resolve(path: str | Path | None, flags: Mapping[str, object]) -> Resolved:
    """The configuration in a YAML file with flags put over it, and who set each value.

    A flag that changes `policy.kind` starts the policy afresh: the file's keys belong to
    the other kind.

    Args:
        path: the file, or the name of a ready one; None for the defaults. Never empty.
        flags: plain values by dotted key, e.g. `{"max_speculative_batch": 32}`.

    Raises:
        ConfigError: the file cannot be read, or the result breaks a rule.
    """
    if path is not None and str(path) in ("", "."):  # `Path` makes the one of the other
        raise ConfigError("no file named: name a YAML file, or none at all to use the defaults")
    name, document = (None, Document(data={})) if path is None else _read(Path(path))
    sources = Sources(name, document, flags)
    config = _validate(sources)
    origins = {
        ".".join(key): sources.origin(key) for key, _ in leaves(config.model_dump(mode="json"))
    }
    return Resolved(config, origins)


def update(config: Config, changes: Mapping[str, object]) -> Config:
    """`config` with values put over it, checked by the same rules.

    Running marks that follow from `max_speculative_batch` go on following it.

    Args:
        config: the values before; not changed.
        changes: plain values by dotted key, e.g. `{"policy.waiting.enter": 8}`.

    Raises:
        ConfigError: the result breaks a rule. Lines begin with the key.
    """
    data = config.model_dump(mode="json")
    derived = Config.model_validate({"max_speculative_batch": config.max_speculative_batch})
    if data["policy"].get("running") == derived.model_dump(mode="json")["policy"]["running"]:
        del data["policy"]["running"]
    return _validate(Sources("running values", Document(data), changes, flag_word=""))


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the file, with descriptions, for editors and other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Config.model_json_schema(),
        "title": "specswitch configuration",
    }


def _read(given: Path) -> tuple[str, Document]:
    """Name and content of the file that is meant."""
    name = str(given)
    try:
        path = locate(given)
        name = str(path)
        return name, read_document(path)
    except UnreadableError as error:
        line = "" if error.line is None else f":{error.line}"
        raise ConfigError(f"{name}{line}: {error.message}") from error


def _validate(sources: Sources) -> Config:
    """The checked values; all problems are reported at once, in the order of the file."""
    misread = list(sources.misread())
    reports = [(line, text) for _, line, text in misread]
    misread_paths = {path for path, _, _ in misread}
    try:
        config = Config.model_validate(sources.data)
    except ValidationError as error:
        reports += [
            sources.report(problem)
            for problem in explain(error, sources.texts)
            if problem.path not in misread_paths
        ]
    if reports:
        raise ConfigError(*(text for _, text in sorted(reports, key=lambda each: each[0])))
    return config
