"""The arms: which server each of them is, in full.

An arm differs from the others in the flags listed here and in nothing else. The
baselines run without the plug-in: SGLang's `SGLANG_PLUGINS` whitelist
(plugins/__init__.py:44-47, 0.5.12.post1) keeps it out of their processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from benchmarks.breakeven import BreakEvenTable, thresholds
from benchmarks.errors import BenchmarkError
from benchmarks.setup import Setup

NO_SPEC = "no_spec"
STATIC = "static"
UPSTREAM_ADAPTIVE = "upstream_adaptive"
SPECSWITCH = "specswitch"
FORCED_TARGET_ONLY = "forced_target_only"
FORCED_SPECULATE = "forced_speculate"

#: In the order of every table and plot.
ARMS = (NO_SPEC, STATIC, UPSTREAM_ADAPTIVE, SPECSWITCH, FORCED_TARGET_ONLY, FORCED_SPECULATE)
WITH_PLUGIN = (SPECSWITCH, FORCED_TARGET_ONLY, FORCED_SPECULATE)

_PLUGIN = "specswitch"


@dataclass(frozen=True)
class Arm:
    """One server: its flags, its environment, and the worker config it reads (or None)."""

    name: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None

    @property
    def fixed_mode(self) -> str | None:
        """The one mode every decode step must have, None where the arm may choose."""
        return {FORCED_TARGET_ONLY: "target_only", FORCED_SPECULATE: "speculate"}.get(self.name)

    def write_config(self, folder: Path) -> tuple[str, ...]:
        """Write the worker config to `folder` and return the flags that make the server read it.

        The file is read back with the package's own loader, so that a bad one ends here
        and not in a server's log.
        """
        if self.config is None:
            return ()
        from specswitch.config import ConfigError, load_config

        path = folder / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(dict(self.config), sort_keys=False))
        try:
            load_config(path)
        except ConfigError as error:
            raise BenchmarkError(f"the config of arm {self.name} is not valid: {error}") from error
        return ("--speculative-worker", "specswitch", "--speculative-worker-config", str(path))


class ArmFactory:
    """Makes the arms of one setup.

    Args:
        setup: what all arms share.
        table: break-even acceptance lengths, for the thresholds of the specswitch arm.
        specswitch_config: a worker config in place of the computed one.
        adaptive_config: JSON file for upstream's `--speculative-adaptive-config`.
    """

    def __init__(
        self,
        setup: Setup,
        table: BreakEvenTable | None,
        specswitch_config: Mapping[str, Any] | None = None,
        adaptive_config: str | None = None,
    ) -> None:
        self._setup = setup
        self._table = table
        self._specswitch_config = specswitch_config
        self._adaptive_config = adaptive_config

    def make(self, name: str) -> Arm:
        """The arm called `name`; BenchmarkError for an unknown name or a missing input."""
        if name not in ARMS:
            raise BenchmarkError(f"unknown arm {name!r}; known: {', '.join(ARMS)}")
        args = self._base_args()
        env = dict(self._setup.env)
        if self._setup.device == "cpu":
            env.setdefault("SPECSWITCH_CPU", "1")
        if name != NO_SPEC:
            args += self._speculation_args()
            if self._setup.simulated:
                env["SGLANG_SIMULATE_ACC_LEN"] = f"{self._setup.acceptance:g}"
        if name == UPSTREAM_ADAPTIVE:
            args.append("--speculative-adaptive")
            if self._adaptive_config:
                args += ["--speculative-adaptive-config", self._adaptive_config]
        if name not in WITH_PLUGIN:
            env.setdefault("SGLANG_PLUGINS", other_plugins())
        return Arm(name, tuple(args), env, self._config(name))

    def periodic(self, period: int) -> Arm:
        """A specswitch arm that changes its mode every `period` decode steps, whatever the load."""
        arm = self.make(FORCED_SPECULATE)
        policy = {"kind": "periodic", "period": period}
        config = {"policy": policy, "max_speculative_batch": self._setup.max_running}
        return Arm(SPECSWITCH, arm.args, arm.env, config)

    def _base_args(self) -> list[str]:
        setup = self._setup
        args = ["--model-path", setup.model, "--host", "127.0.0.1"]
        args += ["--tp-size", str(setup.tp), "--random-seed", str(setup.seed)]
        # Unset, SGLang takes 48 for EAGLE and far more without it: not a fair comparison.
        args += ["--max-running-requests", str(setup.max_running)]
        args += ["--decode-log-interval", str(setup.decode_log_interval)]
        if setup.weights == "dummy":
            args += ["--load-format", "dummy"]
        if setup.prompts is None:
            args += ["--skip-tokenizer-init", "--grammar-backend", "none"]
        if setup.attention_backend:
            args += ["--attention-backend", setup.attention_backend]
        if setup.device == "cpu":
            args += ["--device", "cpu"]
        return args + list(setup.server_args)

    def _speculation_args(self) -> list[str]:
        steps = self._setup.steps
        return [
            "--speculative-algorithm",
            "EAGLE3",
            "--speculative-draft-model-path",
            self._setup.draft_model,
            "--speculative-num-steps",
            str(steps),
            "--speculative-eagle-topk",
            "1",
            "--speculative-num-draft-tokens",
            str(steps + 1),
        ]

    def _config(self, name: str) -> Mapping[str, Any] | None:
        if name not in WITH_PLUGIN:
            return None
        if name == FORCED_SPECULATE:
            # The limit must not cut in: this arm answers what the plug-in costs while speculating.
            policy = {"kind": "fixed", "mode": "speculate"}
            return {"policy": policy, "max_speculative_batch": self._setup.max_running}
        if name == FORCED_TARGET_ONLY:
            policy = {"kind": "fixed", "mode": "target_only"}
            return {"policy": policy, "max_speculative_batch": self._setup.max_running}
        if self._specswitch_config is not None:
            return self._specswitch_config
        if self._table is None or self._setup.acceptance is None:
            raise BenchmarkError(
                "arm specswitch needs thresholds: give --acceptance (and, for another machine or "
                "model than an 8B one on an H200, --breakeven RESULT.json), or --specswitch-config"
            )
        return thresholds(self._setup.acceptance, self._table, self._setup.max_running)


def other_plugins() -> str:
    """Value of SGLANG_PLUGINS that loads every installed plug-in except this project's.

    The list holds for hardware platforms too (platforms/__init__.py:80). An empty value would
    load everything, so with no other plug-in it is a name that none has.
    """
    groups = ("sglang.srt.plugins", "sglang.srt.platforms")
    names = {entry.name for group in groups for entry in entry_points(group=group)}
    return ",".join(sorted(names - {_PLUGIN})) or "none"
