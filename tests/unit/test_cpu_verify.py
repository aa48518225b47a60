"""Verification against exhaustive references: all paths for greedy, all outcomes for sampling."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise, product

import pytest

torch = pytest.importorskip("torch")

from specswitch.cpu.random_tree import random_tree_case  # noqa: E402
from specswitch.cpu.tree import children_links  # noqa: E402
from specswitch.cpu.verify import (  # noqa: E402
    tree_speculative_sampling_target_only,
    verify_tree_greedy,
)

SHAPES = [
    pytest.param(4, 1, 1, 2, id="one-step chain"),
    pytest.param(6, 1, 3, 4, id="chain"),
    pytest.param(4, 2, 3, 6, id="narrow tree"),
    pytest.param(4, 4, 5, 8, id="engine's default tree"),
    pytest.param(2, 8, 4, 32, id="wide tree"),
]


def parents_of(case, b, topk):
    """Parent node of each node, straight from the parent list."""
    selected = case["selected_index"][b].tolist()
    parents = [-1]
    for token in selected:
        parent = -1 if token < topk else int(case["parent_list"][b, token // topk])
        parents.append(0 if parent == -1 else selected.index(parent) + 1)
    return parents


def links(parents_of_each):
    """(index, next, sibling) tensors for a list of trees of equal size."""
    bs, n = len(parents_of_each), len(parents_of_each[0])
    pairs = [children_links(parents) for parents in parents_of_each]
    return (
        torch.arange(bs * n).view(bs, n),
        torch.tensor([first for first, _ in pairs]),
        torch.tensor([sibling for _, sibling in pairs]),
    )


def outputs(bs, n, longest):
    return (
        torch.full((bs * n,), -5, dtype=torch.int32),
        torch.full((bs, longest), -1, dtype=torch.int32),
        torch.full((bs,), -5, dtype=torch.int32),
    )


def root_to_node(parents, node):
    path = [node]
    while path[0] != 0:
        path.insert(0, parents[path[0]])
    return path


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("bs", "topk", "depth", "n"), SHAPES)
def test_greedy_accepts_the_longest_path_that_the_target_agrees_with(bs, topk, depth, n, seed):
    case = random_tree_case(seed, bs, topk, depth, n)
    trees = [parents_of(case, b, topk) for b in range(bs)]
    predicts, accept_index, accept_num = outputs(bs, n, depth + 1)
    verify_tree_greedy(
        predicts,
        accept_index,
        accept_num,
        case["candidates"],
        *links(trees),
        case["target_predict"],
    )
    for b, parents in enumerate(trees):
        tokens, target = case["candidates"][b].tolist(), case["target_predict"][b].tolist()

        def agreed(path, tokens=tokens, target=target):
            return all(tokens[child] == target[node] for node, child in pairwise(path))

        best = max(filter(agreed, (root_to_node(parents, node) for node in range(n))), key=len)
        assert accept_index[b].tolist() == [b * n + v for v in best] + [-1] * (
            depth + 1 - len(best)
        )
        assert int(accept_num[b]) == len(best) - 1
        said = predicts.view(bs, n)[b].tolist()
        assert said == [target[v] if v in best else -5 for v in range(n)]


def test_greedy_cases_contain_long_and_short_paths():
    lengths = set()
    for seed in range(8):
        case = random_tree_case(seed, 6, 1, 3, 4)
        predicts, accept_index, accept_num = outputs(6, 4, 4)
        trees = [parents_of(case, b, 1) for b in range(6)]
        verify_tree_greedy(
            predicts,
            accept_index,
            accept_num,
            case["candidates"],
            *links(trees),
            case["target_predict"],
        )
        lengths |= set(accept_num.tolist())
    assert lengths == {0, 1, 2, 3}


def test_greedy_stops_where_the_output_has_no_more_room():
    # A chain of three drafts, all agreed, and room for two nodes.
    predicts, accept_index, accept_num = outputs(1, 4, 2)
    chain = [[-1, 0, 1, 2]]
    verify_tree_greedy(
        predicts,
        accept_index,
        accept_num,
        torch.tensor([[9, 1, 2, 3]]),
        *links(chain),
        torch.tensor([[1, 2, 3, 4]]),
    )
    assert accept_index.tolist() == [[0, 1]]
    assert accept_num.tolist() == [1]
    assert predicts.tolist() == [1, 2, -5, -5]


# --- sampling -------------------------------------------------------------------------------------
#
# Probabilities are multiples of one sixth, so acceptance only depends on which of six equal cells a
# coin falls into. What is left for the final draw sums to r sixths with r in 1..6, so the draw only
# depends on which of lcm(1..6) = 60 cells its coin falls into. Running every combination of cells
# gives exact probabilities.

SIXTHS = 6
FINAL_CELLS = 60
VOCABULARY = 6

TREES = {
    "root only": ([-1], [0]),
    "one draft": ([-1, 0], [0, 3]),
    "chain of two": ([-1, 0, 1], [0, 2, 5]),
    "two siblings": ([-1, 0, 0], [0, 4, 1]),
    "siblings with children": ([-1, 0, 0, 1, 1, 2], [0, 4, 1, 2, 3, 5]),
    "three levels": ([-1, 0, 0, 1, 3, 3], [0, 1, 2, 0, 3, 4]),
}


def sixths(generator, nodes):
    """[nodes][VOCABULARY] counts that sum to SIXTHS, zeros included."""
    counts = torch.zeros(nodes, VOCABULARY, dtype=torch.int64)
    for node in range(nodes):
        for token in torch.randint(VOCABULARY, (SIXTHS,), generator=generator).tolist():
            counts[node, token] += 1
    return counts


def outcomes(parents, tokens, counts):
    """Emitted token sequence -> exact probability, by running the kernel on every coin."""
    n = len(parents)
    depth = max(len(root_to_node(parents, node)) for node in range(n)) - 1
    cells = list(product(*([range(SIXTHS)] * depth), range(FINAL_CELLS)))
    bs = len(cells)
    # The coin of a node depends on its level only: a walk meets one node of each level.
    level = [len(root_to_node(parents, node)) - 1 for node in range(n)]
    middle = [(cell + 0.5) / SIXTHS for cell in range(SIXTHS)]
    coins = torch.tensor(
        [[middle[c[level[v]]] if level[v] < depth else 0.0 for v in range(n)] for c in cells]
    )
    final = torch.tensor([(c[-1] + 0.5) / FINAL_CELLS for c in cells])
    target = (counts / SIXTHS).float().expand(bs, n, VOCABULARY)
    rejected = torch.zeros(bs, n, VOCABULARY)
    predicts, accept_index, accept_num = outputs(bs, n, depth + 1)
    tree_speculative_sampling_target_only(
        predicts,
        accept_index,
        accept_num,
        torch.tensor(tokens).expand(bs, n),
        *links([parents] * bs),
        coins,
        final,
        target,
        rejected,
    )
    found = defaultdict(Fraction)
    for b in range(bs):
        rows = accept_index[b][: int(accept_num[b]) + 1]
        found[tuple(predicts[rows].tolist())] += Fraction(1, bs)
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", TREES)
def test_sampling_follows_the_target_s_distribution_exactly(name, seed):
    parents, tokens = TREES[name]
    counts = sixths(torch.Generator().manual_seed(seed), len(parents))
    found = outcomes(parents, tokens, counts)
    assert sum(found.values()) == 1
    # Whatever the draft proposed: after the text of any node, the next token has the probability
    # that the target gives it. The chance of getting to a node is the product along its path.
    for node in range(len(parents)):
        path = root_to_node(parents, node)
        text = tuple(tokens[v] for v in path[1:])
        arrival = Fraction(1)
        for before, after in pairwise(path):
            arrival *= Fraction(int(counts[before, tokens[after]]), SIXTHS)
        for token in range(VOCABULARY):
            begins = (*text, token)
            chance = sum(p for said, p in found.items() if said[: len(begins)] == begins)
            assert chance == arrival * Fraction(int(counts[node, token]), SIXTHS)


def test_sampling_emits_accepted_tokens_and_one_more():
    parents, tokens = TREES["siblings with children"]
    counts = sixths(torch.Generator().manual_seed(1), len(parents))
    paths = {tuple(tokens[v] for v in root_to_node(parents, node)[1:]) for node in range(6)}
    for said in outcomes(parents, tokens, counts):
        assert said[:-1] in paths


def sample(target, coins, final, **thresholds):
    """One request, a root with children that say tokens 0 and 1."""
    parents, n = [-1, 0, 0], 3
    rejected = torch.zeros(1, n, len(target))
    predicts, accept_index, accept_num = outputs(1, n, 2)
    tree_speculative_sampling_target_only(
        predicts,
        accept_index,
        accept_num,
        torch.tensor([[9, 0, 1]]),
        *links([parents]),
        torch.tensor([[coins, 0.0, 0.0]]),
        torch.tensor([final]),
        torch.tensor(target).expand(1, n, len(target)).contiguous(),
        rejected,
        **thresholds,
    )
    return predicts.tolist(), int(accept_num), rejected[0, 0].tolist()


def test_a_rejected_child_leaves_its_probability_in_draft_probs():
    predicts, accepted, rejected = sample([0.25, 0.25, 0.5], coins=0.9, final=0.0)
    assert (accepted, rejected) == (0, [0.25, 0.25, 0.0])
    assert predicts[0] == 2


def test_a_child_above_the_single_threshold_is_accepted_whatever_the_coin():
    _, accepted, _ = sample([0.25, 0.25, 0.5], coins=0.9, final=0.0, threshold_single=0.2)
    assert accepted == 1


def test_a_low_accumulated_threshold_accepts_more_and_zero_accepts_all():
    assert sample([0.25, 0.25, 0.5], coins=0.9, final=0.0, threshold_acc=0.5)[1] == 1
    assert sample([0.25, 0.25, 0.5], coins=0.9, final=0.0, threshold_acc=0.0)[1] == 1


def test_the_final_draw_never_takes_a_token_without_probability():
    # A coin just below 1 rounds up to the whole sum; the last token has no probability.
    predicts, _, _ = sample([0.0, 0.0, 1.0, 0.0], coins=0.9, final=1.0)
    assert predicts[0] == 2


def test_sampling_with_certain_targets_equals_greedy():
    case = random_tree_case(3, 6, 4, 5, 8)
    trees = [parents_of(case, b, 4) for b in range(6)]
    certain = torch.nn.functional.one_hot(case["target_predict"], 40).float()
    greedy, sampled = outputs(6, 8, 6), outputs(6, 8, 6)
    verify_tree_greedy(*greedy, case["candidates"], *links(trees), case["target_predict"])
    tree_speculative_sampling_target_only(
        *sampled,
        case["candidates"],
        *links(trees),
        case["uniform_samples"],
        case["uniform_samples_for_final_sampling"],
        certain,
        torch.zeros_like(certain),
    )
    for expected, actual in zip(greedy, sampled, strict=True):
        assert torch.equal(expected, actual)
