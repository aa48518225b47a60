"""What the flags ask for, and how it travels to the scheduler processes.

The values live on the engine's own ``ServerArgs`` under the names of the flags, as plain strings,
numbers and dicts: the object is pickled to every scheduler process, and schedulers show all of its
attributes in ``/server_info`` under ``internal_states`` (managers/scheduler.py:3470); at its top
level there are declared fields only (entrypoints/http_server.py:640). The YAML file is read once,
in the parent; children rebuild the frozen config from the values, so a file that changes later
cannot split the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from specswitch.config import Config

WORKER_ATTRIBUTE = "speculative_worker"
CONFIG_ATTRIBUTE = "speculative_worker_config"

STOCK = "eagle"
SPECSWITCH = "specswitch"


@dataclass(frozen=True)
class Settings:
    """The parsed request of one server.

    Attributes:
        config: policy, guard and bounds.
        path: the YAML file that was read, None for the defaults.
        max_running_requests_unset: the user left ``--max-running-requests`` to the engine.
        target_only_batch_sizes: batch sizes to capture for target-only decode; None where the
            engine captures no graphs.
    """

    config: Config
    path: str | None
    max_running_requests_unset: bool
    target_only_batch_sizes: list[int] | None = None

    def attach(self, server_args: Any) -> None:
        """Write the settings to ``server_args`` as plain values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["config"] = self.config.model_dump(mode="json")
        setattr(server_args, WORKER_ATTRIBUTE, SPECSWITCH)
        setattr(server_args, CONFIG_ATTRIBUTE, values)

    @classmethod
    def of(cls, server_args: Any) -> Settings | None:
        """The settings that ``attach`` wrote, None for a server without specswitch."""
        if getattr(server_args, WORKER_ATTRIBUTE, STOCK) != SPECSWITCH:
            return None
        values = dict(getattr(server_args, CONFIG_ATTRIBUTE))
        values["config"] = Config.model_validate(values["config"])
        return cls(**values)
