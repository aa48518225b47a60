"""Tree building against a reference that follows every token's path from the root by itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from specswitch.cpu.random_tree import random_tree_case  # noqa: E402
from specswitch.cpu.tree import (  # noqa: E402
    FULL_MASK,
    QLEN_ONLY,
    build_tree_kernel_efficient,
    parent_nodes,
)

SHAPES = [
    pytest.param(3, 1, 1, 2, id="one-step chain"),
    pytest.param(5, 1, 3, 4, id="chain"),
    pytest.param(4, 1, 7, 8, id="long chain"),
    pytest.param(4, 3, 1, 4, id="one-step fan"),
    pytest.param(4, 2, 3, 6, id="narrow tree"),
    pytest.param(4, 4, 5, 8, id="engine's default tree"),
    pytest.param(2, 8, 4, 32, id="wide tree"),
    pytest.param(2, 3, 4, 31, id="every proposal selected"),
]


def build(case, topk, depth, mode, fill=True):
    """Runs the kernel on a case; returns (mask per request, positions, index, next, sibling)."""
    bs, n = case["candidates"].shape
    lens = case["seq_lens"].tolist()
    before = [length if mode == FULL_MASK else 0 for length in lens]
    mask = torch.full((sum((length + n) * n for length in before),), fill)
    positions = torch.full((bs * n,), -7)
    index, following, sibling = (torch.full((bs, n), -1) for _ in range(3))
    build_tree_kernel_efficient(
        case["parent_list"],
        case["selected_index"],
        case["seq_lens"],
        mask,
        positions,
        index,
        following,
        sibling,
        topk,
        depth,
        n,
        mode,
    )
    masks, at = [], 0
    for length in before:
        masks.append(mask[at : at + n * (length + n)].view(n, length + n))
        at += n * (length + n)
    return masks, positions.view(bs, n), index, following, sibling


def paths(case, b, topk):
    """Path of every node as numbers of draft tokens, found by walking the parent list.

    Written against the numbering alone: tokens of step 0 are 0..topk-1, the g-th group of topk
    after them belongs to the token that the g-th entry (counted from 1) of the parent list names.
    """

    def path(token):
        if token < topk:
            return [token]
        group = (token - topk) // topk + 1
        return [*path(int(case["parent_list"][b, group])), token]

    return [[], *(path(token) for token in case["selected_index"][b].tolist())]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("bs", "topk", "depth", "n"), SHAPES)
def test_a_node_sees_the_text_before_it_and_its_own_path_and_nothing_else(bs, topk, depth, n, seed):
    case = random_tree_case(seed, bs, topk, depth, n)
    for mode in (FULL_MASK, QLEN_ONLY):
        masks, *_ = build(case, topk, depth, mode)
        for b, mask in enumerate(masks):
            of_node = paths(case, b, topk)
            for i in range(n):
                visible = [of_node[j] == of_node[i][: len(of_node[j])] for j in range(n)]
                # The empty path of the root is a prefix of every path, as it should be.
                assert mask[i, mask.shape[1] - n :].tolist() == visible
            assert bool(mask[:, : mask.shape[1] - n].all())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("bs", "topk", "depth", "n"), SHAPES)
def test_positions_count_on_from_the_text_by_depth(bs, topk, depth, n, seed):
    case = random_tree_case(seed, bs, topk, depth, n)
    _, positions, *_ = build(case, topk, depth, FULL_MASK)
    for b in range(bs):
        start = int(case["seq_lens"][b])
        assert positions[b].tolist() == [start + len(p) for p in paths(case, b, topk)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("bs", "topk", "depth", "n"), SHAPES)
def test_links_list_the_children_of_each_node_in_ascending_order(bs, topk, depth, n, seed):
    case = random_tree_case(seed, bs, topk, depth, n)
    _, _, index, following, sibling = build(case, topk, depth, FULL_MASK)
    assert index.flatten().tolist() == list(range(bs * n))
    for b in range(bs):
        of_node = paths(case, b, topk)
        for i in range(n):
            listed, child = [], int(following[b, i])
            while child != -1:
                listed.append(child)
                child = int(sibling[b, child])
            assert listed == [j for j in range(1, n) if of_node[j][:-1] == of_node[i]]


def test_the_caller_s_columns_before_the_tree_are_not_touched():
    case = random_tree_case(0, 3, 2, 3, 6)
    masks, *_ = build(case, 2, 3, FULL_MASK, fill=False)
    for mask in masks:
        assert not bool(mask[:, :-6].any())


def test_a_single_step_needs_no_parent_list():
    case = random_tree_case(0, 3, 1, 1, 2)
    # What the engine passes for one step (eagle_worker_v2.py:507): no columns, and not integers.
    case["parent_list"] = torch.empty(3, 0)
    masks, positions, *_ = build(case, 1, 1, QLEN_ONLY)
    assert [m.tolist() for m in masks] == [[[True, False], [True, True]]] * 3
    assert positions.tolist() == [[length, length + 1] for length in case["seq_lens"].tolist()]


def test_a_token_whose_parent_was_not_selected_is_an_error():
    with pytest.raises(ValueError, match="draft token 4 hangs from 1"):
        parent_nodes([-1, 0, 1], [0, 4], topk=2)


def test_bit_packed_masks_are_refused():
    case = random_tree_case(0, 1, 1, 3, 4)
    with pytest.raises(NotImplementedError, match="mask mode 2"):
        build(case, 1, 3, 2)
