"""Records the decode steps of one run, and gives each run a controller of its own."""

from __future__ import annotations

from typing import Any

from harness.step_log import StepLog

from specswitch.config import Config
from specswitch.control.controller import build_controller


class Recorder:
    """Watches a driven specswitch server from its start.

    The mode of a step is read from the forward mode that reached the target, not from the worker.

    Args:
        driver: an EngineDriver that has served nothing yet.
    """

    def __init__(self, driver: Any) -> None:
        self._worker = driver.worker
        self._log = StepLog(driver.scheduler)
        self._graphs: list[bool] = []
        self._watch_graphs()
        self._first_step = 0
        self._before: dict[str, Any] = {}

    def _watch_graphs(self) -> None:
        record_result = self._worker.record_result

        def watched(result: Any, requests: int) -> None:
            self._graphs.append(bool(result.can_run_cuda_graph))
            record_result(result, requests)

        self._worker.record_result = watched

    def begin(self, config: dict[str, Any]) -> None:
        """A fresh controller for `config`; only for an idle server."""
        self._worker.controller = build_controller(Config.model_validate(config))
        self._worker.controller.add_listener(self._worker.stats.count_switch)
        self._first_step = len(self._log.steps)
        self._before = self._worker.snapshot()

    def end(self) -> dict[str, Any]:
        """What happened since `begin`.

        Returns:
            {"steps": [{"mode", "requests" in the batch, "graph" replayed by the target, "kept" and
            "discarded" tokens by request}], "counted": {"steps", "tokens"} by mode and "switches",
            as the worker counted them, "acceptance_length": mean tokens of a request in a
            speculative step, null without one, "captures_while_serving": since the start}.
        """
        steps = self._log.steps[self._first_step :]
        graphs = self._graphs[self._first_step :]
        speculated = [
            tokens
            for step in steps
            if str(step.mode) == "speculate"
            for tokens in step.kept.values()
        ]
        now = self._worker.snapshot()
        return {
            "steps": [
                {
                    "mode": str(step.mode),
                    "requests": len(step.kept) + len(step.discarded),
                    "graph": graph,
                    "kept": step.kept,
                    "discarded": step.discarded,
                }
                for step, graph in zip(steps, graphs, strict=True)
            ],
            "counted": {
                name: {mode: now[name][mode] - self._before[name][mode] for mode in now[name]}
                for name in ("steps", "tokens")
            }
            | {"switches": now["switches"]["total"] - self._before["switches"]["total"]},
            "acceptance_length": sum(speculated) / len(speculated) if speculated else None,
            "captures_while_serving": now["graphs"]["captures_while_serving"],
        }
