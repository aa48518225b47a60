"""Result files: summaries follow from single measurements, and unlike runs do not mix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import bars, cli, envelope
from benchmarks.arms import Arm
from benchmarks.errors import BenchmarkError
from benchmarks.results import ResultFile, load, merge

HEADER: dict[str, Any] = {
    "benchmark": "envelope",
    "gpu": "Some GPU",
    "engine": "sglang 0.0",
    "command": "python -m benchmarks envelope",
    "acceptance": 1.9,
    "simulated": True,
    "weights": "dummy",
    "setup": {
        "model": "llama-8b",
        "weights": "dummy",
        "simulated": True,
        "steps": 3,
        "input_len": 64,
        "output_len": 256,
    },
}


def measured(tok_s: float, nominal: float | None = None, step_ms: float = 5.0) -> dict[str, Any]:
    return {
        "decode_tok_s": tok_s,
        "decode_tok_s_nominal": nominal,
        "e2e_tok_s": 0.9 * tok_s,
        "step_ms": step_ms,
        "server": 0,
        "accept_len": 1.0,
    }


def made(path: Path, cells: dict[str, dict[str, list[dict[str, Any]]]], **other: Any) -> ResultFile:
    """A result file with the given repeats by arm and concurrency."""
    result = ResultFile.create(path, envelope.summarise, {**HEADER, **other}, resume=False)
    for arm, points in cells.items():
        for point, repeats in points.items():
            for repeat in repeats:
                result.add(arm, point, "repeats", repeat)
    result.add_server({"arm": "no_spec"})
    return result


def test_a_cell_is_the_median_with_its_spread(tmp_path: Path) -> None:
    made(tmp_path / "r.json", {"no_spec": {"1": [measured(100), measured(110), measured(104)]}})
    cell = load(tmp_path / "r.json")["arms"]["no_spec"]["1"]
    assert cell["decode_tok_s"] == 104
    assert cell["spread"] == pytest.approx(10 / 104, abs=1e-4)
    assert cell["e2e_tok_s"] == pytest.approx(93.6)


def test_one_measurement_has_no_spread(tmp_path: Path) -> None:
    made(tmp_path / "r.json", {"no_spec": {"1": [measured(100)]}})
    assert load(tmp_path / "r.json")["arms"]["no_spec"]["1"]["spread"] is None


def test_the_file_is_complete_after_each_measurement(tmp_path: Path) -> None:
    result = made(tmp_path / "r.json", {})
    for number in range(3):
        result.add("static", "16", "repeats", measured(100 + number))
        cell = json.loads((tmp_path / "r.json").read_text())["arms"]["static"]["16"]
        assert len(cell["repeats"]) == number + 1
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_arms_and_points_are_in_their_order_whatever_came_first(tmp_path: Path) -> None:
    one = [measured(1)]
    made(tmp_path / "r.json", {"static": {"128": one, "4": one}, "no_spec": {"16": one}})
    arms = load(tmp_path / "r.json")["arms"]
    assert list(arms) == ["no_spec", "static"]
    assert list(arms["static"]) == ["4", "128"]


def test_merging_pools_measurements_and_summarises_anew(tmp_path: Path) -> None:
    made(tmp_path / "a.json", {"no_spec": {"1": [measured(100)]}})
    made(tmp_path / "b.json", {"no_spec": {"1": [measured(110)]}, "static": {"1": [measured(7)]}})
    out = tmp_path / "c.json"
    assert (
        cli.main(["merge", *(str(tmp_path / n) for n in ("a.json", "b.json")), "--out", str(out)])
        == 0
    )
    merged = load(out)
    assert merged["arms"]["no_spec"]["1"]["decode_tok_s"] == 105
    assert merged["arms"]["static"]["1"]["decode_tok_s"] == 7
    assert len(merged["runs"]) == 2
    servers = [one["server"] for one in merged["arms"]["no_spec"]["1"]["repeats"]]
    assert servers == [0, 1], "each measurement still points at its own server"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpu": "Other GPU"}, r"gpu \(Some GPU and Other GPU\)"),
        ({"acceptance": 1.5}, "acceptance"),
        ({"setup": {**HEADER["setup"], "output_len": 128}}, "setup.output_len"),
    ],
)
def test_unlike_runs_do_not_merge(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    made(tmp_path / "a.json", {})
    made(tmp_path / "b.json", {}, **change)
    files = {name: load(tmp_path / f"{name}.json") for name in ("a", "b")}
    with pytest.raises(BenchmarkError, match=named):
        merge(files, envelope.summarise)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[]", "is not a result file"), ('{"arms": {}}', "it lacks benchmark")],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BenchmarkError, match=message):
        load(tmp_path / "x.json")
    with pytest.raises(BenchmarkError, match="cannot read"):
        load(tmp_path / "none.json")


def verdicts(tmp_path: Path, cells: dict[str, Any]) -> dict[str, bars.Verdict]:
    made(tmp_path / "r.json", cells)
    return {one.bar: one for one in bars.judge(load(tmp_path / "r.json"))}


def test_bars_compare_nominal_throughput_where_both_have_it(tmp_path: Path) -> None:
    found = verdicts(
        tmp_path,
        {
            "static": {"64": [measured(100, nominal=104)]},
            "forced_speculate": {"64": [measured(98, nominal=103.5)]},
        },
    )["forced_speculate / static"]
    assert found.value == pytest.approx(103.5 / 104, abs=1e-4)
    assert found.raw == 0.98
    assert found.met


def test_a_bar_that_was_not_measured_is_neither_met_nor_missed(tmp_path: Path) -> None:
    found = verdicts(tmp_path, {"no_spec": {"64": [measured(100)]}})
    assert found["forced_target_only / no_spec"].met is None


def test_specswitch_is_held_against_the_best_arm_without_it(tmp_path: Path) -> None:
    found = verdicts(
        tmp_path,
        {
            "no_spec": {"64": [measured(100)]},
            "upstream_adaptive": {"64": [measured(120)]},
            "forced_speculate": {"64": [measured(500)]},
            "specswitch": {"64": [measured(114)]},
        },
    )["specswitch / best (upstream_adaptive)"]
    assert found.value == 0.95
    assert found.met is False


def test_strict_bars_fail_the_command(tmp_path: Path) -> None:
    made(tmp_path / "r.json", {"no_spec": {"64": [measured(100)]}})
    assert cli.main(["bars", str(tmp_path / "r.json")]) == 0
    assert cli.main(["bars", "--strict", str(tmp_path / "r.json")]) == 1


def test_results_of_unlike_benchmarks_do_not_merge() -> None:
    files = {"a.json": {**HEADER, "arms": {}}, "b.json": {**HEADER, "benchmark": "switch"}}
    with pytest.raises(
        BenchmarkError,
        match=r"a\.json and b\.json were made differently: benchmark \(envelope and switch\)",
    ):
        merge(files, envelope.summarise)


def test_an_arm_with_another_worker_config_does_not_go_into_the_same_file(tmp_path: Path) -> None:
    result = made(tmp_path / "r.json", {})
    config = {"policy": {"kind": "fixed", "mode": "speculate"}, "guard": {"votes": (1, 2)}}
    result.add_server({"arm": "specswitch", "config": json.loads(json.dumps(config))})
    result.require_config(Arm("specswitch", (), {}, config))
    result.require_config(Arm("forced_speculate", (), {}, None))
    with pytest.raises(BenchmarkError, match="specswitch was measured with another worker config"):
        result.require_config(Arm("specswitch", (), {}, {**config, "safe_mode": "speculate"}))
