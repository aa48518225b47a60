"""Debug mode notices when host and device disagree about sequence lengths."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from specswitch.engine.debug import check_mirror, debug_enabled
from specswitch.engine.errors import MirrorMismatch

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
