"""Every test here runs the real engine and is marked ``engine``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Checks that several test modules share; without this a failure shows no values.
pytest.register_assert_rewrite("runs")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(autouse=True, scope="session")
def _without_the_shells_settings() -> Iterator[None]:
    """Tests choose the worker themselves, whatever the shell is set up to serve."""
    from harness.launcher import FOREIGN

    kept = {name: os.environ.pop(name) for name in FOREIGN if name in os.environ}
    yield
    os.environ.update(kept)
