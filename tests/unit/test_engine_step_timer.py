"""Step times: one JSON line a decode step, and nothing at all unless asked for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from specswitch.control.decision import Decision, Mode, Reason

pytest.importorskip("torch")

import torch

from specswitch.engine.step_timer import RecordingTimer, StepTimer


def decision(step: int, mode: Mode, *, switched: bool = False) -> Decision:
    return Decision(step, mode, Reason.PERIODIC, switched)


def test_without_the_variable_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECSWITCH_STEP_TIMES", raising=False)
    assert type(StepTimer.from_environment("cpu", tp_rank=0)) is StepTimer


def test_only_rank_0_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    monkeypatch.setenv("SPECSWITCH_STEP_TIMES", str(path))
    assert type(StepTimer.from_environment("cpu", tp_rank=1)) is StepTimer
    assert not path.exists()
    assert type(StepTimer.from_environment("cpu", tp_rank=0)) is RecordingTimer


def batch(size: int) -> SimpleNamespace:
    return SimpleNamespace(seq_lens=torch.zeros(size))


def emit(timer: StepTimer, **tokens: int) -> None:
    """The result of a step reaches the host."""
    requests = SimpleNamespace(reqs=[SimpleNamespace(rid=rid) for rid in tokens])
    timer.emitted(requests, SimpleNamespace(accept_lens=torch.tensor(list(tokens.values()))))


def test_each_step_has_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "times.jsonl"
    monkeypatch.setenv("SPECSWITCH_STEP_TIMES", str(path))
    timer = StepTimer.from_environment("cpu", tp_rank=0)
    with timer.measure(decision(0, Mode.SPECULATE), batch(2)), timer.part("propose", 7):
        pass
    # Results come one step behind.
    assert path.read_text() == ""
    with timer.measure(decision(1, Mode.TARGET_ONLY, switched=True), batch(1)):
        pass
    emit(timer, a=4, b=1)
    timer.interrupt()
    with timer.measure(decision(2, Mode.TARGET_ONLY), batch(5)):
        pass
    emit(timer, a=1)
    emit(timer, c=1)
    first, second, third = map(json.loads, path.read_text().splitlines())
    assert (first["step"], first["mode"], first["batch"]) == (0, "speculate", 2)
    assert first["ms"] is None
    ((name, positions, took),) = first["parts"]
    assert (name, positions) == ("propose", 7)
    assert 0 <= took <= first["forward_ms"]
    assert first["tokens"] == {"a": 4, "b": 1}
    assert (second["mode"], second["switched"], second["batch"]) == ("target_only", True, 1)
    assert second["ms"] >= second["forward_ms"] >= 0
    assert second["parts"] == []
    assert second["tokens"] == {"a": 1}
    # A prefill came between: there is no decode step before it.
    assert third["ms"] is None
    assert third["forward_ms"] >= 0
