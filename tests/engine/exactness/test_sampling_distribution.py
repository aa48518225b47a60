"""Draws at random come from one distribution whatever the mode: that of the target's logits.

The expected distribution of every token is computed apart from the engine, by transformers' own
Llama on the same weights and the filters written out below. A draw with the probability p_r of its
rank r is turned into a number u between the sum of p before r and the sum up to r, at random: if
tokens are drawn as they should be, all u are independent and uniform, in whatever contexts the
tokens were drawn (Rosenblatt's transform). Too hot, too cold, a filter too wide or too narrow, or a
draft that is accepted too often: each leaves too many u at one end. That is what the chi-square
test looks at.

Seeds are fixed, so the figures are the same in every run on one machine; should another one round
otherwise, a good engine fails one time in ten thousand tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from harness import Request, Result, shared_random_models
from safetensors.torch import load_file
from scipy.stats import chisquare
from workloads import text

from specswitch.control.decision import Mode

from .matrix import PATTERNS, Case, Served, serve
from .recorder import check
from .verdicts import Verdict

# The random target: its logits are as good as normally distributed, so that a temperature that is
# off shows at every token, where a trained one is certain of a token or knows nothing of it. Its
# noisy copy drafts, as more of that is accepted than of the other random drafts.
ALGORITHM = "STANDALONE"
PROMPTS_OF = "EAGLE"
BINS = 12
# Of a false alarm, for each of the tests below.
SIGNIFICANCE = 1e-4
NEW_TOKENS = 48
REQUESTS_EACH = 16
ROUNDING = 1e-4

# All in one batch, so that no request may get another one's settings.
SETTINGS: dict[str, dict[str, float]] = {
    "temperature": {"temperature": 0.2},
    "top_k": {"temperature": 0.2, "top_k": 4},
    "top_p": {"temperature": 0.2, "top_p": 0.8},
    "top_k_and_top_p": {"temperature": 0.25, "top_k": 8, "top_p": 0.7},
    "greedy_beside_draws": {"temperature": 0.0},
}
DRAWN = [key for key in SETTINGS if key != "greedy_beside_draws"]
PLAIN = "no speculation"


@dataclass(frozen=True)
class Draw:
    """One token that was drawn, against what it was to be drawn from.

    Attributes:
        below: probability of all tokens that are likelier.
        probability: its own.
    """

    below: float
    probability: float


def asking() -> list[Request]:
    """`REQUESTS_EACH` requests for each of the settings, one after the other."""
    prompts = text(PROMPTS_OF)
    return [
        Request(list(prompts[number][:60]), max_new_tokens=NEW_TOKENS, sampling=dict(setting))
        for number in range(REQUESTS_EACH)
        for setting in SETTINGS.values()
    ]


@cache
def served(pattern: str) -> Served:
    policy = None if pattern == PLAIN else PATTERNS[pattern]
    random = shared_random_models()
    paths = {"model_path": str(random.target)}
    if policy is not None:
        paths["speculative_draft_model_path"] = str(random.drafts[ALGORITHM])
    return serve(
        [Case("sampling", tuple(asking()))],
        policy,
        algorithm=ALGORITHM,
        max_running_requests=len(SETTINGS) * REQUESTS_EACH,
        max_total_tokens=16384,
        config={"max_speculative_batch": 128},
        **paths,
    )["sampling"]


def results_of(pattern: str, key: str) -> list[tuple[Request, Result]]:
    place = list(SETTINGS).index(key)
    pairs = list(zip(asking(), served(pattern).results, strict=True))
    return pairs[place :: len(SETTINGS)]


@cache
def target() -> torch.nn.Module:
    """The target, without the engine."""
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = shared_random_models().target
    # Not by from_pretrained: where the engine is imported, that leaves the rotary embedding as it
    # found the memory.
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(directory)).float().eval()
    model.load_state_dict(load_file(directory / "model.safetensors"))
    return model


@cache
def draws(pattern: str, key: str) -> tuple[Draw, ...]:
    return tuple(draw(*seen, **SETTINGS[key]) for seen in drawn_tokens(pattern, key))


def drawn_tokens(pattern: str, key: str) -> Iterator[tuple[torch.Tensor, int]]:
    """Logits [vocabulary] and what was drawn from them, for every token but the first of each
    answer, which a prefill draws in every mode."""
    for request, result in results_of(pattern, key):
        tokens = [*request.input_ids, *result.output_ids]
        with torch.no_grad():
            logits = target()(torch.tensor([tokens])).logits[0].double()
        for place in range(len(request.input_ids) + 1, len(tokens)):
            yield logits[place - 1], tokens[place]


def draw(
    logits: torch.Tensor,
    token: int,
    temperature: float,
    top_k: float = float("inf"),
    top_p: float = 1.0,
) -> Draw:
    """Both filters look at the probabilities as the temperature has made them."""
    ranked, tokens = torch.softmax(logits / temperature, 0).sort(descending=True)
    before = ranked.cumsum(0) - ranked
    rank = int((tokens == token).nonzero())
    assert rank < top_k, "a token that top_k leaves out"
    assert float(before[rank]) <= top_p + ROUNDING, "a token that top_p leaves out"
    left = ranked[(torch.arange(len(ranked)) < top_k) & (before <= top_p)]
    total = float(left.sum())
    return Draw(float(before[rank]) / total, float(ranked[rank]) / total)


def uniforms(drawn: Sequence[Draw]) -> np.ndarray:
    spread = np.random.default_rng(5).random(len(drawn))
    numbers = [d.below + v * d.probability for d, v in zip(drawn, spread, strict=True)]
    return np.clip(numbers, 0.0, 1.0)


def false_alarm(drawn: Sequence[Draw]) -> float:
    """How probable it is that draws from the right distribution look as uneven as these."""
    counts, _ = np.histogram(uniforms(drawn), bins=BINS, range=(0.0, 1.0))
    return float(chisquare(counts).pvalue)


@pytest.mark.parametrize("pattern", [PLAIN, *PATTERNS])
@pytest.mark.parametrize("key", DRAWN)
def test_draws_follow_the_distribution_of_the_target(key: str, pattern: str) -> None:
    drawn = draws(pattern, key)
    assert len(drawn) == REQUESTS_EACH * (NEW_TOKENS - 1)
    # Were all tokens certain, nothing could be wrong with how they are drawn.
    assert np.mean([d.probability for d in drawn]) < 0.9
    assert false_alarm(drawn) > SIGNIFICANCE
    if pattern != PLAIN:
        check(key, Verdict.SAME_DISTRIBUTION)


@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_draws_of_all_settings_together_follow_theirs(pattern: str) -> None:
    assert false_alarm([d for key in DRAWN for d in draws(pattern, key)]) > SIGNIFICANCE


@pytest.mark.parametrize("pattern", list(PATTERNS))
def test_greedy_requests_beside_drawing_ones_get_the_greedy_answer(pattern: str) -> None:
    mine = [result.output_ids for _, result in results_of(pattern, "greedy_beside_draws")]
    assert mine == [result.output_ids for _, result in results_of(PLAIN, "greedy_beside_draws")]
    check("greedy_beside_draws", Verdict.IDENTICAL)


def test_the_patterns_ran_the_modes_that_they_stand_for() -> None:
    assert set(served("target_only").modes) == {Mode.TARGET_ONLY}
    assert set(served("speculate").modes) == {Mode.SPECULATE}
    for pattern in ("every 1", "every 3", "every 7"):
        assert set(served(pattern).modes) == set(Mode)
    # Some drafts were accepted, and some refused.
    results = served("speculate").results
    accepted = sum(result.accepted_drafts for result in results)
    assert 0.2 < accepted / sum(3 * result.verify_steps for result in results) < 0.8


@pytest.mark.parametrize("key", DRAWN)
def test_a_temperature_that_is_off_would_be_seen(key: str) -> None:
    seen = list(drawn_tokens(PLAIN, key))
    warmer = SETTINGS[key] | {"temperature": 1.5 * SETTINGS[key]["temperature"]}
    assert false_alarm([draw(*each, **warmer) for each in seen]) < SIGNIFICANCE
