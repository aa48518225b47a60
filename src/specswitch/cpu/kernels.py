"""The kernels of speculation under the names that ``sgl_kernel`` gives them."""

from __future__ import annotations

from specswitch.cpu.renorm import top_k_renorm_prob, top_p_renorm_prob
from specswitch.cpu.tree import build_tree_kernel_efficient
from specswitch.cpu.verify import tree_speculative_sampling_target_only, verify_tree_greedy

__all__ = [
    "build_tree_kernel_efficient",
    "top_k_renorm_prob",
    "top_p_renorm_prob",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
]
