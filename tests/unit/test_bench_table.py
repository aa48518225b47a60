"""The README's tables say what the result files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import plots, table
from benchmarks.errors import BenchmarkError

MARKED = "# Title\n<!-- bench:envelope:begin -->\nold\n<!-- bench:envelope:end -->\nrest\n"
LATENCY = {"p50": 4.0, "p95": 5.0, "p99": 6.04}


def result(benchmark: str = "envelope", **change: Any) -> dict[str, Any]:
    cell = {
        "decode_tok_s": 10925.4,
        "decode_tok_s_nominal": 10925.4,
        "e2e_tok_s": 99.94,
        "spread": 0.004,
        "e2e_spread": None,
        **dict.fromkeys(("itl_ms", "ttft_ms", "e2e_ms"), LATENCY),
    }
    mode = {"switches": 20, "step_ms": 5.0, "first_ms": 5.2, "ratio": 1.04, "worst": 1.3}
    points: dict[str, Any] = {
        "envelope": {"64": cell, "128": {**cell, "decode_tok_s": None, "itl_ms": None}},
        "switch": {"16": {"speculate": mode, "target_only": mode}},
        "bursts": {"all": cell, "calm": cell},
        "resume": {},
    }[benchmark]
    setup = {
        "model": "llama-8b",
        "weights": "dummy",
        "simulated": True,
        "acceptance": change.get("acceptance", 1.9),
        "steps": 3,
        "input_len": 64,
        "output_len": 256,
    }
    return {
        "benchmark": benchmark,
        "gpu": "NVIDIA H200",
        "engine": "sglang 0.5.12.post1",
        "acceptance": 1.9,
        "setup": setup,
        "command": "c",
        "date": "2026-01-02T03:04:05+00:00",
        "runs": [],
        "servers": [],
        "arms": {"specswitch": points},
        **change,
    }


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """(result file, README)"""
    data, readme = tmp_path / "h200.json", tmp_path / "README.md"
    data.write_text(json.dumps(result()))
    readme.write_text(MARKED)
    return data, readme


def test_the_text_between_the_markers_is_replaced(files: tuple[Path, Path]) -> None:
    data, readme = files
    assert table.main([str(data), "--readme", str(readme)]) == 0
    text = readme.read_text()
    assert text.startswith("# Title\n<!-- bench:envelope:begin -->\n")
    assert text.endswith("<!-- bench:envelope:end -->\nrest\n")
    assert "| **specswitch** | 10,925 (0.4%) | - |" in text
    assert "| **specswitch** | 99.9 | 99.9 |" in text
    assert "| **specswitch** | 4.0 / 6.0 | - |" in text
    assert "old" not in text


def test_simulation_dummy_weights_and_date_are_said(files: tuple[Path, Path]) -> None:
    text = table.render(result(), "h200.json")
    assert "**simulated** acceptance length 1.9" in text
    assert "llama-8b with dummy weights" in text
    assert "2026-01-02" in text


def test_check_fails_until_the_readme_is_written(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    data, readme = files
    arguments = [str(data), "--readme", str(readme)]
    assert table.main([*arguments, "--check"]) == 1
    assert readme.read_text() == MARKED
    assert "differs" in capsys.readouterr().out
    table.main(arguments)
    assert table.main([*arguments, "--check"]) == 0


def test_several_files_of_one_benchmark_stand_below_each_other(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    data, readme = files
    other = tmp_path / "other.json"
    other.write_text(json.dumps(result(acceptance=2.75)))
    table.main([str(data), str(other), "--readme", str(readme)])
    text = readme.read_text()
    assert text.index("length 1.9") < text.index("length 2.75")


@pytest.mark.parametrize(
    ("readme", "message"),
    [
        ("nothing", "must hold <!-- bench:envelope:begin --> once, it does 0x"),
        (MARKED * 2, "it does 2x"),
        ("<!-- bench:envelope:end -->\n<!-- bench:envelope:begin -->", "comes before"),
    ],
)
def test_markers_that_are_not_right_are_refused(readme: str, message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        table.replaced(readme, "envelope", "x")


@pytest.mark.parametrize("benchmark", ["envelope", "switch", "bursts"])
def test_every_benchmark_has_a_table_and_a_plot(tmp_path: Path, benchmark: str) -> None:
    assert table.render(result(benchmark), "h200.json").count("\n|") > 2
    pytest.importorskip("matplotlib")
    plots.plot(result(benchmark), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_an_empty_result_is_not_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(BenchmarkError, match="no measurements to draw"):
        plots.plot(result(arms={}), tmp_path / "plot.png")


def test_ratios_stand_where_both_arms_were_measured() -> None:
    def cell(speed: float) -> dict[str, Any]:
        return {"decode_tok_s": speed, "decode_tok_s_nominal": None, "repeats": []}

    arms = {
        "no_spec": {"1": cell(200.0), "4": cell(800.0)},
        "forced_target_only": {"1": cell(199.0)},
    }
    text = table.render(result(arms=arms), "h200.json")
    assert "| forced_target_only / no_spec | 0.995 | - |" in text
    assert "forced_speculate / static" not in text


def test_a_resume_result_shows_what_it_holds() -> None:
    setup = {"acceptance_setup": {"steps": 3}, "requests": 16}
    ratios = {"deferred": {"100": 0.99, "10": 1.0}, "off": {"10": 0.89, "100": 0.85}}
    made = {**result("resume"), "setup": setup, "resume_ratio": ratios}
    text = table.render(made, "h200.json")
    assert "| acceptance after steps off / never off | 10 | 100 |" in text
    assert "| off | 0.890 | 0.850 |" in text
    assert "trained tiny pair" in text
    cost = {**result("resume"), "off_cost": {"deferred": {"64": 0.994, "16": 0.992}}}
    text = table.render(cost, "h200.json")
    assert "| deferred | 0.992 | 0.994 |" in text


def test_a_resume_result_shows_how_long_flushes_and_catch_ups_take() -> None:
    times = {"fill_ms": 1.44, "propose_ms": 0.42, "step_ms": 11.19, "median_step_ms": 10.16}
    flush = {"flushes": 82, "positions": 320.0, "largest": 520, "flush_ms": 0.2, "share": 0.0085}
    made = {
        **result("resume"),
        "catch_up": {"64": {"positions": 4096, "ratio": 1.1014, **times}},
        "flush": {"64": {**flush, "step_ms": 6.3, "median_step_ms": 6.09}},
    }
    text = table.render(made, "h200.json")
    assert "| 64 x 64 | 1.44 | 0.42 | 11.19 | 10.16 | 1.101 |" in text
    assert "| 64 | 82 | 320 | 520 | 0.20 | 6.30 | 6.09 | 0.85% |" in text


@pytest.fixture
def readme_of_two(tmp_path: Path) -> Path:
    """README beside the envelopes a.json and b.json, whose tables it shows."""
    readme = tmp_path / "README.md"
    readme.write_text(MARKED)
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        file.write_text(json.dumps(result()))
    table.update(files, readme, check=False)
    return readme


def test_of_several_envelopes_the_first_is_shown_in_full(readme_of_two: Path) -> None:
    text = readme_of_two.read_text()
    assert text.count("| decode tok/s (spread) at concurrency |") == 2
    assert text.count("| end-to-end tok/s (spread) at concurrency |") == 1


def test_tables_of_other_files_are_not_dropped_unasked(readme_of_two: Path) -> None:
    text = readme_of_two.read_text()
    for check in (False, True):
        with pytest.raises(BenchmarkError, match=r"shows b\.json too"):
            table.update([readme_of_two.with_name("a.json")], readme_of_two, check=check)
    assert readme_of_two.read_text() == text


def test_what_no_arm_has_gets_no_table_and_an_arm_without_it_no_row() -> None:
    made = result()
    cell = {**made["arms"]["specswitch"]["64"], "itl_ms": None, "ttft_ms": None}
    with_latency = made["arms"].pop("specswitch")
    made["arms"] = {"static": {"64": cell}, "specswitch": with_latency}
    text = table.render(made, "r.json")
    rows = text.split("inter-token latency")[1].split("time to first token")[0]
    assert "specswitch" in rows
    assert "static" not in rows
    made["arms"].pop("specswitch")
    assert "inter-token" not in table.render(made, "r.json")


def test_the_readme_says_what_the_result_files_say() -> None:
    root = Path(__file__).parents[2]
    names = (
        *("envelope", "envelope-1.5", "envelope-2.75", "envelope-early-wait"),
        *("bursts", "switch", "resume", "off-cost", "catch-up"),
    )
    files = [root / "benchmarks" / "results" / f"h200-{name}.json" for name in names]
    assert table.update(files, root / "README.md", check=True), (
        "write its tables anew: python -m benchmarks table, see benchmarks/README.md"
    )
