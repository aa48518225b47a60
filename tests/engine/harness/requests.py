"""What goes into a driven engine and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """One generation request; greedy unless `sampling` says otherwise.

    Attributes:
        input_ids: prompt tokens.
        max_new_tokens: tokens to generate at most.
        arrive: tick of the event loop at which the scheduler receives it, counted from 0.
        abort: tick at which the client gives up; None: never.
        logprobs: return the log-probability of every output token.
        top_logprobs: with `logprobs`, alternatives to return at each position.
        rid: name of the request; made up when empty.
        sampling: further fields of the engine's SamplingParams. ``ignore_eos`` is True unless it is
            given; as long as it is, stop tokens have no effect either.
        fields: further fields of the engine's TokenizedGenerateReqInput.
    """

    input_ids: list[int]
    max_new_tokens: int = 24
    arrive: int = 0
    abort: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    rid: str = ""
    sampling: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass
class Result:
    """What the engine sent back for one request.

    Attributes:
        rid: name of the request.
        output_ids: generated tokens.
        finish_reason: the engine's own dictionary, ``{"type": "length" | "stop" | "abort", ...}``;
            None while it runs.
        logprobs: log-probability of each output token, when asked for.
        top_logprobs: per output token, (log-probability, token) of each alternative, when asked
            for.
        token_ids_logprobs: per output token, (log-probability, token) of each token that
            ``token_ids_logprob`` names, when asked for.
        input_logprobs, input_top_logprobs, input_token_ids_logprobs: the same for the prompt, from
            ``logprob_start_len`` on; the first is None, as the engine gives it.
        hidden_states: per forward pass of the request what the engine kept of its hidden states,
            when asked for.
        cached_tokens: prompt tokens found in the radix cache.
        retractions: times the request was sent back to the queue for lack of KV slots.
        verify_steps: speculative steps the request took part in.
        accepted_drafts: draft tokens accepted over these steps.
        finished_tick: tick at which the scheduler sent the last output.
    """

    rid: str
    output_ids: list[int] = field(default_factory=list)
    finish_reason: dict[str, Any] | None = None
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)
    token_ids_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)
    input_logprobs: list[float | None] = field(default_factory=list)
    input_top_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)
    input_token_ids_logprobs: list[list[tuple[float, int]]] = field(default_factory=list)
    hidden_states: list[Any] = field(default_factory=list)
    cached_tokens: int = 0
    retractions: int = 0
    verify_steps: int = 0
    accepted_drafts: int = 0
    finished_tick: int | None = None
