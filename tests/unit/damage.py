"""Strategies that damage something valid in one place, to get past the first check that fails."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(),
    st.sampled_from([10**30, 10**400, -1, 2**63, 1e308, 1e-320, float("nan"), float("inf")]),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["", "[/x]", "$^{$", "speculate", "2026-01-01", "\x1b[31m", "a\nb"]),
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, whole: Any) -> Any:
    """`whole`, plain values, with something in it replaced, left out or put beside it."""
    result = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(result))
        if not places:
            return draw(PLAIN)
        holder, key = draw(st.sampled_from(places))
        change = draw(st.sampled_from(["replace", "replace", "leave out", "add"]))
        if change == "leave out":
            del holder[key]
        elif change == "replace":
            holder[key] = draw(PLAIN)
        elif isinstance(holder, dict):
            holder[draw(st.text(max_size=4))] = draw(PLAIN)
        else:
            holder.insert(key, draw(PLAIN))
    return result


def _places(tree: Any) -> Any:
    """(container, key) of everything within."""
    if isinstance(tree, dict | list):
        for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
            yield tree, key
            yield from _places(value)
