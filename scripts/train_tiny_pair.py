"""Train the tiny pair and write it where the package ships it.

    python scripts/train_tiny_pair.py --minutes 4

Four minutes are enough on one H200. A CPU runs the same script a few hundred times slower, which is
good for trying a change and not for weights; --bf16 helps where it has AMX or AVX512-BF16.

Why a script: whoever changes the text or a shape can make the weights again; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from tiny_pair_training.data import batches
from tiny_pair_training.export import export, round_to_storage
from tiny_pair_training.loop import Loss, fit
from tiny_pair_training.models import EAGLE3, STANDALONE, TARGET, Eagle3, Llama
from tiny_pair_training.stages import eagle3_loss, evaluate, standalone_loss, target_loss
from tiny_pair_training.vocab import build_tokenizer, draft_pieces, piece_ids
from torch import nn

from specswitch.tiny_pair.text import EOS, vocabulary

SHARES = {"target": 0.5, "eagle3": 0.3, "standalone": 0.2}
LR = {"target": 2e-3, "eagle3": 2e-3, "standalone": 3e-3}
OUT = Path(__file__).resolve().parents[1] / "src" / "specswitch" / "tiny_pair"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=float, default=4.0, help="wall time of training (default 4)"
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help="directory for target/, eagle3/, standalone/"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--bf16", action="store_true", help="multiply in bfloat16 on a CPU too (always on a GPU)"
    )
    parser.add_argument(
        "--rows", type=int, help="rows per batch (default: 32 on a GPU, 8 on a CPU)"
    )
    parser.add_argument(
        "--length", type=int, help="tokens per row (default: 2048 on a GPU, 512 on a CPU)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.minutes <= 0:
        parser.error("--minutes must be above 0")

    device = torch.device(args.device)
    gpu = device.type == "cuda"
    rows, length = args.rows or (32 if gpu else 8), args.length or (2048 if gpu else 512)
    workers = max(1, min(14, (os.cpu_count() or 1) - 2)) if gpu else 0
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = build_tokenizer()
    ids = piece_ids(tokenizer)
    vocab = tokenizer.get_vocab_size()
    text_ids = torch.tensor(
        sorted({ids[EOS], *(ids[piece] for piece in vocabulary())}), device=device
    )
    draft_ids = torch.tensor(sorted(ids[piece] for piece in draft_pieces()), device=device)

    target = Llama(TARGET, vocab).to(device)
    head = Eagle3(EAGLE3, len(text_ids)).to(device)
    draft = Llama(STANDALONE, vocab).to(device)
    for name, model in (("target", target), ("eagle3", head), ("standalone", draft)):
        print(
            f"{name}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters",
            flush=True,
        )

    feed = batches(ids, rows, length, args.seed, workers)
    unseen = next(batches(ids, 16, length, args.seed + 1_000_003, 0))
    held_out = (unseen[0].to(device), unseen[1].to(device))
    seconds = {name: 60.0 * args.minutes * share for name, share in SHARES.items()}
    start = time.monotonic()

    def train(name: str, model: nn.Module, loss: Loss) -> None:
        bf16 = gpu or args.bf16
        fit(name, model, loss, feed, seconds=seconds[name], lr=LR[name], device=device, bf16=bf16)

    train("target", target, target_loss(target))
    round_to_storage(target)
    target.requires_grad_(False)
    print("held out:", _show(evaluate(target, held_out, None, None, draft_ids)), flush=True)
    train("eagle3", head, eagle3_loss(head, target, text_ids))
    head.cut_vocabulary(torch.searchsorted(text_ids, draft_ids))
    train("standalone", draft, standalone_loss(draft, target))
    round_to_storage(head)
    round_to_storage(draft)
    print("held out:", _show(evaluate(target, held_out, head, draft, draft_ids)), flush=True)

    export(args.out, tokenizer, target.cpu(), head.cpu(), draft.cpu(), draft_ids.cpu())
    size = sum(f.stat().st_size for name in SHARES for f in (args.out / name).iterdir())
    print(f"{args.out}: {size / 1e6:.2f} MB, {time.monotonic() - start:.0f} s in all", flush=True)


def _show(measures: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in measures.items())


if __name__ == "__main__":
    main()
