"""Reads YAML into plain values and remembers where each one stands.

PyYAML drops line numbers, keeps the last of two equal keys, and follows YAML 1.1, where
`off` is false, `010` is 8 and `1:30` is 90. In a file of thresholds each of these is a
mistake that would go unnoticed; here it becomes a problem with a line number.
"""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from yaml.constructor import SafeConstructor

KeyPath = tuple[str, ...]

MAX_BYTES = 1 << 16
"""A larger file is not a configuration; it is refused before it is parsed."""

_OPEN_ALREADY = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""Names here are of what the process was started with: `/dev/stdin`, `<(command)`."""

_TAG = "tag:yaml.org,2002:"
_PLAIN_NUMBER = {
    _TAG + "int": re.compile(r"[-+]?(0|[1-9][0-9_]*)"),
    _TAG + "float": re.compile(
        r"[-+]?([0-9][0-9_]*)?\.[0-9_]*([eE][-+][0-9]+)?|[-+]?\.(inf|nan)", re.I
    ),
}
_KNOWN_TAGS = {_TAG + name for name in ("null", "bool", "int", "float", "str", "map", "seq")}


class UnreadableError(Exception):
    """The text cannot be read at all. `line` counts from 1; None when no line is to blame."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True)
class Document:
    """A YAML mapping with its places.

    Attributes:
        data: the values, as nested dicts and lists with text keys.
        lines: line of each key, counted from 1, by path of keys.
        texts: how each scalar value was written, by path of keys.
        problems: path and message of each value that YAML would read as something else.
    """

    data: dict[str, object]
    lines: dict[KeyPath, int] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[tuple[int, KeyPath, str]] = field(default_factory=list)


def read_document(path: Path) -> Document:
    """Read a YAML file whose top level is a mapping.

    Raises:
        UnreadableError: no such file, a named pipe or a socket, not readable, not UTF-8, not YAML,
            empty, or not a mapping.
    """
    try:
        _refuse_endless(path)
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UnreadableError(f"cannot read it: {error.strerror or error}") from error
    except ValueError as error:  # a NUL in the name
        raise UnreadableError(f"cannot read it: {error}") from error
    if len(raw) > MAX_BYTES:
        raise UnreadableError(
            f"larger than {MAX_BYTES} bytes: this is not a specswitch configuration"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UnreadableError("not UTF-8 text; save the file as UTF-8", line) from error
    return parse_document(text)


def _refuse_endless(path: Path) -> None:
    """Opening a named pipe waits for somebody to write to it, maybe for ever."""
    mode = path.stat().st_mode
    if stat.S_ISSOCK(mode):
        raise UnreadableError("a socket, not a file; name a YAML file")
    if stat.S_ISFIFO(mode) and path.parent not in _OPEN_ALREADY:
        raise UnreadableError("a named pipe (FIFO), not a file; name a YAML file or /dev/stdin")


def parse_document(text: str) -> Document:
    """The same for text that is already in memory.

    Raises:
        UnreadableError: not YAML, empty, or not a mapping.
    """
    node = _compose(text)
    if node is None or _is_null(node):
        raise UnreadableError("empty; write at least one key, or name no file to use the defaults")
    if not isinstance(node, yaml.MappingNode):
        raise UnreadableError(
            "expected `key: value` lines at the top level", node.start_mark.line + 1
        )
    document = Document(data={})
    document.data.update(_mapping(node, (), document))
    return document


def parse_scalar(text: str) -> object:
    """A value as it would be read after `key: ` in a file; for values given on a command line.

    Raises:
        UnreadableError: not YAML, or a value that YAML would read as something else.
    """
    node = _compose(text)
    if node is None:
        raise UnreadableError("a value is missing")
    document = Document(data={})
    value = _value(node, (), document)
    if document.problems:
        raise UnreadableError(document.problems[0][2])
    return value


class _NoAliasLoader(yaml.SafeLoader):
    """Refuses aliases: a configuration has no use for them, and nested ones grow without bound."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise UnreadableError(
                "aliases (`*name`) are not supported; write the value out",
                event.start_mark.line + 1,
            )
        return super().compose_node(parent, index)


def _compose(text: str) -> yaml.Node | None:
    try:
        loader = _NoAliasLoader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise UnreadableError(f"not valid YAML: {what}", mark.line + 1 if mark else None) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UnreadableError(
            f"not valid YAML: character #x{ord(text[error.position]):04x} is not allowed", line
        ) from error
    except yaml.YAMLError as error:
        raise UnreadableError(f"not valid YAML: {error}") from error
    except RecursionError as error:
        raise UnreadableError("not valid YAML: nested too deeply") from error


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _TAG + "null"


def _value(node: yaml.Node, path: KeyPath, document: Document) -> object:
    if node.tag not in _KNOWN_TAGS:
        name = node.tag.replace(_TAG, "!!")
        written = f"`{node.value}` is" if isinstance(node, yaml.ScalarNode) else "this is"
        document.problems.append(
            (node.start_mark.line + 1, path, f"{written} a {name} value, which no key takes")
        )
        return None
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, document)
    if isinstance(node, yaml.SequenceNode):
        return [
            _value(item, (*path, str(index)), document) for index, item in enumerate(node.value)
        ]
    return _scalar(node, path, document)


def _mapping(node: yaml.MappingNode, path: KeyPath, document: Document) -> dict[str, object]:
    result: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            document.problems.append((line, path, "a key must be plain text"))
            continue
        # The text as written: a key `on` is an unknown key "on", not the boolean true.
        key = key_node.value
        here = (*path, key)
        if key in result:
            document.problems.append(
                (line, here, f"given twice, first on line {document.lines[here]}; remove one")
            )
            continue
        document.lines[here] = line
        result[key] = _value(value_node, here, document)
    return result


def _scalar(node: yaml.Node, path: KeyPath, document: Document) -> object:
    text: str = node.value
    document.texts[path] = text
    line = node.start_mark.line + 1
    plain = _PLAIN_NUMBER.get(node.tag)
    if plain and not plain.fullmatch(text):
        document.problems.append((line, path, f"write `{text}` as a plain decimal number"))
        return None
    try:
        value: object = SafeConstructor().construct_object(node)
    except (ValueError, KeyError, yaml.YAMLError):
        name = node.tag.replace(_TAG, "!!")
        document.problems.append((line, path, f"`{text[:40]}` cannot be read as a {name} value"))
        return None
    return value
