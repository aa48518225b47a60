"""Decides which draft tokens stand, greedily or by sampling.

Takes the place of ``sgl_kernel.verify_tree_greedy`` and
``sgl_kernel.tree_speculative_sampling_target_only`` (called from speculative/eagle_utils.py:176 and
speculative/eagle_info_v2.py:441 in SGLang 0.5.12.post1) with the same arguments and in-place
outputs. Both walk the tree from its root: at each node the children are tried in sibling order, the
first that is accepted becomes the next node, and the walk ends when none is or when the path is
full.

Trees are small and the walk branches on every comparison, so it runs on Python lists; tensors are
read once and written once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

_NONE = -1


class _Links:
    """First child and next sibling of every node of one request."""

    def __init__(self, first_child: list[int], next_sibling: list[int]) -> None:
        self._first_child = first_child
        self._next_sibling = next_sibling

    def children(self, node: int) -> Iterator[int]:
        child = self._first_child[node]
        while child != _NONE:
            yield child
            child = self._next_sibling[child]


def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Accepts the path on which every draft token is what the target model would have said.

    Args:
        predicts: [bs * n] int32, written at the rows of accepted nodes: the target's token after
            each.
        accept_index: [bs, s] int32, written from the left: flat rows of accepted nodes, root first;
            s is the longest path in nodes (draft steps + 1).
        accept_token_num: [bs] int32, written: accepted draft tokens, the root not counted.
        candidates: [bs, n] int64, token of each node.
        retrive_index: [bs, n] int64, flat row of each node.
        retrive_next_token: [bs, n] int64, first child or -1.
        retrive_next_sibling: [bs, n] int64, next sibling or -1.
        target_predict: bs * n int64 in any shape, the target's token after each node.
    """
    targets = target_predict.reshape(candidates.shape).tolist()
    rows, tokens = retrive_index.tolist(), candidates.tolist()
    accepted, counts, said_at, said = [], [], [], []
    longest = accept_index.shape[1]
    for b, links in enumerate(_links_of_each(retrive_next_token, retrive_next_sibling)):
        path = [0]
        while len(path) < longest:
            wanted = targets[b][path[-1]]
            child = next((c for c in links.children(path[-1]) if tokens[b][c] == wanted), None)
            if child is None:
                break
            path.append(child)
        accepted.append([rows[b][node] for node in path])
        counts.append(len(path) - 1)
        said_at += accepted[-1]
        said += [targets[b][node] for node in path]
    _write(predicts, accept_index, accept_token_num, accepted, counts, said_at, said)


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accepts draft tokens so that, with both thresholds at 1, output follows the target's
    distribution exactly.

    At a node one uniform number is compared with the running sum of the children's target
    probabilities; the token after the last accepted node is drawn from what the rejected children
    left of the distribution there.

    Args:
        predicts: [bs * n] int32, written at the rows of accepted nodes: the token that follows
            each.
        accept_index: [bs, s] int32, written as in `verify_tree_greedy`.
        accept_token_num: [bs] int32, written: accepted draft tokens, the root not counted.
        candidates: [bs, n] int64, token of each node.
        retrive_index: [bs, n] int64, flat row of each node.
        retrive_next_token: [bs, n] int64, first child or -1.
        retrive_next_sibling: [bs, n] int64, next sibling or -1.
        uniform_samples: [bs, n] float32 in [0, 1), one per node.
        uniform_samples_for_final_sampling: [bs] float32 in [0, 1).
        target_probs: [bs, n, vocabulary] float32, the target's distribution after each node.
        draft_probs: [bs, n, vocabulary] float32, zeros; written at (node, token) of rejected
            children with the target's probability, as the kernel does.
        threshold_single: a child at least this probable is always accepted.
        threshold_acc: divides the running sum; below 1 accepts more than the distribution allows.
        deterministic: accepted for the kernel's signature; this version always is.
    """
    # The kernel's host code caps it too: a threshold of 0 must accept, not divide by zero.
    threshold_acc = max(threshold_acc, 1e-9)
    rows, tokens, coins = retrive_index.tolist(), candidates.tolist(), uniform_samples.tolist()
    accepted, counts, said_at, said = [], [], [], []
    longest = accept_index.shape[1]
    for b, links in enumerate(_links_of_each(retrive_next_token, retrive_next_sibling)):
        path = [0]
        while len(path) < longest:
            node, accumulated = path[-1], 0.0
            for child in links.children(node):
                token = tokens[b][child]
                probability = float(target_probs[b, node, token])
                accumulated += probability
                if coins[b][node] <= accumulated / threshold_acc or probability >= threshold_single:
                    path.append(child)
                    break
                draft_probs[b, node, token] = probability
            else:
                break
        last = path[-1]
        left = target_probs[b, last]
        if len(path) < longest:
            left = (left - draft_probs[b, last]).clamp_(min=0)
        accepted.append([rows[b][node] for node in path])
        counts.append(len(path) - 1)
        said_at += accepted[-1]
        said += [tokens[b][node] for node in path[1:]]
        said.append(_draw(left, float(uniform_samples_for_final_sampling[b])))
    _write(predicts, accept_index, accept_token_num, accepted, counts, said_at, said)


def _draw(weights: torch.Tensor, coin: float) -> int:
    """Returns the first index whose cumulative weight is above ``coin * sum(weights)``."""
    cumulative = weights.cumsum(0)
    total = cumulative[-1]
    above = cumulative > coin * total
    if not bool(above.any()):
        # Rounding put the mark on the total itself: the last index that adds anything.
        return int((cumulative == total).int().argmax())
    return int(above.int().argmax())


def _links_of_each(next_token: torch.Tensor, next_sibling: torch.Tensor) -> Iterator[_Links]:
    for first_child, sibling in zip(next_token.tolist(), next_sibling.tolist(), strict=True):
        yield _Links(first_child, sibling)


def _write(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    accepted: list[list[int]],
    counts: list[int],
    said_at: list[int],
    said: list[int],
) -> None:
    for b, rows in enumerate(accepted):
        accept_index[b, : len(rows)] = torch.tensor(rows, dtype=accept_index.dtype)
    accept_token_num.copy_(torch.tensor(counts, dtype=accept_token_num.dtype))
    predicts[torch.tensor(said_at)] = torch.tensor(said, dtype=predicts.dtype)
