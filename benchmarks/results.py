"""The result file: one JSON object, complete after every single measurement.

A run may end at any time (a deadline, Ctrl-C, a machine that goes away), and a long
one may be split over several commands. So the file is written anew after each
measurement, a second command can go on where the first stopped, and files of equal
setup can be merged: single measurements are kept, summaries are recomputed from them.
"""

from __future__ import annotations

import copy
import datetime
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.arms import ARMS, Arm
from benchmarks.errors import BenchmarkError, reading

#: What must be equal for measurements to stand side by side.
IDENTITY = ("benchmark", "gpu", "engine", "acceptance", "setup")
_REQUIRED = (*IDENTITY, "command", "date", "arms", "runs", "servers")

Summarise = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Cell with its single measurements in `repeats` -> the same cell with fresh summaries."""


class ResultFile:
    """A result that grows.

    Args:
        path: the JSON file.
        summarise: recomputes a cell from its single measurements.
        data: the object so far.
    """

    def __init__(self, path: Path, summarise: Summarise, data: dict[str, Any]) -> None:
        self.path = path
        self.data = data
        self._summarise = summarise

    @classmethod
    def create(
        cls,
        path: Path,
        summarise: Summarise,
        header: Mapping[str, Any],
        *,
        resume: bool,
    ) -> ResultFile:
        """A new file, or with `resume` the one that is there.

        Args:
            header: the keys of IDENTITY, `command`, and what else describes the run.

        Raises:
            BenchmarkError: the file exists and `resume` is off, or it was made with
                another setup.
        """
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        run = {"command": header["command"], "date": now, "machine": header.get("machine")}
        if path.exists():
            if not resume:
                raise BenchmarkError(f"{path} exists: add --resume to go on with it, or move it")
            data = load(path)
            require_same(data, header, str(path), "this run")
            data["runs"].append(run)
            data["command"] = "\n".join(entry["command"] for entry in data["runs"])
        else:
            data = {**header, "date": now, "runs": [run], "servers": [], "failed": [], "arms": {}}
            data.pop("machine", None)
            path.parent.mkdir(parents=True, exist_ok=True)
        result = cls(path, summarise, data)
        result.save()
        return result

    def cell(self, arm: str, point: str) -> Mapping[str, Any]:
        """The cell as it is; empty when nothing was measured there."""
        found: Mapping[str, Any] = self.data["arms"].get(arm, {}).get(point, {})
        return found

    def add(self, arm: str, point: str, kind: str, measurement: Mapping[str, Any]) -> None:
        """Append to the list `kind` of a cell, recompute the cell and save."""
        points = self.data["arms"].setdefault(arm, {})
        cell = dict(points.get(point, {}))
        cell[kind] = [*cell.get(kind, []), dict(measurement)]
        points[point] = self._summarise(cell)
        self.save()

    def require_config(self, arm: Arm) -> None:
        """BenchmarkError when servers of this arm had another worker config; both would end up in
        one cell."""
        wanted = json.loads(json.dumps(arm.config))
        for server in self.data["servers"]:
            if server["arm"] == arm.name and server.get("config") != wanted:
                raise BenchmarkError(
                    f"{self.path}: arm {arm.name} was measured with another worker config: choose "
                    "another --out"
                )

    def add_server(self, description: Mapping[str, Any]) -> int:
        """Keep a server's description; its place in the list is the `server` of measurements."""
        self.data["servers"].append(dict(description))
        self.save()
        return len(self.data["servers"]) - 1

    def add_failure(self, arm: str, error: str) -> None:
        """Keep the reason why an arm has no numbers: a gap in a table needs one."""
        self.data["failed"].append({"arm": arm, "error": error})
        self.save()

    def save(self) -> None:
        """Write the file anew; it is never seen half written."""
        self.data["arms"] = _ordered(self.data["arms"])
        scratch = self.path.with_name(self.path.name + ".part")
        scratch.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(scratch, self.path)


def load(path: Path) -> dict[str, Any]:
    """Read a result file; BenchmarkError names what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BenchmarkError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(f"{path} is not JSON: {error}") from error
    missing = [key for key in _REQUIRED if not isinstance(data, dict) or key not in data]
    if missing:
        raise BenchmarkError(f"{path} is not a result file: it lacks {', '.join(missing)}")
    if place := _misshapen(data):
        raise BenchmarkError(f"{path} is not a result file: {place}")
    return dict(data)


def _misshapen(data: Mapping[str, Any]) -> str | None:
    """What in the outline of a result has the wrong kind; cells are looked at by who reads them."""
    if not isinstance(data["benchmark"], str):
        return "benchmark is not a name"
    if not isinstance(data["setup"], dict):
        return "setup is not an object"
    for key in ("runs", "servers", "failed"):
        entries = data.get(key, [])
        if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
            return f"{key} is not a list of objects"
    if not all(isinstance(run.get("command"), str) for run in data["runs"]):
        return "a run has no command"
    if not isinstance(data["arms"], dict):
        return "arms is not an object"
    for arm, points in data["arms"].items():
        if not isinstance(points, dict) or not all(isinstance(c, dict) for c in points.values()):
            return f"arms.{arm} is not an object of cells"
    return None


def require_same(
    left: Mapping[str, Any], right: Mapping[str, Any], left_name: str, right_name: str
) -> None:
    """BenchmarkError naming every difference in what must be equal to compare numbers."""
    differences = []
    for key in IDENTITY:
        a, b = left[key], right[key]
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            names = [f"{key}.{k}" for k in sorted({*a, *b}) if a.get(k) != b.get(k)]
            differences += names
        else:
            differences.append(f"{key} ({a} and {b})")
    if differences:
        raise BenchmarkError(
            f"{left_name} and {right_name} were made differently: {', '.join(differences)}"
        )


def merge(files: Mapping[str, Mapping[str, Any]], summarise: Summarise) -> dict[str, Any]:
    """One result from several of equal setup: all single measurements, summaries recomputed.

    Args:
        files: results by the name to use in messages; at least one.

    Raises:
        BenchmarkError: their setups differ, or a cell cannot be summarised.
    """
    (first_name, first), *rest = files.items()
    for name, other in rest:
        require_same(first, other, first_name, name)
    for name, one in files.items():
        with reading(name):
            for points in one["arms"].values():
                for cell in points.values():
                    summarise(_joined({}, cell, 0))
    merged = copy.deepcopy(dict(first))
    for _, other in rest:
        shift = len(merged["servers"])
        for key in ("runs", "servers", "failed"):
            merged[key] = [*merged.get(key, []), *copy.deepcopy(list(other.get(key, [])))]
        for arm, points in other["arms"].items():
            for point, cell in points.items():
                target = merged["arms"].setdefault(arm, {}).setdefault(point, {})
                merged["arms"][arm][point] = summarise(_joined(target, cell, shift))
    merged["command"] = "\n".join(run["command"] for run in merged["runs"])
    merged["arms"] = _ordered(merged["arms"])
    return merged


def _joined(left: Mapping[str, Any], right: Mapping[str, Any], shift: int) -> dict[str, Any]:
    """The lists of both cells; summaries are left to be recomputed.

    The servers of `right` stand `shift` places further down in the joined list of servers.
    """
    lists = {key for cell in (left, right) for key in cell if isinstance(cell[key], list)}
    moved = {
        key: [{**one, "server": one["server"] + shift} for one in right.get(key, [])]
        for key in lists
    }
    return {key: [*left.get(key, []), *moved[key]] for key in sorted(lists)}


def _ordered(arms: Mapping[str, Any]) -> dict[str, Any]:
    known = [arm for arm in ARMS if arm in arms]
    ordered = {arm: arms[arm] for arm in (*known, *(arm for arm in arms if arm not in known))}
    return {arm: dict(sorted(points.items(), key=_point_key)) for arm, points in ordered.items()}


def _point_key(item: tuple[str, Any]) -> tuple[int, str]:
    # Concurrencies by value; names (phases) in the order they came, which sorted() keeps.
    return (int(item[0]), "") if item[0].isdigit() else (0, "")
