"""Whatever a result file or a trace holds: the benchmarks use it, or say what is wrong with it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from benchmarks import arrivals, breakeven, bursts, cli, results
from benchmarks.errors import BenchmarkError
from damage import PLAIN, damaged
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

RESULTS = Path(results.__file__).parent / "results"


def trimmed(name: str) -> dict[str, Any]:
    """A result of the project with the fewest cells that its readers need."""
    whole = json.loads((RESULTS / name).read_text())
    whole["arms"] = {
        arm: {point: points[point] for point in list(points)[:2]}
        for arm, points in whole["arms"].items()
        if arm in ("no_spec", "static", "specswitch")
    }
    return whole


ENVELOPE, SWITCH = trimmed("h200-envelope.json"), trimmed("h200-switch.json")


def as_burst(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell of a benchmark of arrivals; a latency pass holds all that it measures."""
    passes = cell["latency_passes"]
    return {**bursts.summarise({"repeats": passes}), "repeats": passes}


BURSTS = {
    **ENVELOPE,
    "benchmark": bursts.BENCHMARK,
    "arms": {
        arm: dict(zip(("calm", "burst"), map(as_burst, cells.values()), strict=True))
        for arm, cells in ENVELOPE["arms"].items()
    },
}
READABLE = st.sampled_from([ENVELOPE, SWITCH, BURSTS])


@st.composite
def damaged_results(draw: st.DrawFn) -> Any:
    """One of them, damaged in its cells or anywhere."""
    whole = copy.deepcopy(draw(READABLE))
    if not draw(st.booleans()):
        return draw(damaged(whole))
    arm = draw(st.sampled_from(sorted(whole["arms"])))
    point = draw(st.sampled_from(sorted(whole["arms"][arm])))
    whole["arms"][arm][point] = draw(damaged(whole["arms"][arm][point]))
    return whole


README = "".join(
    f"<!-- bench:{name}:begin -->\n<!-- bench:{name}:end -->\n"
    for name in ("envelope", "switch", "bursts")
)


def benchmarks(capsys: pytest.CaptureFixture[str], *words: str) -> int:
    """Exit code of a command, after a look at how it speaks."""
    code = cli.main(list(words))
    error = capsys.readouterr().err
    assert code in (0, 1, 2)
    assert (code == 2) == error.startswith("benchmarks: "), error
    return code


loosely = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)


@loosely
@given(content=st.one_of(damaged_results(), PLAIN))
@example(content=ENVELOPE)
@example(content=SWITCH)
@example(content=BURSTS)
@example(content={**ENVELOPE, "gpu": "[/x]"})
def test_any_result_is_read_or_refused(capsys: pytest.CaptureFixture[str], content: Any) -> None:
    with TemporaryDirectory() as folder:
        file, readme = Path(folder) / "r.json", Path(folder) / "README.md"
        file.write_text(json.dumps(content))
        readme.write_text(README)
        benchmarks(capsys, "bars", str(file))
        if benchmarks(capsys, "table", str(file), "--readme", str(readme)) == 2:
            assert readme.read_text() == README
        benchmarks(capsys, "thresholds", "1.9", "--breakeven", str(file))
        merged = Path(folder) / "m.json"
        code = benchmarks(capsys, "merge", str(file), str(file), "--out", str(merged))
        assert merged.exists() == (code == 0)


@pytest.mark.parametrize("result", [ENVELOPE, SWITCH, BURSTS], ids=lambda one: one["benchmark"])
def test_results_as_they_are_are_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, result: Any
) -> None:
    """So that the tests above do not damage what is refused anyway."""
    (tmp_path / "r.json").write_text(json.dumps(result))
    (tmp_path / "README.md").write_text(README)
    file = str(tmp_path / "r.json")
    assert benchmarks(capsys, "bars", file) == 0
    assert benchmarks(capsys, "table", file, "--readme", str(tmp_path / "README.md")) == 0
    assert benchmarks(capsys, "merge", file, file, "--out", str(tmp_path / "m.json")) == 0


@settings(loosely, max_examples=8)
@given(content=damaged_results())
def test_plot_draws_any_result_or_refuses_it(
    capsys: pytest.CaptureFixture[str], content: Any
) -> None:
    pytest.importorskip("matplotlib")
    with TemporaryDirectory() as folder:
        file = Path(folder) / "r.json"
        file.write_text(json.dumps(content))
        code = benchmarks(capsys, "plot", str(file))
        assert file.with_suffix(".png").exists() == (code == 0)


@loosely
@given(content=st.binary(max_size=40))
@example(content=b"[" * 100_000)
@example(content=b"\xff")
def test_any_bytes_are_no_result(capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "r.json"
        file.write_bytes(content)
        assert benchmarks(capsys, "bars", str(file)) == 2


@pytest.mark.parametrize("acceptance", ["nan", "inf", "-1", "0"])
def test_an_acceptance_length_that_is_none_is_refused(
    capsys: pytest.CaptureFixture[str], acceptance: str
) -> None:
    assert benchmarks(capsys, "thresholds", "--steps=3", "--", acceptance) == 2


# --- arrivals

ROWS = [
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:15:51.2224670,879,55",
]
CELL = st.one_of(
    st.sampled_from(
        [
            "2023-11-16 18:15:47",
            "0001-01-01 00:00:00",
            "9999-12-31 23:59:59.9999999",
            "1",
            "9" * 5000,
        ]
    ),
    st.text(max_size=8),
)


@st.composite
def damaged_traces(draw: st.DrawFn) -> bytes:
    rows = [row.split(",") for row in ROWS]
    for _ in range(draw(st.integers(0, 2))):
        row = draw(st.sampled_from(rows))
        row[draw(st.integers(0, 2))] = draw(CELL)
    text = "\n".join(",".join(row) for row in rows)
    encoded = text.encode(draw(st.sampled_from(["utf-8", "utf-16", "utf-8-sig"])), "replace")
    place = draw(st.integers(0, len(encoded)))
    return encoded[:place] + draw(st.binary(max_size=3)) + encoded[place:]


@given(
    st.one_of(damaged_traces(), st.binary(max_size=60)),
    st.fixed_dictionaries({}, optional=dict.fromkeys(("start", "seconds", "speed"), st.floats())),
)
@example("\n".join(ROWS).encode(), {})
@example("\n".join(ROWS).encode(), {"speed": 0.0})
def test_any_trace_is_replayed_or_refused(content: bytes, window: dict[str, float]) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "trace.csv"
        file.write_bytes(content)
        try:
            found = arrivals.read_trace(str(file), arrivals.TraceWindow(**window))
        except BenchmarkError:
            return
    assert found
    assert all(0 <= one.at < float("inf") and one.input_len and one.output_len for one in found)


NUMBER = st.one_of(st.text(max_size=4), st.floats().map(str), st.sampled_from(["1", "1e9", "0x1"]))


@given(
    st.one_of(
        st.text(max_size=20),
        st.lists(st.tuples(st.text(max_size=3), NUMBER, NUMBER).map(":".join), max_size=3).map(
            ",".join
        ),
    )
)
def test_any_phases_are_made_or_refused(text: str) -> None:
    try:
        phases = arrivals.parse_phases(text)
    except BenchmarkError:
        return
    assert all(phase.seconds * phase.rate <= arrivals.MOST_ARRIVALS for phase in phases)


def test_a_trace_that_is_no_file_is_refused(tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "none.csv", ""):
        with pytest.raises(BenchmarkError):
            arrivals.read_trace(str(name), arrivals.TraceWindow())


def test_break_even_tables_are_the_only_thing_that_thresholds_trust() -> None:
    with pytest.raises(BenchmarkError, match=r"r\.json: a value in it is missing"):
        breakeven.BreakEvenTable.from_result({"arms": {"no_spec": 3}}, "r.json")
