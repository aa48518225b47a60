"""Supported releases, and what is known of each without importing the engine."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from specswitch.engine import compat, plugin
from specswitch.engine.compat import v0_5_12_post1 as release
from specswitch.engine.errors import StartupRefusal
from specswitch.engine.hooks import Hook


@pytest.fixture(autouse=True)
def _forget_release() -> Iterator[None]:
    compat.release.cache_clear()
    yield
    compat.release.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, number: str | None) -> None:
    monkeypatch.setattr(compat, "installed_version", lambda: number)


@pytest.mark.parametrize("number", compat.SUPPORTED)
def test_each_supported_release_has_a_module_of_its_own(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    install(monkeypatch, number)
    assert compat.is_supported()
    assert number == compat.release().VERSION


@pytest.mark.parametrize("number", ["0.5.12", "0.5.13", "0.6.0", None])
def test_another_release_is_refused_with_those_that_work(
    monkeypatch: pytest.MonkeyPatch, number: str | None
) -> None:
    install(monkeypatch, number)
    monkeypatch.delenv(compat.ALLOW_UNTESTED, raising=False)
    assert not compat.is_supported()
    with pytest.raises(StartupRefusal, match=f"{number}.*0.5.12.post1.*{compat.ALLOW_UNTESTED}=1"):
        compat.release()


def test_an_untested_release_runs_on_the_newest_module_when_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "0.5.99")
    monkeypatch.setenv(compat.ALLOW_UNTESTED, "1")
    newest = list(compat.SUPPORTED.values())[-1]
    assert compat.release() is importlib.import_module(f"{compat.__name__}.{newest}")


@pytest.mark.parametrize(("number", "all_hooks"), [("0.5.12.post1", True), ("0.5.99", False)])
def test_on_an_untested_release_only_the_flags_are_offered(
    monkeypatch: pytest.MonkeyPatch, number: str, all_hooks: bool
) -> None:
    install(monkeypatch, number)
    monkeypatch.delenv(compat.ALLOW_UNTESTED, raising=False)
    monkeypatch.setattr(compat, "is_patched", lambda: False)
    registered: list[Hook] = []
    monkeypatch.setattr(Hook, "register", lambda hook: registered.append(hook))
    plugin.register()
    flags = plugin.flag_hooks()
    assert tuple(registered[: len(flags)]) == flags
    assert (len(registered) > len(flags)) is all_hooks


def graphs(**changes: object) -> SimpleNamespace:
    values = {
        "disable_cuda_graph": False,
        "device": "cuda",
        "cuda_graph_bs": [16, 1, 2, 4, 8, 32],
        "cuda_graph_max_bs": 32,
    }
    return SimpleNamespace(**values | changes)


@pytest.mark.parametrize(
    ("limit", "verify"),
    [
        (1, [1]),
        (8, [1, 2, 4, 8]),
        (10, [1, 2, 4, 8, 10]),
        (32, [1, 2, 4, 8, 16, 32]),
        (100, [1, 2, 4, 8, 16, 32]),
    ],
)
def test_speculative_graphs_reach_the_largest_speculative_batch(
    limit: int, verify: list[int]
) -> None:
    server_args = graphs()
    assert release.bound_verify_graphs(server_args, limit) == [1, 2, 4, 8, 16, 32]
    assert server_args.cuda_graph_bs == verify
    assert server_args.cuda_graph_max_bs == verify[-1]


def test_a_limit_below_every_graph_size_gets_a_graph_of_its_own() -> None:
    server_args = graphs(cuda_graph_bs=[8, 16])
    assert release.bound_verify_graphs(server_args, 3) == [8, 16]
    assert server_args.cuda_graph_bs == [3]


@pytest.mark.parametrize("changes", [{"disable_cuda_graph": True}, {"device": "cpu"}], ids=str)
def test_without_cuda_graphs_none_are_planned(changes: dict[str, object]) -> None:
    server_args = graphs(**changes)
    assert release.bound_verify_graphs(server_args, 8) is None
    assert server_args.cuda_graph_bs == [16, 1, 2, 4, 8, 32]
