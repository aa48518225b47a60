"""Seeds: on a deterministic server a request with a seed gets one answer, whatever the mode.

The engine reads ``sampling_seed`` on servers with ``--enable-deterministic-inference`` only
(sampling/sampling_batch_info.py:95 of SGLang 0.5.12.post1), and does not start those with the
attention of the CPU engine (server_args.py:4363). What the flag changes in drawing is read when
a batch is made, so these tests set it once the server is up. The hash of seed and position is a
kernel for GPUs (layers/utils/hash.py:104); another one takes its place, as any will do.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from harness import EngineDriver, Request
from workloads import text

from specswitch.control.decision import Mode

from .matrix import PATTERNS, Case, Served, differences, serve
from .recorder import check
from .verdicts import Verdict

ALGORITHM = "EAGLE"
# In batches of their own: as soon as one request of a batch filters, plain decode draws ranks in
# place of tokens (layers/sampler.py:478), and the same seed gives another answer.
PURE = (
    {"temperature": 0.5, "sampling_seed": 3},
    {"temperature": 0.5, "sampling_seed": 3},
    # 42 on a deterministic server.
    {"temperature": 0.5},
)
FILTERED = (
    {"temperature": 0.4, "sampling_seed": 4, "top_k": 8},
    {"temperature": 0.4, "sampling_seed": 4, "top_k": 8},
    {"temperature": 0.4, "sampling_seed": 5, "top_p": 0.8},
)


def _case(key: str, settings: tuple[dict[str, float], ...]) -> Case:
    prompt = list(text(ALGORITHM)[0])
    return Case(
        key,
        tuple(Request(prompt, max_new_tokens=24, sampling=dict(each)) for each in settings),
    )


CASES = (
    _case("pure", PURE),
    _case("filtered", FILTERED),
    _case("greedy", ({"temperature": 0.0, "sampling_seed": 3},)),
)
DRAWN = ("pure", "filtered")


def _make_deterministic(driver: EngineDriver) -> None:
    from sglang.srt.layers import sampler
    from sglang.srt.server_args import get_global_server_args

    sampler.murmur_hash32 = _hash
    for arguments in (driver.server_args, get_global_server_args()):
        arguments.enable_deterministic_inference = True


def _hash(seeds: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """[rows, columns] int64 below 2^32, by seed [rows], position [rows] and column."""
    rows = [
        np.random.default_rng(key).integers(1, 2**32 - 1, len(columns))
        for key in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]
    return torch.from_numpy(np.stack(rows))


@cache
def served(pattern: str | None, exactness: str = "strict") -> dict[str, Served]:
    return serve(
        CASES,
        None if pattern is None else PATTERNS[pattern],
        algorithm=ALGORITHM,
        config={"exactness": exactness},
        prepare=_make_deterministic,
    )


@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_a_seed_gives_one_answer_whatever_the_mode(pattern: str) -> None:
    runs = served(pattern)
    for key, run in runs.items():
        assert not differences(run, served(None)[key]), key
    for key in DRAWN:
        assert set(runs[key].reasons) == {"exactness"}
        assert set(runs[key].modes) == {Mode.TARGET_ONLY}
        one, same, another = (result.output_ids for result in runs[key].results)
        assert one == same != another
    check("sampling_seed", Verdict.TARGET_ONLY, unruled="answers differ")


def test_greedy_requests_of_a_deterministic_server_are_speculated_for() -> None:
    assert set(served("speculate")["greedy"].modes) == {Mode.SPECULATE}


@pytest.mark.parametrize("key", DRAWN)
def test_speculation_would_ignore_the_seed(key: str) -> None:
    unruled = served("speculate", "off")[key]
    assert set(unruled.modes) == {Mode.SPECULATE}
    assert unruled.results[0].output_ids != unruled.results[1].output_ids
    assert differences(unruled, served(None)[key])


@pytest.mark.parametrize("pattern", [None, "speculate", "target_only"])
def test_other_servers_ignore_the_seed_in_every_mode(pattern: str | None) -> None:
    policy = None if pattern is None else PATTERNS[pattern]
    run = serve([_case("pure", PURE)], policy, algorithm=ALGORITHM)["pure"]
    one, same, _ = run.results
    assert one.output_ids != same.output_ids
    assert "exactness" not in run.reasons
