"""Which servers the GPU tests run, and what each of them serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

Policy = Mapping[str, Any]

SPECULATE: Policy = {"kind": "fixed", "mode": "speculate"}
TARGET_ONLY: Policy = {"kind": "fixed", "mode": "target_only"}


def periodic(period: int) -> Policy:
    """Flips the mode every `period` steps."""
    return {"kind": "periodic", "period": period}


@dataclass(frozen=True)
class Run:
    """One request set, served under one policy.

    Attributes:
        name: unique on its server.
        requests: name of a set in `requests`.
        policy: None on a server without speculation.
        faults: numbers of target-only steps that raise once before they run.
        delay: ``"forward"`` or ``"schedule"``: hold up that CUDA stream at random steps.
    """

    name: str
    requests: str
    policy: Policy | None = None
    faults: tuple[int, ...] = ()
    delay: str | None = None


@dataclass(frozen=True)
class Server:
    """One configuration of the engine.

    Attributes:
        name: key in `SERVERS`.
        runs: what it serves, in order; the first one is the first the process ever serves.
        algorithm: None for a server without speculation.
        reference: server without speculation whose tokens count as right.
        attention: attention backend on a GPU; the CPU engine has only its own.
        page_size: KV slots in a page.
        max_running: most requests in a batch.
        graph_max_batch: largest batch with a CUDA graph; None: no graphs at all.
        max_speculative_batch: a larger batch is never speculated on.
        debug: SPECSWITCH_DEBUG.
        tp: tensor-parallel ranks, a GPU and a process each.
    """

    name: str
    runs: tuple[Run, ...]
    algorithm: str | None = "EAGLE3"
    reference: str = "fa3-plain"
    attention: str = "fa3"
    page_size: int = 1
    max_running: int = 8
    graph_max_batch: int | None = 8
    max_speculative_batch: int = 64
    debug: bool = False
    tp: int = 1

    def config(self, policy: Policy | None) -> dict[str, Any]:
        """Configuration of the worker under one policy."""
        return {
            "policy": dict(policy or {}),
            "max_speculative_batch": self.max_speculative_batch,
            # Out of the way: what is tested here is the steps, not the patience.
            "guard": {"dwell_steps": 0, "votes": 1, "max_switches_per_1000_steps": 1000},
        }

    def server_args(self, device: str, port: int) -> dict[str, Any]:
        """Fields of the engine's ServerArgs.

        Several servers share the GPU, so the KV pool has a fixed size, and the fraction of memory,
        which the engine compares with what it finds free, leaves room for the others.
        """
        fields: dict[str, Any] = {
            "page_size": self.page_size,
            "max_running_requests": self.max_running,
            "max_total_tokens": 16384,
            "context_length": 1024,
            "chunked_prefill_size": 128,
            "tp_size": self.tp,
            "nccl_port": port,
        }
        if device == "cpu":
            return fields
        graphs = (
            {"disable_cuda_graph": True}
            if self.graph_max_batch is None
            else {"cuda_graph_max_bs": self.graph_max_batch}
        )
        return (
            fields
            | graphs
            | {
                "device": device,
                "attention_backend": self.attention,
                "dtype": "bfloat16",
                "mem_fraction_static": 0.5,
                # Graphs of prefills, compiled for a minute, and no business of either mode.
                "disable_piecewise_cuda_graph": True,
            }
        )


_FIRST = Run("first", "first", periodic(1))
_MAIN = (
    Run("flip-1", "staggered", periodic(1)),
    Run("flip-3", "staggered", periodic(3)),
    Run("speculate", "staggered", SPECULATE),
    Run("target-only", "staggered", TARGET_ONLY),
)
_PLAIN = tuple(Run(name, name) for name in ("first", "staggered", "crowd"))


def _plain(name: str, **fields: Any) -> Server:
    return Server(
        name, _PLAIN, algorithm=None, reference=name, max_running=16, graph_max_batch=16, **fields
    )


_SERVERS = (
    _plain("fa3-plain"),
    _plain("triton-plain", attention="triton"),
    Server(
        "fa3-page1",
        (
            _FIRST,
            *_MAIN,
            Run("flip-17", "staggered", periodic(17)),
            Run("logprobs", "staggered-logprobs", periodic(3)),
            Run("forward-delayed", "staggered", periodic(2), delay="forward"),
            Run("schedule-delayed", "staggered", periodic(2), delay="schedule"),
            Run("target-only-delayed", "staggered", TARGET_ONLY, delay="forward"),
        ),
    ),
    Server("fa3-page16", (_FIRST, *_MAIN), page_size=16),
    Server("fa3-page64", (_FIRST, *_MAIN), page_size=64, debug=True),
    Server("fa3-standalone", (_FIRST, *_MAIN), algorithm="STANDALONE"),
    Server("triton-page1", (_FIRST, *_MAIN), attention="triton", reference="triton-plain"),
    Server(
        "triton-page64",
        (_FIRST, *_MAIN),
        attention="triton",
        reference="triton-plain",
        page_size=64,
    ),
    Server(
        "fa3-small-graphs",
        (
            Run("speculate", "crowd", SPECULATE),
            Run("target-only", "crowd", TARGET_ONLY),
            Run("flip-3", "crowd", periodic(3)),
            # Of all requests, above the graphs, and of the last one.
            Run("faults", "crowd", TARGET_ONLY, faults=(0, 97)),
        ),
        graph_max_batch=4,
    ),
    Server(
        "fa3-bounded",
        (
            Run("first", "first", SPECULATE),
            Run("speculate", "crowd", SPECULATE),
            Run("flip-3", "crowd", periodic(3)),
        ),
        max_speculative_batch=2,
    ),
)


def _tensor_parallel(tp: int) -> tuple[Server, Server]:
    reference = f"tp{tp}-plain"
    return (
        replace(_plain(reference), tp=tp),
        Server(f"tp{tp}", (_FIRST, *_MAIN), reference=reference, tp=tp),
    )


TP_SIZES = (1, 2, 4, 8)

# For compute-sanitizer, under which everything takes many times as long.
_SANITIZED = (Run("flip-1", "tiny", periodic(1)),)

SERVERS: Mapping[str, Server] = {
    server.name: server
    for server in (
        *_SERVERS,
        *(server for tp in TP_SIZES for server in _tensor_parallel(tp)),
        Server("sanitize-graphs", _SANITIZED, max_running=4, graph_max_batch=2),
        Server("sanitize-eager", _SANITIZED, max_running=4, graph_max_batch=None),
    )
}
