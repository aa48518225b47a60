"""Servers for the GPU tests: started together, on a GPU, and stopped by themselves.

Variables:

* ``SPECSWITCH_TEST_REPORT=FILE`` writes what was measured (near ties, acceptance, steps by mode,
  graph memory) as JSON, with devices, engine, command and date; the end of the test output shows
  what was measured too. ``BENCH_COMMIT`` names the commit in it.
* ``SPECSWITCH_TEST_DEVICE=cpu`` rehearses on the CPU engine: the same servers and tests, without
  graphs, streams and bfloat16. ``SPECSWITCH_TEST_MODELS=DIR`` takes another pair of models.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from benchmarks import machine

_HERE = Path(__file__).parent
# The harness of the engine tests drives these servers too.
sys.path.append(str(_HERE.parent / "engine"))

# Its assertions show what they compared, as those of a test module do.
pytest.register_assert_rewrite("checks")

from scenarios.launch import Servers  # noqa: E402
from scenarios.plan import SERVERS  # noqa: E402

_measured: dict[str, Any] = {}


def _device() -> str:
    return os.environ.get("SPECSWITCH_TEST_DEVICE", "cuda")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that talks to a server, so that it is skipped where there is no GPU."""
    for item in items:
        if _HERE not in item.path.parents or "servers" not in getattr(item, "fixturenames", ()):
            continue
        if _device() == "cpu":
            item.own_markers = [mark for mark in item.own_markers if mark.name != "multigpu"]
            item.add_marker(pytest.mark.engine)
        elif item.get_closest_marker("multigpu") is None:
            item.add_marker(pytest.mark.gpu)
        ranks = SERVERS[_server_of(item)].tp
        if ranks > _most_ranks():
            item.add_marker(pytest.mark.skip(reason=f"needs {ranks} CUDA devices"))


@cache
def _most_ranks() -> int:
    if _device() == "cpu":
        return 2
    if find_spec("torch") is None:
        return 1
    import torch

    return max(1, torch.cuda.device_count())


def _server_of(item: pytest.Item) -> str:
    name: str = item.callspec.params["server"]  # type: ignore[attr-defined]
    return name


@pytest.fixture(scope="session")
def device() -> str:
    """ "cuda", or "cpu" in a rehearsal."""
    return _device()


@pytest.fixture(scope="session", autouse=True)
def _started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers | None]:
    # At once, before the tests that need no server: starting takes most of the time.
    names = _needed(request.session.items)
    if not names:
        yield None
        return
    servers = Servers(
        names,
        _device(),
        tmp_path_factory.mktemp("servers"),
        os.environ.get("SPECSWITCH_TEST_MODELS"),
    )
    yield servers
    servers.close()


def _needed(items: list[pytest.Item]) -> set[str]:
    named = {
        _server_of(item)
        for item in items
        if "servers" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("skip")
    }
    return named | {SERVERS[name].reference for name in named}


@pytest.fixture
def servers(_started: Servers | None) -> Servers:
    """What the servers reported. A test names its server as its parameter ``server``."""
    assert _started is not None
    return _started


@pytest.fixture(scope="session")
def measured() -> dict[str, Any]:
    """For numbers that are worth showing at the end, whatever the verdict."""
    return _measured


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _measured:
        return
    terminalreporter.section("measured by the GPU tests")
    for name, value in sorted(_measured.items()):
        terminalreporter.write_line(f"{name}: {json.dumps(value)}")
    if path := os.environ.get("SPECSWITCH_TEST_REPORT"):
        report = {**_where(), "tests": _counts(terminalreporter), "measured": _measured}
        Path(path).write_text(json.dumps(report, indent=1) + "\n")


def _where() -> dict[str, Any]:
    """Devices, engine and command, for whoever repeats the run."""
    details = machine.details(_device())
    return {
        "gpu": machine.device_name(_device(), _most_ranks()),
        "engine": machine.engine_version(),
        "torch": details["torch"],
        "command": shlex.join(["python", "-m", "pytest", *sys.argv[1:]]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": details["commit"],
    }


def _counts(terminalreporter: Any) -> dict[str, int]:
    kinds = ("passed", "failed", "error", "skipped")
    return {kind: len(terminalreporter.stats.get(kind, [])) for kind in kinds}
