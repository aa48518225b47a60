"""The operations guide and the dashboard know every metric, reason and key, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specswitch.config import Config, FixedConfig, PeriodicConfig, QueueDepthConfig
from specswitch.config_sources import leaves
from specswitch.control import Reason
from specswitch.engine.metric_table import ALL

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "dashboards" / "grafana.json").read_text(encoding="utf-8"))
# Of SGLang 0.5.12.post1 (observability/metrics_collector.py:341).
ENGINE_METRICS = {"sglang:spec_accept_length"}
LABELS = {metric.name: set(metric.labels) for metric in ALL}


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:specswitch_|sglang:)[a-z_]+", text))


def rows(heading: str) -> dict[str, str]:
    """First cell and whole line of each row of the tables below a heading."""
    section = re.split(rf"^#+ {re.escape(heading)}$", GUIDE, flags=re.M)[1]
    section = re.split(r"^#+ ", section, flags=re.M)[0]
    return {line.split("|")[1]: line for line in section.splitlines() if line.startswith("| `")}


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_guide_explains_each_metric_with_its_labels(metric) -> None:
    lines = [
        line for line in GUIDE.splitlines() if line.startswith("|") and f"`{metric.name}`" in line
    ]
    assert len(lines) == 1
    assert set(re.findall(r"`(\w+)`", lines[0].split("|")[2])) == set(metric.labels)


def test_guide_names_no_metric_that_does_not_exist() -> None:
    words = {name for name in metrics_in(GUIDE) if name.startswith("specswitch_")}
    assert words <= set(LABELS)


def test_guide_explains_each_reason_and_no_other() -> None:
    assert {cell.strip().strip("`") for cell in rows("Reasons")} == {each.value for each in Reason}


def test_guide_tells_of_each_key_whether_it_can_change() -> None:
    told = set(re.findall(r"`([a-z_0-9.]+)(?:=null)?`", "".join(rows("Control at run time"))))
    known = set()
    for policy in (
        QueueDepthConfig(),
        FixedConfig(kind="fixed", mode="speculate"),
        PeriodicConfig(kind="periodic", period=1),
    ):
        config = Config(policy=policy)
        known |= {".".join(path) for path, _ in leaves(config.model_dump(mode="json"))}
    assert told - {"policy.running", "policy.kv_use"} - {"fixed", "periodic"} == known


def test_dashboard_uses_only_metrics_that_exist() -> None:
    used = set().union(*(metrics_in(text) for text in expressions()))
    assert used - ENGINE_METRICS <= set(LABELS)


def test_dashboard_shows_every_metric() -> None:
    used = set().union(*(metrics_in(text) for text in expressions()))
    assert set(LABELS) - used == set()


def test_dashboard_groups_and_filters_by_labels_that_exist() -> None:
    common = {"model_name", "instance"}
    for text in expressions():
        own = set().union(*(LABELS.get(name, set()) for name in metrics_in(text))) | common
        matched = re.findall(r"[{,](\w+)(?:=|!=|=~|!~)\"", text)
        grouped = [
            name for group in re.findall(r"by \(([^)]*)\)", text) for name in group.split(", ")
        ]
        assert set(matched) | set(grouped) <= own, text


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
