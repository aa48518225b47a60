"""The raw values of a configuration, and who set which: the file or a flag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from specswitch.config_lines import Document, KeyPath
from specswitch.config_problems import Problem

_AFTER_THE_FILE = 1 << 30


class Origin(str, Enum):
    """Where an effective value comes from."""

    DEFAULT = "default"
    FILE = "file"
    FLAG = "flag"

    def __str__(self) -> str:
        return self.value


class Sources:
    """A file's values with flags put over them.

    A flag that changes `policy.kind` drops the file's other policy keys: they belong to the
    other kind.

    Args:
        name: name of the file; None when there is none.
        document: what the file holds; taken over and changed.
        flags: values by dotted key.
        flag_word: what reports put before the key of a flag.
    """

    def __init__(
        self,
        name: str | None,
        document: Document,
        flags: Mapping[str, object],
        flag_word: str = "flag ",
    ) -> None:
        self._name = name
        self._flag_word = flag_word
        self._document = document
        self._flags: list[KeyPath] = []
        # The kind first, so that it drops what the file says and not what a flag says.
        for key in sorted(flags, key=lambda key: key != "policy.kind"):
            self._put(tuple(key.split(".")), flags[key])

    @property
    def data(self) -> dict[str, object]:
        """The values, not checked yet."""
        return self._document.data

    @property
    def texts(self) -> Mapping[KeyPath, str]:
        """How each value that still stands was written in the file."""
        return self._document.texts

    def _put(self, path: KeyPath, value: object) -> None:
        """Set one value, making the mappings on the way to it."""
        if path == ("policy", "kind"):
            self._drop_other_kind(value)
        *parents, last = path
        level = self.data
        for parent in parents:
            inner = level.get(parent)
            # A copy: the mapping may be the caller's, given as the value of another flag.
            copied = dict(inner) if isinstance(inner, dict) else {}
            level[parent] = copied
            level = copied
        level[last] = value
        self._forget(path)
        self._flags.append(path)

    def _drop_other_kind(self, kind: object) -> None:
        policy = self.data.get("policy")
        if isinstance(policy, dict) and policy.get("kind", "queue_depth") != kind:
            self.data["policy"] = {}
            self._forget(("policy",))

    def _forget(self, path: KeyPath) -> None:
        """Drop what the file says below `path`: it no longer counts."""
        document = self._document
        for known in [each for each in document.lines if _within(each, path)]:
            del document.lines[known]
        for known in [each for each in document.texts if _within(each, path)]:
            del document.texts[known]
        document.problems[:] = [each for each in document.problems if not _within(each[1], path)]

    def misread(self) -> Iterator[tuple[KeyPath, int, str]]:
        """Values that YAML reads as something else: path, rank and line as in `report`."""
        for line, path, message in self._document.problems:
            yield path, line, self._sentence(f"{self._name}:{line}", path, message)

    def report(self, problem: Problem) -> tuple[int, str]:
        """A problem as one line with its place, and a rank to sort lines by."""
        rank, place = self._place(problem.places)
        return rank, self._sentence(place, problem.path, problem.message)

    def origin(self, path: KeyPath) -> Origin:
        """Who set the effective value at `path`."""
        if any(_within(path, flag) for flag in self._flags):
            return Origin.FLAG
        return Origin.FILE if path in self._document.lines else Origin.DEFAULT

    def _place(self, suspects: tuple[KeyPath, ...]) -> tuple[int, str]:
        """Where to look: a flag, else the line of a value, else of what it stands under."""
        lines = self._document.lines
        for path in suspects:
            for flag in reversed(self._flags):
                if _within(path, flag):
                    return _AFTER_THE_FILE, self._flag(flag)
        for path in suspects:
            if path in lines:
                return lines[path], f"{self._name}:{lines[path]}"
        for path in suspects:
            for length in range(len(path), 0, -1):
                above = path[:length]
                if above in lines:
                    return lines[above], f"{self._name}:{lines[above]}"
                for flag in self._flags:
                    if _within(flag, above):
                        return _AFTER_THE_FILE, self._flag(flag)
        return 0, self._name or "defaults"

    def _flag(self, path: KeyPath) -> str:
        return self._flag_word + ".".join(path)

    def _sentence(self, place: str, path: KeyPath, message: str) -> str:
        if not path:
            return f"{place}: {message}"
        if place in map(self._flag, self._flags):
            # The flag's own key beside it would be a second key in one sentence.
            return f"{self._flag(path)}: {message}"
        return f"{place}: {'.'.join(path)}: {message}"


def leaves(tree: Mapping[str, Any], above: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Path and value of everything in nested mappings that is not itself a mapping."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _within(path: KeyPath, ancestor: KeyPath) -> bool:
    return path[: len(ancestor)] == ancestor
