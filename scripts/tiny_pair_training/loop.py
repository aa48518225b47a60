"""A training loop that ends on time, and the loss it is used with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .data import Batch

Loss = Callable[[Tensor, Tensor], Tensor]
"""(ids int64 [B, T], weights float32 [B, T]) to a scalar."""


def soft_loss(logits: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean cross entropy.

    Args:
        logits: [B, T, V].
        wanted: a teacher's probabilities [B, T, V], or ids int64 [B, T].
        weights: float32 [B, T].
    """
    target = wanted.flatten(0, 1) if wanted.dim() == 3 else wanted.flatten()
    losses = F.cross_entropy(logits.flatten(0, 1).float(), target, reduction="none")
    flat = weights.flatten()
    return (losses * flat).sum() / flat.sum()


def fit(
    name: str,
    model: nn.Module,
    loss: Loss,
    batches: Iterator[Batch],
    *,
    seconds: float,
    lr: float,
    device: torch.device,
    bf16: bool,
) -> None:
    """Train `model` in place for `seconds` of wall time.

    AdamW; the learning rate warms up over the first 3% and follows a cosine down to 1% of `lr`.
    Progress follows the clock, so the result depends on the speed of the machine. bf16: matrix
    products in bfloat16 (autocast).
    """
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.98), fused=device.type == "cuda")
    start = shown = time.monotonic()
    tokens = step = 0
    model.train()
    while (done := (time.monotonic() - start) / seconds) < 1.0:
        scale = min(done / 0.03, 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = lr * max(scale, 0.01)
        ids, weights = (t.to(device, non_blocking=True) for t in next(batches))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
            value = loss(ids, weights)
        optimizer.zero_grad(set_to_none=True)
        value.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        tokens += ids.numel()
        if step % 20 == 0:
            norm.item()  # waits for the device, so that the clock sees finished work
            now = time.monotonic()
            if now - shown > 5.0:
                speed = f"{tokens / (now - start) / 1e3:.0f}k tokens/s"
                print(
                    f"{name}: {100 * done:3.0f}%  step {step}  loss {value.item():.4f}  {speed}",
                    flush=True,
                )
                shown = now
    model.eval()
    spent = time.monotonic() - start
    print(
        f"{name}: {step} steps, {tokens / 1e6:.1f}M tokens, {spent:.0f} s, "
        f"last loss {value.item():.4f}",
        flush=True,
    )
