"""Reads what an engine in this process has put onto its /metrics."""

from __future__ import annotations

from typing import Any

from harness import EngineDriver

#: Decode batches between two reports of the engine.
INTERVAL = 7


def enabled(**server_args: Any) -> dict[str, Any]:
    """Server arguments of an engine that reports metrics, often enough for a short run."""
    return {"enable_metrics": True, "decode_log_interval": INTERVAL, **server_args}


def read_metrics(prefix: str = "specswitch_") -> dict[tuple[str, ...], float]:
    """Values by (name, own label values in the order of their names); the engine's labels left out.

    Without PROMETHEUS_MULTIPROC_DIR the library keeps its values in this process.
    """
    import prometheus_client

    engine = {"model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank"}
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels.keys() - engine))): (
            sample.value
        )
        for family in prometheus_client.REGISTRY.collect()
        for sample in family.samples
        if sample.name.startswith(prefix) and not sample.name.endswith("_created")
    }


def watch_until_idle(driver: EngineDriver, notes: dict[str, Any]) -> Any:
    """For `run(prepare=...)`: notes["metrics"] is what stands there when the engine is idle."""

    def on_tick(driver: EngineDriver) -> None:
        if not driver.scheduler.running_batch.reqs and driver.scheduler.last_batch is None:
            notes["metrics"] = read_metrics()
            notes["engine"] = read_metrics("sglang:spec_")

    return on_tick
