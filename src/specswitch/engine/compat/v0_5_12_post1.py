"""Names, classes and read-outs of SGLang 0.5.12.post1.

Importing this module imports none of the engine's model code; ``types()`` does. Line numbers are
those of the released wheel, relative to ``sglang/srt/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from specswitch.engine.compat import v0_5_12_post1_exactness as exactness  # noqa: F401 - part of this
from specswitch.engine.compat import v0_5_12_post1_plans as plans  # noqa: F401 - part of this
from specswitch.engine.compat import v0_5_12_post1_reports as reports  # noqa: F401 - part of this
from specswitch.engine.compat import v0_5_12_post1_waits as waits  # noqa: F401 - part of this

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import ModelWorkerBatch, Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor.model_runner import ModelRunner

VERSION = "0.5.12.post1"

# speculative/spec_info.py:127. The scheduler asks for the worker class once
# (managers/scheduler.py:701).
CREATE_WORKER = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"
# managers/scheduler.py:2996, called by the overlap loop at 1590 on the schedule stream.
RUN_BATCH = "sglang.srt.managers.scheduler.Scheduler.run_batch"
# managers/scheduler_output_processor_mixin.py:396, inherited by Scheduler.
RESOLVE_RESULT = "sglang.srt.managers.scheduler.Scheduler._resolve_spec_overlap_tokens"
# managers/scheduler.py:3469; the reply is shown by GET /server_info.
INTERNAL_STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"
# managers/scheduler.py:1504; sent to the parent when a scheduler process is ready (4038).
INIT_INFO = "sglang.srt.managers.scheduler.Scheduler.get_init_info"
# entrypoints/engine.py:580; its result's wait_for_ready collects every INIT_INFO (655).
LAUNCH_SCHEDULERS = "sglang.srt.entrypoints.engine.Engine._launch_scheduler_processes"

# managers/overlap_utils.py:120 and 157: how a step reads what the step before left on the device.
RESOLVE_FUTURE = "sglang.srt.managers.overlap_utils.FutureMap.resolve_future"
STORE_FUTURE = "sglang.srt.managers.overlap_utils.FutureMap.store_to_map"
# mem_cache/common.py:566, imported by name in the scheduler's modules; the registry rebinds those.
RELEASE_KV = "sglang.srt.mem_cache.common.release_kv_cache"

#: SGLang sets this when --max-running-requests is unset (server_args.py:3743).
MAX_RUNNING_REQUESTS_WHEN_UNSET = 48


def bound_verify_graphs(server_args: Any, max_speculative_batch: int) -> list[int] | None:
    """Let the engine capture verify and draft graphs up to a batch size only.

    Larger batches never speculate, so their graphs would be memory for nothing. The engine captures
    from ``cuda_graph_bs`` (server_args.py:1493, model_executor/cuda_graph_runner.py:461), which is
    final once ``ServerArgs`` is constructed.

    Returns:
        The batch sizes that the engine had chosen, ascending, for the target-only graphs; None
        where the engine captures none.
    """
    if server_args.disable_cuda_graph or server_args.device == "cpu":
        return None
    chosen = sorted(server_args.cuda_graph_bs)
    bounded = [size for size in chosen if size <= max_speculative_batch]
    if bounded != chosen and (not bounded or bounded[-1] < max_speculative_batch):
        bounded.append(max_speculative_batch)
    server_args.cuda_graph_bs = bounded
    server_args.cuda_graph_max_bs = bounded[-1]
    return chosen


def types() -> SimpleNamespace:
    """The engine's classes that specswitch subclasses or builds."""
    from sglang.srt.model_executor.cuda_graph_runner import CudaGraphRunner
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode
    from sglang.srt.speculative.eagle_info import EagleDraftInput
    from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2
    from sglang.srt.utils.common import fast_topk

    return SimpleNamespace(
        CaptureHiddenMode=CaptureHiddenMode,
        CudaGraphRunner=CudaGraphRunner,
        EagleDraftInput=EagleDraftInput,
        EAGLEWorkerV2=EAGLEWorkerV2,
        ForwardMode=ForwardMode,
        NO_SPECULATION=SpeculativeAlgorithm.NONE,
        StandaloneWorkerV2=StandaloneWorkerV2,
        fast_topk=fast_topk,
    )


def scheduler_worker(scheduler: Scheduler) -> Any:
    """The speculative worker, None without speculation (managers/scheduler.py:702)."""
    return scheduler.draft_worker


def read_load(scheduler: Scheduler, batch: ScheduleBatch) -> tuple[int, int, float]:
    """(waiting requests, running requests, fraction of the KV pool in use) at this step.

    The same figure as the engine's "token usage": slots neither free nor evictable over all slots
    (managers/scheduler_runtime_checker_mixin.py:183). Equal on every tensor-parallel rank, because
    ranks schedule the same broadcast requests.
    """
    _, kv_use = scheduler.get_pool_stats().get_kv_token_stats()
    return len(scheduler.waiting_queue), len(batch.reqs), kv_use


def is_decode(batch: ScheduleBatch | ModelWorkerBatch) -> bool:
    """True for a decode batch: not prefill, not idle, no prefill on another data-parallel rank."""
    return batch.forward_mode.is_decode() and not batch.is_extend_in_batch


def has_left(batch: ModelWorkerBatch, request: Req) -> bool:
    """Whether a request of a decode batch had ended before the batch was launched.

    With a grammar in the batch the engine processes the step before first (managers/scheduler.py
    :1585, 1640); the request, whose row and KV slots are free by then, takes part all the same.
    """
    return batch.has_grammar and request.finished()


def is_recurrent(model_runner: ModelRunner) -> bool:
    """True for models with recurrent state (Mamba, gated delta net), which verify tracks apart."""
    return model_runner.hybrid_gdn_config is not None or model_runner.mamba2_config is not None


def tensor_parallel_ranks(model_runner: ModelRunner) -> list[int]:
    """Numbers that the ranks of this runner's group have in ``torch.distributed``, in their order
    (model_executor/model_runner.py:1305).

    All processes there are of this group: pipelines and data-parallel attention are refused, and
    replicas without it do not know of each other.
    """
    ranks: list[int] = model_runner.tp_group.ranks
    return ranks


def end_server() -> None:
    """End the server as a scheduler does that hits an exception: its parent ends all processes
    (managers/scheduler.py:4056, utils/watchdog.py:173)."""
    import signal

    import psutil

    psutil.Process().parent().send_signal(signal.SIGQUIT)


@contextmanager
def without_speculation(
    model_runner: ModelRunner, batch_sizes: list[int], *, capture_hidden: bool
) -> Iterator[None]:
    """The runner reads as one of a server without speculation, capturing ``batch_sizes``.

    The graph runner takes its forward mode and width from ``spec_algorithm``
    (model_executor/cuda_graph_runner.py:588) and extends the list of sizes in place (459). Without
    a draft it captures hidden states only for servers that return them (612).
    """
    arguments = model_runner.server_args
    kept = (
        model_runner.spec_algorithm,
        arguments.cuda_graph_bs,
        arguments.enable_return_hidden_states,
    )
    model_runner.spec_algorithm = types().NO_SPECULATION
    arguments.cuda_graph_bs = list(batch_sizes)
    arguments.enable_return_hidden_states |= capture_hidden
    try:
        yield
    finally:
        (
            model_runner.spec_algorithm,
            arguments.cuda_graph_bs,
            arguments.enable_return_hidden_states,
        ) = kept


def new_decode_graphs(model_runner: ModelRunner, attention_backend: Any) -> Any:
    """Capture decode graphs now; call it inside ``without_speculation``."""
    return types().CudaGraphRunner(model_runner, attn_backend=attention_backend)


def free_memory_gb(model_runner: ModelRunner) -> float:
    """Free memory of the runner's device in GB, as the engine's own log lines count it."""
    from sglang.srt.utils.common import get_available_gpu_memory

    return get_available_gpu_memory(model_runner.device, model_runner.gpu_id)


def new_attention_backend(model_runner: ModelRunner) -> Any:
    """A second attention backend with a workspace of its own (model_executor/model_runner.py:2410).

    The flag that the engine sets on the runner as a side effect (2469) is put back, as the engine's
    adaptive mode does (speculative/eagle_worker_v2.py:842).
    """
    before = model_runner.init_new_workspace
    try:
        return model_runner._get_attention_backend(init_new_workspace=True)
    finally:
        model_runner.init_new_workspace = before


def kv_slots(batch: ScheduleBatch) -> torch.Tensor:
    """KV slot of each request's next token, [batch] int64 on the batch's device.

    ``prepare_for_decode`` has allocated slots past the sequence and written them to the request
    table (speculative/eagle_info_v2.py:164).
    """
    return batch.req_to_token_pool.req_to_token[batch.req_pool_indices, batch.seq_lens].long()


def forward_batch(batch: ModelWorkerBatch, model_runner: ModelRunner) -> Any:
    """The engine's ``ForwardBatch`` of a batch (model_executor/forward_batch_info.py:446)."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch

    return ForwardBatch.init_new(batch, model_runner)


@contextmanager
def draft_context(worker: Any) -> Iterator[None]:
    """What the engine puts round each draft forward (speculative/eagle_worker_v2.py:757)."""
    from sglang.srt.layers.moe.utils import (
        speculative_moe_a2a_backend_context,
        speculative_moe_backend_context,
    )

    draft = worker.draft_worker
    with (
        draft.draft_tp_context(draft.draft_runner.tp_group),
        speculative_moe_backend_context(),
        speculative_moe_a2a_backend_context(),
    ):
        yield


def draft_input_width(worker: Any) -> int | None:
    """Width of the target's hidden states as the draft takes them; None: it takes none.

    EAGLE3 takes several layers side by side (speculative/eagle_info.py:877). How many is read from
    the draft's configuration, as the target does (model_executor/model_runner.py:436); the engine's
    own function looks for it in the target's and assumes three.
    """
    from sglang.srt.speculative.eagle_info import EagleDraftExtendInput

    width = EagleDraftExtendInput.hidden_size_for(worker.draft_worker)
    runner = worker.target_worker.model_runner
    if width is None or not runner.eagle_use_aux_hidden_state:
        return width
    layers = runner.eagle_aux_hidden_state_layer_ids
    return width if layers is None else len(layers) * runner.model_config.hidden_size


def has_image_positions(worker: Any) -> bool:
    """Whether images shift the draft's positions (M-RoPE, model_executor/model_runner.py:396)."""
    return worker.draft_worker.draft_runner.model_is_mrope


def tokens_to_cache(tree_cache: Any, positions: int) -> int | None:
    """Tokens of a request to cache so that the KV of its first ``positions`` is kept and no more.

    None where nothing is cached. EAGLE's prefix cache is keyed by pairs of tokens, because the
    draft's KV at a position depends on the token that follows: n tokens keep n - 1 positions
    (mem_cache/radix_cache.py:129).
    """
    if tree_cache.disable:
        return None
    return positions + 1 if getattr(tree_cache, "is_eagle", False) else positions


def has_plain_kv_pool(model_runner: ModelRunner) -> bool:
    """Whether the runner's KV is written by ``set_kv_buffer(layer, loc, k, v, k_scale, v_scale)``
    (mem_cache/memory_pool.py:1047) and by nothing else, which MLA and sliding-window pools do not.
    """
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    return type(model_runner.token_to_kv_pool) is MHATokenToKVPool


def attention_layers(model: Any) -> list[int]:
    """Layer ids of a model's attention layers."""
    from sglang.srt.layers.radix_attention import RadixAttention

    return [module.layer_id for module in model.modules() if isinstance(module, RadixAttention)]


def resolve_bonus_tokens(future_map: Any, draft_input: Any, *, with_lengths: bool) -> None:
    """Read only the emitted tokens (and, for checks, the lengths) that the step before left.

    The indices come from the schedule stream and lose their last reference while the forward
    stream may still read them, as in the engine's own version (managers/overlap_utils.py:130).
    """
    import torch

    indices = draft_input.future_indices.indices
    indices.record_stream(torch.get_device_module(future_map.device).current_stream())
    draft_input.bonus_tokens = future_map.bonus_tokens_buf[indices]
    draft_input.new_seq_lens = future_map.new_seq_lens_buf[indices] if with_lengths else None


@contextmanager
def zeroed_when_made(future_map: Any, future_indices: Any) -> Iterator[None]:
    """Zero the future map's buffers of proposals if what is run here makes them, but for what it
    stores (managers/overlap_utils.py:80 leaves them uninitialised)."""
    exist = future_map.buf_initialized
    yield
    if exist or not future_map.buf_initialized:
        return
    for name in ("topk_p_buf", "topk_index_buf", "hidden_states_buf"):
        buffer = getattr(future_map, name, None)
        if buffer is not None:
            stored = buffer[future_indices.interval].clone()
            buffer.zero_()
            buffer[future_indices.interval] = stored


def store_bonus_tokens(
    future_map: Any, future_indices: Any, draft_input: Any, *, with_lengths: bool
) -> None:
    """Leave only the emitted tokens (and, for checks, the lengths) for the next step.

    The buffers exist: they are made when the first prefill stores its result
    (managers/overlap_utils.py:179).
    """
    interval = future_indices.interval
    future_map.bonus_tokens_buf[interval] = draft_input.bonus_tokens
    if with_lengths:
        future_map.new_seq_lens_buf[interval] = draft_input.new_seq_lens
