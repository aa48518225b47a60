"""The draft's KV, slot by slot, against a recomputation by the engine's own worker.

Position p of a draft's KV follows from the tokens up to p + 1 alone. So whatever a server did with
a request, its draft KV must equal that of a fresh prefill of the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from draft_sync_cases import ROOM
from harness import EngineDriver, Request
from runs import OnTick, Run, run

#: Prefill and decode sum in different orders; values are about 1.
TOLERANCE = 2e-4


@dataclass(frozen=True)
class Kept:
    """Draft KV of the first positions of one request or of one cached prefix.

    Attributes:
        name: the request, or what else it belongs to.
        kv: [layers x 2, positions, heads, head dim]; keys and values of a layer follow each other.
        tokens: of the prefix; empty where the answer will tell.
        compared: positions of it that are determined by its tokens; all when empty.
    """

    name: str
    kv: np.ndarray
    tokens: tuple[int, ...] = ()
    compared: tuple[int, ...] = ()


def gather(driver: EngineDriver, slots: Any) -> np.ndarray:
    """Draft KV in these slots, [layers x 2, slots, heads, head dim]."""
    pool = driver.scheduler.draft_worker.draft_worker.draft_runner.token_to_kv_pool
    layers = zip(pool.k_buffer, pool.v_buffer, strict=True)
    return np.stack([buffer[slots].numpy() for pair in layers for buffer in pair])


def _gather_row(driver: EngineDriver, row: int, length: int) -> np.ndarray:
    return gather(driver, driver.scheduler.req_to_token_pool.req_to_token[row, :length].long())


def keep_when_resuming(driver: EngineDriver, notes: dict[str, Any]) -> None:
    """Keep the draft KV of each request of a batch that has just returned to speculation.

    Taken where the engine begins to draft, so after whatever draft sync has done. Goes into
    ``notes["resumed"]``.
    """
    worker = driver.worker
    draft = worker.draft_worker.draft
    kept: list[Kept] = []
    notes["resumed"] = kept

    def watched(batch: Any) -> Any:
        if worker.controller.last.switched:
            for request, length in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True):
                kept.append(Kept(request.rid, _gather_row(driver, request.req_pool_idx, length)))
        return draft(batch)

    worker.draft_worker.draft = watched


def follow_chunks_with_the_prompt(driver: EngineDriver) -> None:
    """Put one flaw of the engine right, so that what is left to find is ours.

    Its draft prefill feeds the last position of each chunk with the token that was sampled there
    (speculative/eagle_worker_v2.py:522), where the prompt already says what follows.
    """
    draft_worker = driver.worker.draft_worker
    extend = draft_worker._draft_extend_for_prefill

    def corrected(batch: Any, hidden_states: Any, next_tokens: Any, *args: Any) -> Any:
        next_tokens = next_tokens.clone()
        for index, (request, length) in enumerate(
            zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True)
        ):
            whole = [*request.origin_input_ids, *request.output_ids]
            if length < len(whole):
                next_tokens[index] = whole[length]
        return extend(batch, hidden_states, next_tokens, *args)

    draft_worker._draft_extend_for_prefill = corrected


def cached_prefixes(driver: EngineDriver) -> list[Kept]:
    """Draft KV of everything in the radix cache, from the root to each leaf.

    With EAGLE a node's key is pairs of tokens, so that each cached position comes with the token
    that follows. Without, the last position of a node has been computed with a token that the key
    does not hold, by the engine as well: it is not compared.
    """
    tree = driver.scheduler.tree_cache
    found: list[Kept] = []
    if tree.disable:
        return found

    def walk(node: Any, tokens: tuple[int, ...], slots: list[int], open_ends: set[int]) -> None:
        for child in node.children.values():
            own = child.value.tolist()
            # The last token of a key of pairs is the first of the next node's.
            path = (*tokens, *child.key.token_ids[: len(own)])
            ends = open_ends | (set() if tree.is_eagle else {len(path) - 1})
            if child.children:
                walk(child, path, slots + own, ends)
                continue
            whole = (*path, *child.key.token_ids[len(own) :])
            compared = tuple(p for p in range(len(path)) if p not in ends)
            kv = gather(driver, slots + own)
            found.append(Kept(f"prefix {len(found)}", kv, whole, compared))

    walk(tree.root_node, (), [], set())
    return found


def keep_all(driver: EngineDriver, notes: dict[str, Any]) -> OnTick:
    """Keep what `keep_when_resuming` keeps, and in ``notes["cached"]`` the prefixes at the end."""
    keep_when_resuming(driver, notes)
    follow_chunks_with_the_prompt(driver)
    scheduler = driver.scheduler
    seen = 0

    def on_tick(_driver: EngineDriver) -> None:
        nonlocal seen
        idle = scheduler.last_batch is None and scheduler.running_batch.is_empty()
        if idle and scheduler.forward_ct > seen:
            seen = scheduler.forward_ct
            notes["cached"] = cached_prefixes(driver)

    return on_tick


def recompute(sequences: Sequence[Sequence[int]], algorithm: str, **server_args: Any) -> Run:
    """Prefill each sequence anew, with the engine's own worker; ``notes[name]`` holds its KV."""

    def prepare(driver: EngineDriver, notes: dict[str, Any]) -> None:
        worker = driver.worker
        forward = worker.forward_batch_generation

        def watched(batch: Any) -> Any:
            is_prefill = batch.forward_mode.is_extend()
            rows = [(request.rid, request.req_pool_idx) for request in batch.reqs]
            lengths = batch.seq_lens_cpu.tolist()
            result = forward(batch)
            if is_prefill:
                for (rid, row), length in zip(rows, lengths, strict=True):
                    notes[rid] = _gather_row(driver, row, length)
            return result

        worker.forward_batch_generation = watched

    requests = [
        Request(list(sequence), max_new_tokens=1, rid=f"s{number:04d}")
        for number, sequence in enumerate(sequences)
    ]
    return run(
        requests,
        algorithm,
        worker=None,
        prepare=prepare,
        disable_radix_cache=True,
        **(ROOM | server_args),
    )


def whole_sequences(requests: Sequence[Request], run: Run) -> dict[str, list[int]]:
    """Prompt and answer of each request, by name."""
    return {
        result.rid: [*request.input_ids, *result.output_ids]
        for request, result in zip(requests, run.results, strict=True)
    }


def differences(
    kept: Sequence[Kept], answers: Mapping[str, Sequence[int]], algorithm: str
) -> dict[str, list[int]]:
    """Positions whose draft KV is not what a recomputation gives, by name; empty when all are.

    Args:
        answers: see `whole_sequences`.
    """
    sequences = {one.name if not one.tokens else one.tokens: () for one in kept}
    wanted = {key: answers[key] if isinstance(key, str) else key for key in sequences}
    names = {key: f"s{number:04d}" for number, key in enumerate(wanted)}
    fresh = recompute(list(wanted.values()), algorithm).notes
    found: dict[str, list[int]] = {}
    for one in kept:
        expected = fresh[names[one.tokens or one.name]]
        positions = [
            p
            for p in _comparable(one, len(wanted[one.tokens or one.name]))
            if not np.allclose(one.kv[:, p], expected[:, p], rtol=0, atol=TOLERANCE)
        ]
        if positions:
            found.setdefault(one.name, []).extend(positions)
    return found


def _comparable(one: Kept, tokens: int) -> Iterator[int]:
    # The draft KV of the last token depends on one that nobody knows.
    positions = one.compared or range(one.kv.shape[1])
    return (p for p in positions if p < tokens - 1)
