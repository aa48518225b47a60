"""Decode throughput is read from steady decode only."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.decode_log import LogTail, parse, steady


def decode(running: int, tok_s: float, accept: float | None = None, queue: int = 0) -> str:
    """A line as the engine writes it."""
    spec = "" if accept is None else f"accept len: {accept:.2f}, accept rate: 0.30, "
    return (
        f"[2026-01-01 00:00:00] Decode batch, #running-req: {running}, #token: 100, "
        f"token usage: 0.01, {spec}cuda graph: True, gen throughput (token/s): {tok_s:.2f}, "
        f"#queue-req: {queue}"
    )


PREFILL = "[2026-01-01 00:00:00] Prefill batch, #new-seq: 4, #new-token: 256"


def test_a_line_without_speculation() -> None:
    (window,) = parse([decode(4, 800.0, queue=3)])
    assert (window.running, window.tok_s, window.accept_len, window.waiting) == (4, 800.0, 1.0, 3)
    assert window.step_ms == pytest.approx(5.0)


def test_the_step_time_counts_accepted_tokens() -> None:
    (window,) = parse([decode(64, 11767, accept=1.9)])
    assert window.step_ms == pytest.approx(1000 * 64 * 1.9 / 11767)


def test_the_first_window_after_idling_is_not_clean() -> None:
    windows = parse([decode(4, 1.0), decode(4, 800.0), decode(4, 800.0)])
    assert [window.clean for window in windows] == [False, True, True]


def test_a_prefill_spoils_its_window_and_the_next() -> None:
    lines = [decode(4, 1.0), decode(4, 800.0), PREFILL, *[decode(4, 800.0)] * 3]
    assert [window.clean for window in parse(lines)] == [False, True, False, False, True]


def test_a_change_of_the_batch_spoils_the_window() -> None:
    lines = [decode(4, 1.0), decode(4, 800.0), decode(3, 600.0), decode(3, 600.0)]
    assert [window.clean for window in parse(lines)] == [False, True, False, True]


def test_steady_uses_clean_windows_of_that_batch_only() -> None:
    lines = [decode(4, 1.0), decode(4, 800.0), decode(4, 1600.0), decode(2, 9.0), decode(2, 9.0)]
    found = steady(parse(lines), 4)
    assert found is not None
    assert found.windows == 2
    assert found.step_ms == pytest.approx(3.75)
    # Tokens over time: two windows of as many tokens, one in half the time.
    assert found.tok_s == pytest.approx(1066.67)


def test_steady_weighs_windows_by_their_time_when_modes_are_mixed() -> None:
    target_only, speculate = decode(1, 200.0, 1.0), decode(1, 300.0, 3.0)
    found = steady(parse([decode(1, 1.0, 1.0), target_only, speculate, speculate]), 1)
    assert found is not None
    assert found.tok_s == pytest.approx(1000 * (1 + 3 + 3) / (5 + 10 + 10), abs=0.01)


def test_no_clean_window_is_no_number() -> None:
    assert steady(parse([decode(4, 800.0), PREFILL, decode(4, 800.0)]), 4) is None
    assert steady([], 4) is None


def test_other_lines_and_empty_steps_are_left_out() -> None:
    assert parse(["INFO: 127.0.0.1 POST /generate", decode(4, 0.0), "Decode batch, broken"]) == []


def test_the_tail_gives_each_complete_line_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old\n")
    tail = LogTail(log)
    tail.skip()
    with log.open("a") as file:
        file.write("one\ntwo\nhal")
        file.flush()
        assert tail.read() == ["one", "two"]
        file.write("f\n")
    assert tail.read() == ["half"]
    assert tail.read() == []


def test_a_server_that_left_speculation_prints_an_acceptance_that_it_no_longer_has() -> None:
    lines = [decode(128, 17000, accept=1.9)] * 3
    found = steady(parse(lines), 128)
    assert found is not None
    told = found.without_speculation()
    assert told.step_ms == pytest.approx(1000 * 128 / 17000, abs=1e-3)
    assert (told.accept_len, told.tok_s) == (1.0, found.tok_s)
