"""Reads, checks and resolves the configuration: a YAML file, and flags on top of it.

Read once, in the parent process; children get `config.model_dump(mode="json")` and
rebuild it with `Config.model_validate`, so a file that changes later cannot part ranks.
Imports neither torch nor sglang.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specswitch.config_lines import Document, KeyPath, UnreadableError, read_document
from specswitch.config_model import (
    Config,
    FixedConfig,
    GuardConfig,
    KvUseMarks,
    PeriodicConfig,
    PolicyConfig,
    QueueDepthConfig,
    RunningMarks,
    WaitingMarks,
)
from specswitch.config_problems import Problem, explain

__all__ = [
    "Config",
    "ConfigError",
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
]


class ConfigError(ValueError):
    """The configuration cannot be used.

    The message has one line per problem: `FILE:LINE: key: what is wrong; what to change`,
    or `flag KEY: ...` for a value that came from a flag.

    Attributes:
        problems: the lines.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Origin(str, Enum):
    """Where an effective value comes from."""

    DEFAULT = "default"
    FILE = "file"
    FLAG = "flag"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Resolved:
    """An effective configuration.

    Attributes:
        config: the values.
        origins: origin of each value, by dotted key; the keys are those of the values in
            `config`, in the same order.
    """

    config: Config
    origins: Mapping[str, Origin]

    def values(self) -> Iterator[tuple[str, object, Origin]]:
        """Each effective value as (dotted key, plain value, origin)."""
        for path, value in _leaves(self.config.model_dump(mode="json")):
            key = ".".join(path)
            yield key, value, self.origins[key]


def load_config(path: str | Path | None) -> Config:
    """The configuration in a YAML file.

    Args:
        path: the file; None for the defaults.

    Raises:
        ConfigError: the file cannot be read, or breaks a rule.
    """
    return resolve(path, {}).config


def resolve(path: str | Path | None, flags: Mapping[str, object]) -> Resolved:
    """The configuration in a YAML file with flags put over it, and where each value is from.

    A flag that changes `policy.kind` starts the policy afresh: the file's keys belong to
    the other kind.

    Args:
        path: the file; None for the defaults.
        flags: plain values by dotted key, e.g. `{"max_speculative_batch": 32}`.

    Raises:
        ConfigError: the file cannot be read, or the result breaks a rule.
    """
    sources = _Sources(path)
    for key, value in flags.items():
        sources.put(key, value)
    return sources.resolve()


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the file, with descriptions, for editors and other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Config.model_json_schema(),
        "title": "specswitch configuration",
    }


@dataclass
class _Sources:
    """The raw values before they are checked, and who set which."""

    path: str | Path | None
    document: Document = field(init=False)
    flagged: list[KeyPath] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.path is None:
            self.document = Document(data={})
            return
        try:
            self.document = read_document(Path(self.path))
        except UnreadableError as error:
            line = "" if error.line is None else f":{error.line}"
            raise ConfigError(f"{self.path}{line}: {error.message}") from error

    def put(self, key: str, value: object) -> None:
        """Set one value, making the mappings on the way to it."""
        path = tuple(key.split("."))
        if path == ("policy", "kind"):
            self._drop_other_kind(value)
        *parents, last = path
        level = self.document.data
        for parent in parents:
            inner = level.get(parent)
            if not isinstance(inner, dict):
                inner = level[parent] = {}
            level = inner
        level[last] = value
        self._forget(path)
        self.flagged.append(path)

    def _drop_other_kind(self, kind: object) -> None:
        policy = self.document.data.get("policy")
        if isinstance(policy, dict) and policy.get("kind", "queue_depth") != kind:
            self.document.data["policy"] = {}
            self._forget(("policy",))

    def _forget(self, path: KeyPath) -> None:
        """Drop what the file had to say on `path`, which no longer counts."""
        document = self.document
        for known in [each for each in document.lines if _within(each, path)]:
            del document.lines[known]
        for known in [each for each in document.texts if _within(each, path)]:
            del document.texts[known]

    def resolve(self) -> Resolved:
        document = self.document
        problems = [
            (line, self._line(Problem(path, message, (path,)), line))
            for line, path, message in document.problems
        ]
        misread = [path for _, path, _ in document.problems]
        try:
            config = Config.model_validate(document.data)
        except ValidationError as error:
            for problem in explain(error, document.texts):
                if problem.path not in misread:
                    line = self._blame(problem)[1]
                    problems.append((line, self._line(problem)))
        if problems:
            raise ConfigError(*(text for _, text in sorted(problems, key=lambda each: each[0])))
        return Resolved(config, self._origins(config))

    def _line(self, problem: Problem, line: int | None = None) -> str:
        place = f"{self.path}:{line}" if line else self._blame(problem)[0]
        key = ".".join(problem.path)
        if place == f"flag {key}" or not key:
            return f"{place}: {problem.message}"
        return f"{place}: {key}: {problem.message}"

    def _blame(self, problem: Problem) -> tuple[str, int]:
        """Where the value to change was set, and a line number to sort by (flags go last)."""
        for place in problem.places:
            for flag in reversed(self.flagged):
                if _within(place, flag):
                    return f"flag {'.'.join(flag)}", 1 << 30
        for place in problem.places:
            if place in self.document.lines:
                return self._at(place)
        for place in problem.places:
            for length in range(len(place) - 1, 0, -1):
                if place[:length] in self.document.lines:
                    return self._at(place[:length])
                for flag in self.flagged:
                    if _within(flag, place[:length]):
                        return f"flag {'.'.join(flag)}", 1 << 30
        return str(self.path or "defaults"), 0

    def _at(self, path: KeyPath) -> tuple[str, int]:
        line = self.document.lines[path]
        return f"{self.path}:{line}", line

    def _origins(self, config: Config) -> dict[str, Origin]:
        origins = {}
        for path, _ in _leaves(config.model_dump(mode="json")):
            if any(_within(path, flag) for flag in self.flagged):
                origin = Origin.FLAG
            elif path in self.document.lines:
                origin = Origin.FILE
            else:
                origin = Origin.DEFAULT
            origins[".".join(path)] = origin
        return origins


def _within(path: KeyPath, ancestor: KeyPath) -> bool:
    return path[: len(ancestor)] == ancestor


def _leaves(tree: Mapping[str, Any], above: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    for key, value in tree.items():
        path = (*above, key)
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, value
