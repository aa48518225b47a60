"""What each of the three models learns, and how well it then does on unseen text."""

from __future__ import annotations

import torch
from torch import Tensor

from .data import Batch
from .loop import Loss, soft_loss
from .models import Eagle3, Llama

STEPS = 3
"""Draft tokens per speculative step: one from the draft-extend and two from draft steps."""
STEP_WEIGHTS = (1.0, 0.9, 0.8)


def target_loss(target: Llama) -> Loss:
    """Next token of the text."""

    def loss(ids: Tensor, weights: Tensor) -> Tensor:
        logits, _ = target(ids[:, :-1])
        return soft_loss(logits, ids[:, 1:], weights[:, 1:])

    return loss


@torch.no_grad()
def _teach(target: Llama, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a draft learns from.

    Returns:
        Embeddings of tokens 1..T-2, hidden states of 0..T-3, logits for tokens 2..T-1.
    """
    logits, aux = target(ids)
    return target.model.embed_tokens(ids[:, 1:-1]), aux[:, :-2], logits[:, 1:-1]


def eagle3_loss(head: Eagle3, target: Llama, draft_ids: Tensor) -> Loss:
    """The target's distribution over `draft_ids`, with the head unrolled as the engine runs it."""

    def loss(ids: Tensor, weights: Tensor) -> Tensor:
        embeds, aux, logits = _teach(target, ids)
        wanted = logits[..., draft_ids].float().softmax(dim=-1)
        total = torch.zeros((), device=ids.device)
        for k, guess in enumerate(head(embeds, aux, STEPS)):
            total = total + STEP_WEIGHTS[k] * soft_loss(
                guess[:, k:], wanted[:, k:], weights[:, 2 + k :]
            )
        return total / sum(STEP_WEIGHTS)

    return loss


def standalone_loss(draft: Llama, target: Llama) -> Loss:
    """The target's distribution.

    The engine runs the draft one token ahead: it never sees the first token of a request
    (eagle_worker_v2.py:530-537, which the STANDALONE worker inherits).
    """

    def loss(ids: Tensor, weights: Tensor) -> Tensor:
        _, _, logits = _teach(target, ids)
        guess, _ = draft(ids[:, 1:-1])
        return soft_loss(guess, logits.float().softmax(dim=-1), weights[:, 2:])

    return loss


def _acceptance(right: list[Tensor], counted: Tensor) -> float:
    """Mean acceptance length when a speculative step may start at any counted slot.

    right: per draft step, bool [B, T]: its guess at slot p is the target's choice of token p+2.
    """
    length = right[0].shape[1] - len(right) + 1
    alive = torch.ones_like(right[0][:, :length])
    total = torch.ones_like(alive, dtype=torch.float32)
    for k, hit in enumerate(right):
        alive = alive & hit[:, k : k + length]
        total = total + alive
    return float(total[counted[:, :length]].mean())


@torch.no_grad()
def evaluate(
    target: Llama, batch: Batch, head: Eagle3 | None, draft: Llama | None, draft_ids: Tensor
) -> dict[str, float]:
    """Measures on one held-out batch, on the tokens that can be known.

    Returns:
        accuracy: share of tokens that the target gets right; copying must have formed for this to
            near 1.
        narrow: share of tokens whose two best target logits are less than 1 apart (numeric
            near-ties live there).
        eagle3, standalone: acceptance length on given text, 1 + `STEPS` at most.
    """
    ids, weights = batch
    counted = weights == 1.0
    logits, _ = target(ids[:, :-1])
    best = logits.float().topk(2, dim=-1)
    sure = counted[:, 1:]
    out = {
        "accuracy": float((best.indices[..., 0] == ids[:, 1:])[sure].float().mean()),
        "narrow": float(((best.values[..., 0] - best.values[..., 1]) < 1.0)[sure].float().mean()),
    }
    embeds, aux, teacher = _teach(target, ids)
    choice = teacher.argmax(dim=-1)
    if head is not None:
        guesses = [draft_ids[g.argmax(dim=-1)] for g in head(embeds, aux, STEPS)]
        out["eagle3"] = _acceptance([g == choice for g in guesses], counted[:, 2:])
    if draft is not None:
        guess = draft(ids[:, 1:-1])[0].argmax(dim=-1)
        out["standalone"] = _acceptance([guess == choice] * STEPS, counted[:, 2:])
    return out
