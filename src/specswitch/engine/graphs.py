"""The second set of CUDA graphs: plain decode of the target, beside SGLang's verify graphs.

With speculation on, SGLang captures the target for TARGET_VERIFY only, ``num_draft_tokens``
tokens a request, and its runner does not check that width when a batch carries no draft
(model_executor/cuda_graph_runner.py:771). A target-only step therefore never runs on it: this
module captures plain DECODE graphs with an attention backend of their own, and swaps both in for
one step. Graph memory pool, input buffers and logits buffer are shared with the first set by the
engine itself (cuda_graph_runner.py:493 and 659).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from specswitch.engine import compat
from specswitch.engine.capture_guard import CaptureGuard
from specswitch.engine.errors import StartupRefusal

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner

logger = logging.getLogger(__name__)


class NoGraphs:
    """For engines that capture no graphs (CPU, ``--disable-cuda-graph``): all steps run eagerly.

    Attributes:
        max_batch, verify_max_batch: largest decode batch with a graph, target-only and verify.
    """

    max_batch = 0
    verify_max_batch = 0

    @property
    def captures(self) -> int:
        """Graphs captured since start-up."""
        return 0

    def swapped_in(self) -> AbstractContextManager[None]:
        """Nothing to swap: without graphs the engine's own backend serves both modes."""
        return nullcontext()

    def describe(self) -> str:
        """For the start-up summary."""
        return "none, both modes run eagerly"

    def snapshot(self) -> dict[str, Any]:
        """For ``/server_info``."""
        return {"target_only_max_batch": 0, "captures_while_serving": 0}


class TargetOnlyGraphs(NoGraphs):
    """Plain decode graphs of the target for a range of batch sizes.

    Args:
        model_runner: the target's, with SGLang's own graphs already captured.
        batch_sizes: decode batch sizes to capture, ascending. A batch between two sizes is
            padded; one
            above the largest runs eagerly, until it shrinks.
        capture_hidden: the graphs also return the target's hidden states, for draft sync. Decided
            here once and for all: asking for another kind later would capture anew.
        debug: raise when a graph is captured while serving, instead of counting it.

    Raises:
        StartupRefusal: out of GPU memory; names the flags that make room.
    """

    def __init__(
        self,
        model_runner: ModelRunner,
        batch_sizes: list[int],
        *,
        capture_hidden: bool,
        debug: bool,
    ) -> None:
        self._model_runner = model_runner
        release = compat.release()
        verify_runner = model_runner.graph_runner
        started, free = time.perf_counter(), release.free_memory_gb(model_runner)
        try:
            with release.without_speculation(
                model_runner, batch_sizes, capture_hidden=capture_hidden
            ):
                self._backend = release.new_attention_backend(model_runner)
                self._runner = release.new_decode_graphs(model_runner, self._backend)
        except Exception as error:
            if "out of memory" not in str(error).lower():
                raise
            raise StartupRefusal(
                "out of GPU memory while capturing target-only graphs up to batch "
                f"{batch_sizes[-1]}: lower --mem-fraction-static or --cuda-graph-max-bs, "
                "or max_speculative_batch in the specswitch config"
            ) from error
        self.seconds = time.perf_counter() - started
        self.gigabytes = free - release.free_memory_gb(model_runner)
        self.max_batch: int = self._runner.max_bs
        self.verify_max_batch: int = verify_runner.max_bs
        self._guard = CaptureGuard(raises=debug)
        self._guard.watch("target-only", self._runner)
        self._guard.watch("verify", verify_runner)

    @property
    def captures(self) -> int:
        return self._guard.captures

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Inside the block the target runs on these graphs and their attention backend."""
        runner = self._model_runner
        kept = runner.attn_backend, runner.graph_runner
        runner.attn_backend, runner.graph_runner = self._backend, self._runner
        try:
            yield
        finally:
            runner.attn_backend, runner.graph_runner = kept

    def describe(self) -> str:
        return (
            f"target_only up to batch {self.max_batch} (captured in {self.seconds:.1f} s, "
            f"{self.gigabytes:.2f} GB), speculate up to batch {self.verify_max_batch} "
            f"({self._model_runner.graph_mem_usage:.2f} GB for verify)"
        )

    def snapshot(self) -> dict[str, Any]:
        return {
            "target_only_max_batch": self.max_batch,
            "target_only_seconds": round(self.seconds, 2),
            "target_only_gb": round(self.gigabytes, 3),
            "speculate_max_batch": self.verify_max_batch,
            "captures_while_serving": self.captures,
        }


def capture_target_only(
    model_runner: ModelRunner,
    batch_sizes: list[int] | None,
    *,
    capture_hidden: bool,
    debug: bool,
) -> NoGraphs:
    """Capture the second set, or nothing where the engine captured nothing.

    Args:
        batch_sizes: None when the server runs without CUDA graphs.
        capture_hidden, debug: see ``TargetOnlyGraphs``.
    """
    if batch_sizes is None or model_runner.graph_runner is None:
        return NoGraphs()
    return TargetOnlyGraphs(model_runner, batch_sizes, capture_hidden=capture_hidden, debug=debug)
