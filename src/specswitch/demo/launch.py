"""Command lines and environment of the two servers that the demo starts.

Both are SGLang's own launcher on the CPU with the same target model and the same
limits. One adds EAGLE3 with the switching worker, the other does not speculate.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from specswitch.demo.server import HOST

# What the caller's shell may hold for its own servers must not reach the demo's.
_FOREIGN = (
    "SPECSWITCH_WORKER",
    "SPECSWITCH_WORKER_CONFIG",
    "SPECSWITCH_DEBUG",
    "SGLANG_PLUGINS",
    "SGLANG_SIMULATE_ACC_LEN",
)


@dataclass(frozen=True)
class Launch:
    """What the servers are started with.

    Attributes:
        target: directory of the target model.
        draft: directory of its EAGLE3 head.
        config: the controller's YAML file.
        max_running: requests that a server runs at a time; the rest of a burst waits.
        threads: CPU threads of PyTorch. The tiny model's matrices are too small to
            gain from more, and the load generator needs a core as well.
    """

    target: Path
    draft: Path
    config: Path
    max_running: int = 8
    threads: int = 1

    def specswitch(self, port: int) -> list[str]:
        """The server that switches."""
        return [
            *self.reference(port),
            *("--speculative-algorithm", "EAGLE3"),
            *("--speculative-draft-model-path", str(self.draft)),
            *("--speculative-num-steps", "3"),
            *("--speculative-eagle-topk", "1"),
            *("--speculative-num-draft-tokens", "4"),
            *("--speculative-worker", "specswitch"),
            *("--speculative-worker-config", str(self.config)),
        ]

    def reference(self, port: int) -> list[str]:
        """The server without speculation."""
        return [
            *(sys.executable, "-m", "sglang.launch_server"),
            *("--model-path", str(self.target)),
            *("--host", HOST, "--port", str(port)),
            *("--device", "cpu", "--attention-backend", "torch_native"),
            # In float32 the order of additions cannot change which token is the
            # largest, so the two servers' answers can be compared exactly.
            *("--dtype", "float32"),
            "--disable-cuda-graph",
            # A scheduler without work would keep a core busy that the other processes need.
            "--sleep-on-idle",
            *("--grammar-backend", "none"),
            *("--max-running-requests", str(self.max_running)),
            *("--max-total-tokens", "8192"),
            *("--random-seed", "1"),
        ]

    def environment(self) -> dict[str, str]:
        """The caller's environment, with what the CPU engine needs."""
        kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        return {
            **kept,
            # "force": on a machine with a GPU too, the demo leaves it alone.
            "SPECSWITCH_CPU": "force",
            "OMP_NUM_THREADS": str(self.threads),
            "PYTHONUNBUFFERED": "1",
            # Everything is on this disk: a server must not wait for a hub.
            "HF_HUB_OFFLINE": "1",
        }
