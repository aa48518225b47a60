"""The parent finds out when a scheduler process runs another worker than it asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specswitch.config import Config
from specswitch.engine import compat, handshake
from specswitch.engine.errors import HookNotApplied
from specswitch.engine.settings import Settings


class SpecSwitchWorker:
    """The one method by which a worker of specswitch is told from others."""

    def begin_step(self) -> None:
        raise NotImplementedError


class EAGLEWorkerV2:
    """A worker of the engine."""


@pytest.fixture(autouse=True)
def _release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        compat,
        "release",
        lambda: SimpleNamespace(scheduler_worker=lambda scheduler: scheduler.draft_worker),
    )


def report(worker: object) -> dict[str, Any]:
    scheduler = SimpleNamespace(draft_worker=worker)
    return handshake.report_worker({"status": "ready"}, scheduler)


def launch(reports: list[dict[str, Any]], *, asked: bool = True, dp_size: int = 1) -> Any:
    """What `Engine._launch_scheduler_processes` returns; `reports` come in while it is awaited."""
    server_args = SimpleNamespace(dp_size=dp_size)
    if asked:
        Settings(Config(), None, max_running_requests_unset=False).attach(server_args)
    result = SimpleNamespace(scheduler_infos=[])
    result.wait_for_ready = lambda: result.scheduler_infos.extend(reports)
    launched = handshake.require_worker((result, []), object, server_args)
    assert launched == (result, [])
    return result


def test_a_child_with_the_worker_says_so() -> None:
    assert report(SpecSwitchWorker()) == {
        "status": "ready",
        "specswitch": {"worker": "SpecSwitchWorker"},
    }


@pytest.mark.parametrize("worker", [EAGLEWorkerV2(), None], ids=["stock", "no speculation"])
def test_a_child_without_it_reports_what_the_engine_reports(worker: object) -> None:
    assert report(worker) == {"status": "ready"}


def test_a_server_whose_children_all_run_the_worker_starts() -> None:
    result = launch([report(SpecSwitchWorker()), report(SpecSwitchWorker())])
    result.wait_for_ready()
    assert len(result.scheduler_infos) == 2


def test_children_that_run_another_worker_are_named() -> None:
    result = launch([report(SpecSwitchWorker()), report(EAGLEWorkerV2()), report(EAGLEWorkerV2())])
    with pytest.raises(HookNotApplied, match=r"\[1, 2\].*SGLANG_PLUGINS") as refusal:
        result.wait_for_ready()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("launched", [{"asked": False}, {"dp_size": 2}], ids=str)
def test_servers_that_cannot_be_checked_or_did_not_ask_are_left_alone(
    launched: dict[str, Any],
) -> None:
    launch([report(EAGLEWorkerV2())], **launched).wait_for_ready()
