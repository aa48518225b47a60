"""Random draft trees as the engine's beam search makes them, with random verdicts of a target.

The search follows select_top_k_tokens() and organize_draft_results() of SGLang 0.5.12.post1
(speculative/spec_utils.py, speculative/eagle_utils.py:20), with random numbers in the place of a
draft model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

VOCABULARY = 40
_LONGEST_SEQUENCE = 20
# How often the target agrees with one of a node's children; high, so that long paths are accepted.
_AGREEMENT = 0.7


@dataclass
class _Draft:
    """One request's draft.

    Attributes:
        parents: the parent list: the token that each group of siblings hangs from.
        tokens: vocabulary entry of every proposed token, in the order of their numbers.
        scores: probability of the path to each.
    """

    parents: list[int]
    tokens: list[int]
    scores: list[float]


def random_tree_case(
    seed: int, bs: int, topk: int, depth: int, n: int, vocabulary: int = VOCABULARY
) -> dict[str, torch.Tensor]:
    """Makes the inputs of tree building, verification and renormalisation for a batch.

    Args:
        seed: fixes every number.
        bs: requests.
        topk: beam width.
        depth: draft steps.
        n: nodes of each tree, the root included; at most 1 + topk + (depth - 1) * topk ** 2.
        vocabulary: tokens; at least `topk`.

    Returns:
        Tensors on the CPU:

        * parent_list [bs, topk * (depth - 1) + 1] int64, selected_index [bs, n - 1] int64,
          seq_lens [bs] int64: inputs of tree building
        * candidates [bs, n] int64: token of each node
        * target_predict [bs, n] int64: token the target says after each node, often a child's
        * target_probs [bs, n, vocabulary] float32: the target's distribution after each node, with
          much of it on children
        * uniform_samples [bs, n], uniform_samples_for_final_sampling [bs] float32 in [0, 1)
        * top_k [bs * n] int32, top_p [bs * n] float32: one pair for each row of target_probs

    Raises:
        ValueError: `n` is more than the search proposes.
    """
    proposed = topk + (depth - 1) * topk**2
    if n - 1 > proposed:
        raise ValueError(
            f"a tree of {n} nodes needs {n - 1} draft tokens; the search has {proposed}"
        )
    generator = torch.Generator().manual_seed(seed)
    parents, selected, candidates, predicts, probs = [], [], [], [], []
    for _ in range(bs):
        draft = _search(generator, topk, depth, vocabulary)
        best = torch.tensor(draft.scores).topk(n - 1).indices.sort().values.tolist()
        children = _children(draft, best, topk)
        root = int(torch.randint(vocabulary, (1,), generator=generator))
        # With one step the engine's parent list is empty; its width formula still gives 1 here, and
        # no group but 0 exists, so the content is never read.
        parents.append(draft.parents[: topk * (depth - 1) + 1])
        selected.append(best)
        candidates.append([root] + [draft.tokens[token] for token in best])
        verdicts = [_verdict(generator, tokens, vocabulary) for tokens in children]
        predicts.append([token for token, _ in verdicts])
        probs.append(torch.stack([distribution for _, distribution in verdicts]))
    rows = bs * n
    return {
        "parent_list": torch.tensor(parents),
        "selected_index": torch.tensor(selected),
        "seq_lens": torch.randint(1, _LONGEST_SEQUENCE, (bs,), generator=generator),
        "candidates": torch.tensor(candidates),
        "target_predict": torch.tensor(predicts),
        "target_probs": torch.stack(probs),
        "uniform_samples": torch.rand(bs, n, generator=generator),
        "uniform_samples_for_final_sampling": torch.rand(bs, generator=generator),
        "top_k": torch.randint(1, vocabulary + 1, (rows,), generator=generator, dtype=torch.int32),
        "top_p": torch.rand(rows, generator=generator).clamp(min=0.05),
    }


def _search(generator: torch.Generator, topk: int, depth: int, vocabulary: int) -> _Draft:
    """A beam search: every beam proposes `topk` tokens, the best `topk` of all go on."""
    scores = _descending_probabilities(generator, topk)
    # The numbers of group 0 have no parent token; the engine writes -1 for it.
    draft = _Draft([-1, *range(topk)], _distinct(generator, topk, vocabulary), scores.tolist())
    for step in range(1, depth):
        first = topk + (step - 1) * topk**2
        proposals = torch.cat(
            [score * _descending_probabilities(generator, topk) for score in scores]
        )
        for _ in range(topk):
            draft.tokens += _distinct(generator, topk, vocabulary)
        draft.scores += proposals.tolist()
        best = proposals.topk(topk)
        scores = best.values
        draft.parents += (first + best.indices).tolist()
    return draft


def _children(draft: _Draft, selected: list[int], topk: int) -> list[list[int]]:
    """Vocabulary entries of each node's children; node 0 is the root."""
    nodes = {-1: 0} | {token: node for node, token in enumerate(selected, start=1)}
    children: list[list[int]] = [[] for _ in range(len(selected) + 1)]
    for token in selected:
        parent = draft.parents[token // topk] if token >= topk else -1
        children[nodes[parent]].append(draft.tokens[token])
    return children


def _verdict(
    generator: torch.Generator, children: list[int], vocabulary: int
) -> tuple[int, torch.Tensor]:
    """What the target says after a node: (greedy token, distribution)."""
    agrees = children and float(torch.rand(1, generator=generator)) < _AGREEMENT
    among = len(children) if agrees else vocabulary
    pick = int(torch.randint(among, (1,), generator=generator))
    distribution = torch.rand(vocabulary, generator=generator) ** 4
    if children:
        distribution[children] += torch.rand(len(children), generator=generator) * vocabulary / 8
    return (children[pick] if agrees else pick), distribution / distribution.sum()


def _descending_probabilities(generator: torch.Generator, count: int) -> torch.Tensor:
    # Below 1 each, so that a path is less probable than its parent and never chosen without it.
    return (torch.rand(count, generator=generator) * 0.9 + 0.05).sort(descending=True).values


def _distinct(generator: torch.Generator, count: int, vocabulary: int) -> list[int]:
    return torch.randperm(vocabulary, generator=generator)[:count].tolist()
