"""Arrivals are reproducible, and a bad trace is refused by row and field."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.arrivals import TraceWindow, parse_phases, poisson, read_trace
from benchmarks.errors import BenchmarkError

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = [
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:16:50,5000,900",
]


def trace(tmp_path: Path, *rows: str, header: str = HEADER) -> str:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return str(path)


def test_the_same_seed_gives_the_same_arrivals() -> None:
    phases = parse_phases("calm:10:5,burst:5:50,calm:10:5")
    assert poisson(phases, 1) == poisson(phases, 1)
    assert poisson(phases, 1) != poisson(phases, 2)


def test_arrivals_stay_in_their_phases_at_about_their_rates() -> None:
    phases = parse_phases("calm:100:5,burst:100:50,calm:100:5")
    arrivals = poisson(phases, 1)
    assert [arrival.at for arrival in arrivals] == sorted(arrival.at for arrival in arrivals)
    for number, phase in enumerate(phases):
        mine = [one.at for one in arrivals if one.phase == phase.name]
        assert all(100 * number <= at < 100 * (number + 1) for at in mine)
        assert len(mine) == pytest.approx(100 * phase.rate, rel=0.15)


def test_a_phase_name_that_comes_again_gets_a_number() -> None:
    names = [phase.name for phase in parse_phases("calm:1:1,burst:1:1,calm:1:1")]
    assert names == ["calm", "burst", "calm-2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("calm", "'calm' is not NAME:SECONDS:REQUESTS_PER_SECOND"),
        ("calm:x:1", "could not convert"),
        ("calm:0:1", "above 0"),
        ("calm:1:-2", "above 0"),
        ("calm:inf:1", "finite"),
        ("calm:1:nan", "above 0"),
        ("", "is not NAME"),
    ],
)
def test_bad_phases_are_named(text: str, message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        parse_phases(text)


def test_phases_without_any_request_are_refused() -> None:
    with pytest.raises(BenchmarkError, match="no request arrives"):
        poisson(parse_phases("calm:0.001:0.001"), 1)


def test_a_trace_is_replayed_from_its_first_row(tmp_path: Path) -> None:
    first, second = read_trace(trace(tmp_path, *GOOD), TraceWindow(seconds=60))
    assert (first.at, first.input_len, first.output_len) == (0.0, 374, 44)
    assert second.at == pytest.approx(4.314579, abs=1e-5)


def test_a_window_of_a_trace_is_cut_speeded_up_and_clipped(tmp_path: Path) -> None:
    window = TraceWindow(start=60, seconds=10, speed=4, max_input=1000, max_output=100)
    (only,) = read_trace(trace(tmp_path, *GOOD), window)
    assert (only.input_len, only.output_len) == (1000, 100)
    assert only.at == pytest.approx((63.31941 - 60) / 4, abs=1e-4)


def test_columns_may_come_in_another_order(tmp_path: Path) -> None:
    path = trace(
        tmp_path, "7,2023-11-16 18:15:46.68,3", header="GeneratedTokens,TIMESTAMP,ContextTokens"
    )
    (only,) = read_trace(path, TraceWindow())
    assert (only.input_len, only.output_len) == (3, 7)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("yesterday,1,1", r"row 3: TIMESTAMP 'yesterday' is not a time"),
        ("2023-13-16 18:15:46,1,1", "row 3: TIMESTAMP '2023-13-16 18:15:46' is not a time"),
        ("2023-11-16 18:15:46.0,1,1", "row 3: TIMESTAMP is earlier than in the row before"),
        ("2023-11-16 18:16:46,x,1", "row 3: ContextTokens 'x' is not a whole number above 0"),
        ("2023-11-16 18:16:46,1,0", "row 3: GeneratedTokens '0' is not a whole number above 0"),
        ("2023-11-16 18:16:46,1,2.5", "row 3: GeneratedTokens '2.5'"),
        ("2023-11-16 18:16:46,1", "row 3: has 2 fields, not 3"),
    ],
)
def test_a_bad_row_is_named_with_its_field(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        read_trace(trace(tmp_path, GOOD[0], row), TraceWindow())


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = trace(tmp_path, header="TIMESTAMP,ContextTokens")
    with pytest.raises(BenchmarkError, match="row 1: lacks the column GeneratedTokens"):
        read_trace(path, TraceWindow())


def test_an_empty_window_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match="no request between second 900 and 910"):
        read_trace(trace(tmp_path, *GOOD), TraceWindow(start=900, seconds=10))
    with pytest.raises(BenchmarkError, match="cannot read the trace"):
        read_trace(str(tmp_path / "none.csv"), TraceWindow())
    (tmp_path / "empty.csv").touch()
    with pytest.raises(BenchmarkError, match="lacks the column"):
        read_trace(str(tmp_path / "empty.csv"), TraceWindow())
