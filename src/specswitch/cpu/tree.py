"""Builds the verification tree: who follows whom, how deep, and who may attend to whom.

Takes the place of ``sgl_kernel.build_tree_kernel_efficient`` (called by
speculative/eagle_utils.py:138 in SGLang 0.5.12.post1) with the same arguments, outputs and order of
siblings.

Words used here: a *node* is a position 0..n-1 among a request's verified tokens. Node 0 is the
bonus token, the root; node i > 0 is the i-th selected draft token. Draft tokens are numbered over
the whole beam search: step 0 proposes ``topk`` tokens, each later step ``topk * topk``, in groups
of ``topk`` that share a parent. Hence ``token // topk`` is the number of the group, group 0 hangs
from the root, and ``parent_list[group]`` is the token that group g hangs from (entry 0 is a
placeholder).
"""

from __future__ import annotations

import torch

FULL_MASK = 0
QLEN_ONLY = 1

_NONE = -1


def parent_nodes(parent_list: list[int], selected: list[int], topk: int) -> list[int]:
    """Returns each node's parent node for one request; the root's parent is -1.

    Args:
        parent_list: token that each group hangs from, ``topk * (depth - 1) + 1`` entries.
        selected: token number of nodes 1..n-1.
        topk: beam width.

    Raises:
        ValueError: a selected token's parent was not selected, so it hangs from nothing.
    """
    node_of = {token: node for node, token in reversed(list(enumerate(selected, start=1)))}
    parents = [_NONE]
    for token in selected:
        group = token // topk
        if group == 0:
            parents.append(0)
            continue
        parent = node_of.get(int(parent_list[group]))
        if parent is None:
            raise ValueError(
                f"draft token {token} hangs from {parent_list[group]}, which is not in the tree"
            )
        parents.append(parent)
    return parents


def children_links(parents: list[int]) -> tuple[list[int], list[int]]:
    """Returns (first child, next sibling) per node, -1 where there is none.

    Siblings are in ascending order of node, which is the order in which the kernels try them.
    """
    first_child = [_NONE] * len(parents)
    next_sibling = [_NONE] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        next_sibling[node] = first_child[parents[node]]
        first_child[parents[node]] = node
    return first_child, next_sibling


def ancestors(parents: list[int]) -> list[list[int]]:
    """Returns for each node the nodes on its path to the root: itself first, the root last."""
    paths = []
    for node in range(len(parents)):
        path = [node]
        while path[-1] != 0:
            path.append(parents[path[-1]])
        paths.append(path)
    return paths


def build_tree_kernel_efficient(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fills the mask, positions and links of every request's tree in place.

    Args:
        parent_list: [bs, topk * (depth - 1) + 1] token that each group hangs from; width 0 when
            depth is 1.
        selected_index: [bs, n - 1] int64, token number of nodes 1..n-1, where n is
            `draft_token_num`.
        verified_seq_len: [bs] int, tokens of the request before node 0.
        tree_mask: flat bool, written: request after request, n rows of ``seq_len + n`` columns
            (FULL_MASK) or of n columns (QLEN_ONLY). Columns of earlier tokens are left as they are:
            the caller filled them with True.
        positions: [bs * n] int64, written: position of each node in its sequence.
        retrive_index: [bs, n] int64, written: row of each node in the flattened batch.
        retrive_next_token: [bs, n] int64, written: first child.
        retrive_next_sibling: [bs, n] int64, written: next sibling.
        topk: beam width.
        depth: number of draft steps.
        draft_token_num: nodes per request, root included.
        tree_mask_mode: FULL_MASK or QLEN_ONLY.

    Raises:
        NotImplementedError: another mask mode.
        ValueError: see `parent_nodes`.
    """
    if int(tree_mask_mode) not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {tree_mask_mode} is not supported on a CPU")
    n, bs = draft_token_num, verified_seq_len.numel()
    first_children, next_siblings, node_positions = [], [], []
    offset = 0
    for seq_len, parent_row, selected in zip(
        verified_seq_len.tolist(), parent_list.tolist(), selected_index.tolist(), strict=True
    ):
        parents = parent_nodes(parent_row, selected, topk)
        first_child, next_sibling = children_links(parents)
        first_children.append(first_child)
        next_siblings.append(next_sibling)
        visible = [[False] * n for _ in range(n)]
        for node, path in enumerate(ancestors(parents)):
            node_positions.append(seq_len + len(path) - 1)
            for ancestor in path:
                visible[node][ancestor] = True
        width = n + (seq_len if int(tree_mask_mode) == FULL_MASK else 0)
        tree_mask[offset : offset + n * width].view(n, width)[:, width - n :] = torch.tensor(
            visible
        )
        offset += n * width
    positions.copy_(torch.tensor(node_positions, dtype=positions.dtype))
    retrive_index.copy_(torch.arange(bs * n, dtype=retrive_index.dtype).view(bs, n))
    retrive_next_token.copy_(torch.tensor(first_children, dtype=retrive_next_token.dtype))
    retrive_next_sibling.copy_(torch.tensor(next_siblings, dtype=retrive_next_sibling.dtype))
