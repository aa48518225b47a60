"""Debug mode notices when host and device disagree about lengths, and steps without slots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specswitch.engine.debug import check_mirror, check_slots, debug_enabled
from specswitch.engine.errors import MirrorMismatch, SlotMismatch

torch = pytest.importorskip("torch")


def batch(**changes: object) -> SimpleNamespace:
    values = {
        "seq_lens": torch.tensor([3, 5]),
        "seq_lens_cpu": torch.tensor([3, 5]),
        "seq_lens_sum": 8,
        "spec_info": SimpleNamespace(new_seq_lens=torch.tensor([3, 5])),
    }
    return SimpleNamespace(**values | changes)


def test_equal_lengths_pass() -> None:
    check_mirror(batch())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seq_lens_cpu": torch.tensor([3, 4]), "seq_lens_sum": 7}, r"host \[3, 4\], device"),
        ({"seq_lens": torch.tensor([4, 5])}, r"device \[4, 5\]"),
        (
            {"spec_info": SimpleNamespace(new_seq_lens=torch.tensor([3, 6]))},
            r"last step \[3, 6\]",
        ),
        ({"seq_lens_sum": 9}, "sum of sequence lengths: 9"),
    ],
)
def test_lengths_that_differ_are_told(changes: dict[str, object], message: str) -> None:
    with pytest.raises(MirrorMismatch, match=message):
        check_mirror(batch(**changes))


def table(**changes: int) -> Any:
    """Slots of two requests with room for eight tokens; ``r2p3=9`` sets row 2, position 3."""
    slots = torch.zeros(3, 16, dtype=torch.int32)
    slots[1, :8] = torch.arange(1, 9)
    slots[2, :8] = torch.arange(11, 19)
    for name, slot in changes.items():
        row, position = name[1:].split("p")
        slots[int(row), int(position)] = slot
    return slots


def decoding(committed: int = 4, allocated: int = 8) -> SimpleNamespace:
    """Two requests of 3 and 5 tokens; the lengths are those of the second."""
    requests = [
        SimpleNamespace(rid="first", kv_committed_len=4, kv_allocated_len=8),
        SimpleNamespace(rid="second", kv_committed_len=committed, kv_allocated_len=allocated),
    ]
    return batch(reqs=requests, req_pool_indices=torch.tensor([1, 2]))


@pytest.mark.parametrize("width", [1, 3])
def test_a_step_within_its_slots_passes(width: int) -> None:
    check_slots(decoding(), table(), width)


@pytest.mark.parametrize(
    ("step", "slots", "width", "message"),
    [
        (decoding(), table(), 4, "second: 8 slots allocated, 4 committed.*positions 5 to 8"),
        (decoding(committed=9), table(), 1, "second: 8 slots allocated, 9 committed"),
        (decoding(allocated=5), table(), 1, "second: 5 slots allocated"),
        (decoding(), table(r2p5=0), 1, r"writes the slots \[4, 0\]"),
        (decoding(), table(r2p6=5), 2, r"writes the slots \[4, 5, 16, 5\]"),
    ],
)
def test_a_step_without_slots_of_its_own_is_told(
    step: Any, slots: Any, width: int, message: str
) -> None:
    with pytest.raises(SlotMismatch, match=message):
        check_slots(step, slots, width)


@pytest.mark.parametrize(
    ("value", "enabled"), [("1", True), ("0", False), ("", False), (None, False)]
)
def test_debug_mode_is_asked_for_by_variable(
    monkeypatch: pytest.MonkeyPatch, value: str | None, enabled: bool
) -> None:
    monkeypatch.delenv("SPECSWITCH_DEBUG", raising=False)
    if value is not None:
        monkeypatch.setenv("SPECSWITCH_DEBUG", value)
    assert debug_enabled() is enabled
