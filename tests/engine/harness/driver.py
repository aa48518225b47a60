"""An engine in one process: the real Scheduler, its real event loop and the real speculative
worker.

The scheduler talks to the rest of SGLang through three doors: it receives requests, sends outputs
towards the detokenizer and sends control answers to the tokenizer. The driver stands behind all
three; everything between them is unmodified. Lines cited are of SGLang 0.5.12.post1.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.ports import reserve_port
from harness.random_models import ModelPaths, shared_random_models
from harness.requests import Request, Result

# Small enough to be quick, large enough that nothing is limited by accident.
DEFAULTS: Mapping[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "dtype": "float32",
    "max_total_tokens": 4096,
    # Left alone, the engine reserves up to 25 GB for activations (server_args.py:1541).
    "mem_fraction_static": 0.8,
    "max_running_requests": 8,
    "context_length": 512,
    "chunked_prefill_size": 128,
    "random_seed": 1,
    "log_level": "error",
    "skip_tokenizer_init": True,
    "grammar_backend": "none",
}

# An idle pass runs the engine's own leak check (scheduler_runtime_checker_mixin.py:551); results of
# the last batch are processed one pass after it ran.
_IDLE_TICKS_AT_END = 4
# Far more than any step needs; a scheduler that does nothing for so long never will.
_TICKS_WITHOUT_PROGRESS = 5000
# Pause after a pass without a batch: other threads (grammar compilation) have to get on.
_IDLE_PAUSE = 0.001


class NoProgress(RuntimeError):
    """The scheduler ran many passes without output while requests were unfinished."""


class _Finished(Exception):
    """Leaves the scheduler's endless loop."""


class EngineDriver:
    """Starts an engine and generates with it, pass by pass.

    Only one instance per process: see `harness.isolation`.

    Args:
        algorithm: ``"EAGLE"``, ``"EAGLE3"``, ``"STANDALONE"`` or None for no speculation.
        worker: value of ``--speculative-worker``; None leaves the choice to the engine.
        config: configuration of that worker: a specswitch Config, a mapping, or the path of a YAML
            file.
        steps: draft steps of the speculation.
        models: target and drafts; tiny random ones when None.
        rank: this process's tensor-parallel rank, and the number of its GPU. With ``tp_size`` above
            1 each rank is a process of its own with the same arguments, one ``nccl_port`` and the
            same calls of `generate`.
        server_args: further fields of the engine's ServerArgs; they win over everything above.

    Attributes:
        scheduler: the engine's Scheduler.
        server_args: its ServerArgs, as the engine completed them.
        tick: passes of the event loop since `generate` was called.
    """

    def __init__(
        self,
        algorithm: str | None = None,
        worker: str | None = None,
        config: Any = None,
        *,
        steps: int = 3,
        models: ModelPaths | None = None,
        rank: int = 0,
        **server_args: Any,
    ) -> None:
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.plugins import load_plugins
        from sglang.srt.server_args import PortArgs, ServerArgs

        load_plugins()
        models = models or shared_random_models()
        fields = dict(DEFAULTS, model_path=str(models.target), nccl_port=reserve_port())
        if algorithm is not None:
            fields |= {
                "speculative_algorithm": algorithm,
                "speculative_draft_model_path": str(models.drafts[algorithm]),
                "speculative_num_steps": steps,
                "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": steps + 1,
            }
        if worker is not None:
            fields["speculative_worker"] = worker
        if config is not None:
            fields["speculative_worker_config"] = _config_file(config)
        self.server_args = ServerArgs(**(fields | server_args))
        self.scheduler = Scheduler(
            self.server_args,
            PortArgs.init_new(self.server_args),
            gpu_id=rank,
            tp_rank=rank,
            moe_ep_rank=0,
            pp_rank=0,
            attn_cp_rank=0,
            moe_dp_rank=0,
            dp_rank=None,
        )
        self.tick = 0
        self._named = 0
        self._results: dict[str, Result] = {}
        self._arrivals: list[Request] = []
        self._aborts: list[tuple[int, str]] = []
        self._on_tick: Callable[[EngineDriver], None] | None = None
        self._idle_ticks = 0
        self._last_progress = 0
        self.scheduler.recv_requests = self._receive
        self.scheduler.send_to_detokenizer.send_output = self._take_output
        self.scheduler.send_to_tokenizer.send_output = self._take_control
        self._total_slots = self.free_slots

    @property
    def worker(self) -> Any:
        """The speculative worker, or the plain one without speculation."""
        return self.scheduler.model_worker

    @property
    def free_slots(self) -> int:
        """KV slots a new request could have: unused ones and those only the radix cache holds."""
        return (
            self.scheduler.token_to_kv_pool_allocator.available_size()
            + self.scheduler.tree_cache.evictable_size()
        )

    @property
    def lost_slots(self) -> int:
        """KV slots that were free before the first request and are not now.

        0 when nothing runs and nothing leaked.
        """
        return self._total_slots - self.free_slots

    def generate(
        self,
        requests: Sequence[Request | Sequence[int]],
        on_tick: Callable[[EngineDriver], None] | None = None,
    ) -> list[Result]:
        """Runs requests to their end and returns their results in the same order.

        Args:
            requests: requests, or bare prompts as lists of tokens.
            on_tick: called before each pass of the event loop.

        Raises:
            NoProgress: see there.
        """
        named = [
            self._with_name(r if isinstance(r, Request) else Request(list(r))) for r in requests
        ]
        self._results = {request.rid: Result(request.rid) for request in named}
        self._arrivals = sorted(named, key=lambda request: request.arrive)
        self._aborts = sorted(
            (request.abort, request.rid) for request in named if request.abort is not None
        )
        self._on_tick = on_tick
        self.tick = self._idle_ticks = self._last_progress = 0
        with contextlib.suppress(_Finished):
            self.scheduler.run_event_loop()
        return list(self._results.values())

    def _with_name(self, request: Request) -> Request:
        self._named += 1
        # Fixed width: the engine aborts every request whose name starts with the given one
        # (scheduler.py:3562).
        return request if request.rid else replace(request, rid=f"r{self._named:05d}")

    def _receive(self) -> list[Any]:
        if self._on_tick is not None:
            self._on_tick(self)
        received: list[Any] = []
        while self._arrivals and self._arrivals[0].arrive <= self.tick:
            received.append(_to_engine(self._arrivals.pop(0), self.scheduler.tokenizer))
        while self._aborts and self._aborts[0][0] <= self.tick:
            received.append(_abort(self._aborts.pop(0)[1]))
        self._stop_when_done(bool(received))
        if not received and self.scheduler.cur_batch is None:
            time.sleep(_IDLE_PAUSE)
        self.tick += 1
        return received

    def _stop_when_done(self, received: bool) -> None:
        if received or self._arrivals:
            self._last_progress = self.tick
        unfinished = [r.rid for r in self._results.values() if r.finish_reason is None]
        if not received and not unfinished:
            self._idle_ticks += 1
            if self._idle_ticks > _IDLE_TICKS_AT_END:
                raise _Finished
        if unfinished and self.tick - self._last_progress > _TICKS_WITHOUT_PROGRESS:
            raise NoProgress(
                f"no output for {_TICKS_WITHOUT_PROGRESS} passes; unfinished: {unfinished}"
            )

    def _take_output(self, output: Any, request: Any = None) -> None:
        for position, rid in enumerate(output.rids):
            result = self._results[rid]
            self._last_progress = self.tick
            result.output_ids += _new_tokens(output, position, first=not result.output_ids)
            result.logprobs += _at(output.output_token_logprobs_val, position) or []
            result.top_logprobs += _alternatives(output, "output_top_logprobs", position)
            result.token_ids_logprobs += _alternatives(
                output, "output_token_ids_logprobs", position
            )
            result.input_logprobs += _at(output.input_token_logprobs_val, position) or []
            result.input_top_logprobs += _alternatives(output, "input_top_logprobs", position)
            result.input_token_ids_logprobs += _alternatives(
                output, "input_token_ids_logprobs", position
            )
            # One entry for each request that asks for them, not for each request of the output.
            if len(output.output_hidden_states or []) == len(output.rids):
                result.hidden_states = output.output_hidden_states[position]
            result.cached_tokens = output.cached_tokens[position]
            result.retractions = output.retraction_counts[position]
            result.verify_steps = _at(output.spec_verify_ct, position) or 0
            result.accepted_drafts = _at(output.spec_num_correct_drafts, position) or 0
            if output.finished_reasons[position] is not None:
                result.finish_reason = output.finished_reasons[position]
                result.finished_tick = self.tick

    def _take_control(self, output: Any, request: Any = None) -> None:
        # A request that is aborted while it waits is answered here (scheduler.py:3574).
        result = self._results.get(getattr(output, "rid", None))
        if result is not None:
            result.finish_reason = getattr(output, "finished_reason", None) or {"type": "abort"}
            result.finished_tick = self.tick


def _to_engine(request: Request, tokenizer: Any) -> Any:
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    # Random models say the end token now and then; tests of stopping set ignore_eos themselves.
    sampling = {"temperature": 0, "ignore_eos": True} | request.sampling
    params = SamplingParams(max_new_tokens=request.max_new_tokens, **sampling)
    # Without a tokenizer (the default) stop strings are not available.
    params.normalize(tokenizer)
    fields = {
        "rid": request.rid,
        "input_text": "",
        "input_ids": list(request.input_ids),
        "mm_inputs": None,
        "sampling_params": params,
        "return_logprob": request.logprobs,
        "logprob_start_len": -1,
        "top_logprobs_num": request.top_logprobs,
        "token_ids_logprob": None,
        "stream": False,
    }
    return TokenizedGenerateReqInput(**(fields | request.fields))


def _abort(rid: str) -> Any:
    from sglang.srt.managers.io_struct import AbortReq

    return AbortReq(rid=rid)


def _new_tokens(output: Any, position: int, first: bool) -> list[int]:
    """Tokens that this output adds to a request's answer."""
    if output.output_ids is not None:
        return list(output.output_ids[position])
    # With a tokenizer the detokenizer gets ids only, and with the first of them the end of the
    # prompt as context (managers/schedule_batch.py:1083).
    return list(output.decode_ids[position][output.read_offsets[position] if first else 0 :])


def _at(values: Sequence[Any] | None, position: int) -> Any:
    # Lists of outputs that nobody asked for are None or empty.
    return values[position] if values else None


def _alternatives(output: Any, name: str, position: int) -> list[list[tuple[float, int]]]:
    """Per token, (log-probability, token) pairs; empty where the engine has none for a token."""
    values = _at(getattr(output, f"{name}_val"), position) or []
    tokens = _at(getattr(output, f"{name}_idx"), position) or []
    return [
        list(zip(some, named, strict=True)) if some is not None else []
        for some, named in zip(values, tokens, strict=True)
    ]


def _config_file(config: Any) -> str:
    """Path of a file with `config`; the flag takes a file, and JSON is YAML."""
    if isinstance(config, str | Path):
        return str(config)
    if hasattr(config, "model_dump"):
        config = config.model_dump(mode="json")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
        json.dump(config, file)
    return file.name
