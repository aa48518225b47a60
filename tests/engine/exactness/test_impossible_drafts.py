"""A draft that has no probability is refused, whatever number verification draws for it."""

from __future__ import annotations

import pytest
import torch
from harness import run_scenario

from specswitch.engine.exactness import repair

# Node 0 is the last token, node 1 the draft: its only child.
DRAFT, LIKELIEST = 3, 5


def accepted_drafts(coin: float, probability: float, *, repaired: bool) -> tuple[int, int]:
    """Accepted drafts, and the token that follows, as the engine's verification calls it."""
    if repaired:
        repair()
    from sglang.srt.speculative import eagle_info_v2

    probabilities = torch.zeros(1, 2, 8)
    probabilities[:, :, DRAFT] = probability
    probabilities[:, :, LIKELIEST] = 1 - probability
    predicts = torch.zeros(2, dtype=torch.int32)
    accept_index = torch.full((1, 2), -1, dtype=torch.int32)
    accepted = torch.zeros(1, dtype=torch.int32)
    eagle_info_v2.tree_speculative_sampling_target_only(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=torch.tensor([[0, DRAFT]]),
        retrive_index=torch.tensor([[0, 1]]),
        retrive_next_token=torch.tensor([[1, -1]]),
        retrive_next_sibling=torch.tensor([[-1, -1]]),
        uniform_samples=torch.full((1, 2), coin),
        uniform_samples_for_final_sampling=torch.zeros(1),
        target_probs=probabilities,
        draft_probs=torch.zeros_like(probabilities),
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
    )
    return int(accepted), int(predicts[0])


def test_a_draft_without_probability_is_refused() -> None:
    assert run_scenario(accepted_drafts, 0.0, 0.0, repaired=True) == (0, LIKELIEST)


def test_the_engine_alone_accepts_it_when_the_number_is_zero() -> None:
    assert run_scenario(accepted_drafts, 0.0, 0.0, repaired=False) == (1, DRAFT)


@pytest.mark.parametrize(
    ("coin", "probability", "accepted"),
    [(0.0, 1e-6, 1), (2.0**-24, 1e-6, 1), (0.4, 0.5, 1), (0.6, 0.5, 0)],
)
def test_other_drafts_are_judged_as_ever(coin: float, probability: float, accepted: int) -> None:
    for repaired in (True, False):
        assert run_scenario(accepted_drafts, coin, probability, repaired=repaired)[0] == accepted
