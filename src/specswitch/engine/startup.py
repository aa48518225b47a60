"""The start-up summary: what was decided, and what it costs, in a few log lines on rank 0."""

from __future__ import annotations

import logging
from typing import Any

from specswitch.engine import compat
from specswitch.engine.exactness import inherited, simulation
from specswitch.engine.settings import Settings

logger = logging.getLogger(__name__)


def log_summary(worker: Any, settings: Settings, server_args: Any) -> None:
    """Log modes, bounds, graphs, policy and guard; on tensor-parallel rank 0 only."""
    if worker.target_worker.tp_rank == 0:
        for line in summary(worker, settings, server_args):
            logger.info("specswitch: %s", line)
        for line in cautions(worker, settings):
            logger.warning("specswitch: %s", line)


def cautions(worker: Any, settings: Settings) -> list[str]:
    """What to say besides the summary, because hardly anybody would expect it."""
    model_config = worker.target_worker.model_runner.model_config
    found = (simulation(), inherited(settings.config.exactness, model_config))
    return [line for line in found if line is not None]


def summary(worker: Any, settings: Settings, server_args: Any) -> list[str]:
    """The lines of the summary, without prefix."""
    release = compat.release()
    config = settings.config
    effective = worker.target_worker.max_running_requests
    running = f"max_running_requests {effective}"
    if settings.max_running_requests_unset:
        running += (
            f" (SGLang sets {release.MAX_RUNNING_REQUESTS_WHEN_UNSET} for speculative servers when "
            "--max-running-requests is unset; it bounds both modes)"
        )
    policy = config.policy.model_dump(mode="json", exclude_none=True)
    source = settings.path or "defaults"
    return [
        f"{type(worker).__name__} on SGLang {compat.installed_version()}, "
        f"{server_args.speculative_algorithm}, {server_args.speculative_num_steps} steps; "
        "modes speculate and target_only",
        f"{running}, max_speculative_batch {config.max_speculative_batch}: "
        f"a larger decode batch is always target_only",
        f"graphs: {worker.graphs.describe()}",
        f"draft sync: {worker.sync.describe()}",
        f"exactness {worker.inexact.describe()}",
        f"policy from {source}: {policy}; guard: {config.guard.model_dump(mode='json')}",
    ]
