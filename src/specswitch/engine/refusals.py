"""Combinations of server arguments that specswitch cannot serve, each with what to change.

Checked on the finished ``ServerArgs``, before any process starts or any weight is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from specswitch.engine.errors import StartupRefusal

ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE")
#: The engine's other name for EAGLE with a model's own MTP head (server_args.py:3564).
ALIAS = "NEXTN"


def check_server_args(server_args: Any) -> None:
    """Refuse what cannot work.

    Args:
        server_args: the engine's ``ServerArgs`` after its own ``__post_init__``.

    Raises:
        StartupRefusal: one line per problem, each naming the flag to change.
    """
    # Once more: with some drafts the alias becomes an algorithm of its own (server_args.py:344).
    check_algorithm(server_args.speculative_algorithm)
    problems = [*_overlap(server_args), *_rules(server_args)]
    if problems:
        raise StartupRefusal("\n".join(problems))


def check_algorithm(algorithm: str | None) -> None:
    """Refuse speculation of another kind, before the engine looks at its own arguments for it.

    Args:
        algorithm: value of ``--speculative-algorithm`` as the user wrote it, None when unset.

    Raises:
        StartupRefusal: names the flag and the algorithms that work.
    """
    if algorithm is None or algorithm.upper() not in (*ALGORITHMS, ALIAS):
        given = f"is {algorithm}" if algorithm else "is not set"
        raise StartupRefusal(
            f"--speculative-algorithm {given}: --speculative-worker specswitch needs one of "
            f"{', '.join(ALGORITHMS)}"
        )


def _overlap(args: Any) -> Iterator[str]:
    # The engine itself turns overlap off for trees and without spec v2 (server_args.py:3749), and
    # for pipelines (3346), so the cause is named, not the effect.
    topk = args.speculative_eagle_topk
    if topk is not None and topk > 1:
        yield (
            f"--speculative-eagle-topk is {topk}: SGLang's overlap scheduler speculates on chains "
            "only; set --speculative-eagle-topk 1"
        )
    elif args.disable_overlap_schedule and args.pp_size == 1:
        spec_v2 = os.environ.get("SGLANG_ENABLE_SPEC_V2")
        cause = (
            f"unset SGLANG_ENABLE_SPEC_V2, which is {spec_v2}"
            if spec_v2 is not None and spec_v2.lower() not in ("1", "true", "yes", "on")
            else "drop --disable-overlap-schedule"
        )
        yield f"the overlap scheduler is off, and specswitch runs on no other: {cause}"


def _rules(args: Any) -> Iterator[str]:
    return (message for applies, message in _RULES if applies(args))


_RULES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (
        lambda a: a.speculative_adaptive,
        "--speculative-adaptive and specswitch both decide when to speculate: "
        "drop --speculative-adaptive",
    ),
    (
        lambda a: a.enable_multi_layer_eagle,
        "--enable-multi-layer-eagle uses a worker that specswitch does not extend: drop it",
    ),
    (lambda a: a.pp_size > 1, "--pp-size above 1 has no overlap scheduler: set --pp-size 1"),
    (
        lambda a: a.enable_dp_attention,
        "--enable-dp-attention needs one mode on all ranks, which they do not agree on yet: "
        "drop it (--dp-size without it works)",
    ),
    (
        lambda a: a.attn_cp_size > 1,
        "--attn-cp-size above 1 splits prompts over ranks, and drafts have not been tried with "
        "that: set --attn-cp-size 1",
    ),
    (lambda a: a.enable_lora, "--enable-lora is not supported by specswitch: drop it"),
    (
        lambda a: a.enable_two_batch_overlap,
        "--enable-two-batch-overlap is not supported by specswitch: drop it",
    ),
    (lambda a: a.enable_pdmux, "--enable-pdmux is not supported by specswitch: drop it"),
    (
        lambda a: a.disaggregation_mode != "null",
        "--disaggregation-mode is not supported by specswitch: set it to null",
    ),
)
