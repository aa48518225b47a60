"""A hook counts as applied when its own function is in the target's chain of wrappers."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from specswitch.engine.errors import HookNotApplied
from specswitch.engine.hooks import Hook, verify


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that stands in for the engine's."""

    class Scheduler:
        def run_batch(self) -> str:
            return "ran"

        @classmethod
        def create(cls) -> str:
            return "created"

    module = ModuleType("standin_engine")
    module.Scheduler = Scheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "standin_engine", module)
    return module


def around(hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper as the engine's registry makes them (plugins/hook_registry.py:345)."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    return wrapper


def ours(original: Callable[..., Any], *args: Any) -> Any:
    return original(*args)


def theirs(original: Callable[..., Any], *args: Any) -> Any:
    return original(*args)


RUN_BATCH = Hook("standin_engine.Scheduler.run_batch", ours, "AROUND")


def test_a_function_of_the_engine_is_not_hooked(engine: ModuleType) -> None:
    assert not RUN_BATCH.is_applied()


def test_a_wrapped_function_is_hooked(engine: ModuleType) -> None:
    engine.Scheduler.run_batch = around(ours, engine.Scheduler.run_batch)
    assert RUN_BATCH.is_applied()
    verify([RUN_BATCH])


def test_a_class_method_can_be_hooked(engine: ModuleType) -> None:
    hook = Hook("standin_engine.Scheduler.create", ours, "AROUND")
    assert not hook.is_applied()
    original = engine.Scheduler.__dict__["create"].__func__
    engine.Scheduler.create = classmethod(around(ours, original))
    assert hook.is_applied()


@pytest.mark.parametrize("order", [(ours, theirs), (theirs, ours)], ids=["inside", "outside"])
def test_another_plug_ins_hook_on_the_same_target_does_no_harm(
    engine: ModuleType, order: tuple[Callable[..., Any], ...]
) -> None:
    for hook in order:
        engine.Scheduler.run_batch = around(hook, engine.Scheduler.run_batch)
    assert RUN_BATCH.is_applied()


def test_a_target_that_another_plug_in_replaced_is_named(engine: ModuleType) -> None:
    engine.Scheduler.run_batch = around(ours, engine.Scheduler.run_batch)
    engine.Scheduler.run_batch = lambda self: "replaced"
    with pytest.raises(HookNotApplied, match=r"standin_engine\.Scheduler\.run_batch") as refusal:
        verify([RUN_BATCH])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "target", ["standin_engine.Scheduler.gone", "standin_engine.Gone.run", "no_such_module.f"]
)
def test_a_target_that_does_not_exist_is_not_hooked(engine: ModuleType, target: str) -> None:
    assert not Hook(target, ours, "AFTER").is_applied()
