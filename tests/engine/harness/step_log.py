"""Records what an engine really ran, step by step, for comparison with what its worker says it ran.

A worker's counters could be wrong in the same way as its steps. The log therefore reads the forward
modes that reach the two models, and the results that the scheduler resolves. Lines cited are of
SGLang 0.5.12.post1.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from specswitch.control.decision import Mode


@dataclass(frozen=True)
class Step:
    """One decode step.

    Attributes:
        mode: told by the forward mode of the target: DECODE or TARGET_VERIFY.
        draft_forwards: forward passes of the draft model that belong to it.
        kept: tokens that went to each request, by name.
        discarded: tokens computed for requests that had left by the time the result arrived; with
            overlap the step after a request's last one is already running then.
    """

    mode: Mode
    draft_forwards: int
    kept: dict[str, int]
    discarded: dict[str, int]


class StepLog:
    """Watches one scheduler; `steps` grows as results arrive, in order.

    Args:
        scheduler: the engine's Scheduler, with a speculative worker.

    Attributes:
        steps: decode steps whose results have arrived.
        prefills: tokens that each request got from a prefill, by name; more than one when it was
            retracted.
        chunks: prefills that left a part of a prompt for the next one.
    """

    def __init__(self, scheduler: Any) -> None:
        self.steps: list[Step] = []
        self.prefills: dict[str, int] = {}
        self.chunks = 0
        self._launched: deque[Mode] = deque()
        self._draft_forwards: deque[int] = deque()
        self._scheduler = scheduler
        worker = scheduler.draft_worker
        self._watch_target(worker.target_worker.model_runner)
        self._watch_draft(worker.draft_worker.draft_runner.model)
        self._watch_steps(worker)
        self._watch_results()

    def _watch_target(self, model_runner: Any) -> None:
        forward = model_runner.forward

        def watched(forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
            if forward_batch.forward_mode.is_target_verify():
                self._launched.append(Mode.SPECULATE)
            elif forward_batch.forward_mode.is_decode():
                self._launched.append(Mode.TARGET_ONLY)
            return forward(forward_batch, *args, **kwargs)

        model_runner.forward = watched

    def _watch_draft(self, model: Any) -> None:
        # The model and not its runner, which draft sync goes past.
        forward = model.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._draft_forwards[-1] += 1
            return forward(*args, **kwargs)

        model.forward = watched

    def _watch_steps(self, worker: Any) -> None:
        forward = worker.forward_batch_generation

        def watched(batch: Any) -> Any:
            is_decode = batch.forward_mode.is_decode()
            self._draft_forwards.append(0)
            result = forward(batch)
            if not is_decode:
                # A prefill runs the draft model too, for no decode step.
                self._draft_forwards.pop()
            return result

        worker.forward_batch_generation = watched

    def _watch_results(self) -> None:
        resolve = self._scheduler._resolve_spec_overlap_tokens
        process_prefill = self._scheduler.process_batch_result_prefill

        def resolved(result: Any, batch: Any) -> Any:
            gone = [req.finished() or req.is_retracted for req in batch.reqs]
            tokens = resolve(result, batch)
            kept: dict[str, int] = {}
            discarded: dict[str, int] = {}
            for req, has_left, ids in zip(batch.reqs, gone, tokens, strict=True):
                (discarded if has_left else kept)[req.rid] = len(ids)
            self.steps.append(
                Step(self._launched.popleft(), self._draft_forwards.popleft(), kept, discarded)
            )
            return tokens

        def prefilled(batch: Any, result: Any) -> Any:
            before = [len(req.output_ids) for req in batch.reqs]
            self.chunks += any(req.is_chunked > 0 for req in batch.reqs)
            answer = process_prefill(batch, result)
            for req, had in zip(batch.reqs, before, strict=True):
                self.prefills[req.rid] = self.prefills.get(req.rid, 0) + len(req.output_ids) - had
            return answer

        self._scheduler._resolve_spec_overlap_tokens = resolved
        self._scheduler.process_batch_result_prefill = prefilled
