"""Command-line arguments of servers with the trained tiny pair."""

from __future__ import annotations

from specswitch import tiny_pair

PAIR = (
    *("--model-path", str(tiny_pair.path("target"))),
    *("--speculative-draft-model-path", str(tiny_pair.path("eagle3"))),
)
STEPS = ("--speculative-num-steps", "3", "--speculative-num-draft-tokens", "4")
EAGLE3 = (*PAIR, "--speculative-algorithm", "EAGLE3", *STEPS, "--speculative-eagle-topk", "1")
SPECSWITCH = ("--speculative-worker", "specswitch")
