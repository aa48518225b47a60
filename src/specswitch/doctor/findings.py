"""What a check found: the same shape for the terminal, for JSON and for the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Status(str, Enum):
    """How a finding stands."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; not in the way."""
    PROBLEM = "problem"
    """A server would not start, or not with specswitch."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        name: what it is about.
        text: how it is.
        status: whether that is all right.
        fix: what to change; None where nothing has to be.
    """

    name: str
    text: str
    status: Status = Status.OK
    fix: str | None = None


@dataclass(frozen=True)
class Section:
    """Findings of one kind."""

    title: str
    findings: Sequence[Finding]


def problems(sections: Sequence[Section]) -> list[Finding]:
    """All findings that are problems."""
    return [
        finding
        for section in sections
        for finding in section.findings
        if finding.status is Status.PROBLEM
    ]


def to_json(sections: Sequence[Section]) -> dict[str, Any]:
    """{"ok": bool, "sections": {title: [{"name", "text", "status", "fix"}, ...]}}."""
    return {
        "ok": not problems(sections),
        "sections": {
            section.title: [asdict(finding) for finding in section.findings] for section in sections
        },
    }
