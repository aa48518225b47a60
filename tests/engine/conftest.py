"""Every test here runs the real engine and is marked ``engine``."""

from __future__ import annotations

import tempfile
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

    with pytest.MonkeyPatch.context() as patch:
        for name in FOREIGN:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each engine leaves five empty files for its sockets (server_args.py:7806); here they go.

    Not a folder of pytest's, whose names are long: the path of a socket holds 107 bytes.
    """
    tmp_path_factory.getbasetemp()  # Made on first use, and not to be in there.
    with (
        tempfile.TemporaryDirectory(prefix="specswitch-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
