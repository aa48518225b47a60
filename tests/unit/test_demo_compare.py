"""The demo's comparison of two servers' answers."""

from __future__ import annotations

import pytest

from specswitch.demo.compare import Difference, differences


def test_equal_answers_have_no_differences() -> None:
    assert differences({0: (1, 2), 1: (3,)}, {1: (3,), 0: (1, 2)}) == []


def test_difference_names_request_position_and_tokens() -> None:
    found = differences({4: (1, 2, 3), 5: (9,)}, {4: (1, 7, 3), 5: (9,)})
    assert found == [Difference(4, 1, 2, 7)]
    assert str(found[0]) == "request 4: token 1 is 2, without speculation it is 7"


def test_answer_that_ended_early_is_a_difference() -> None:
    assert differences({0: (1,)}, {0: (1, 2)}) == [Difference(0, 1, None, 2)]
    assert differences({0: (1, 2)}, {0: (1,)}) == [Difference(0, 1, 2, None)]


def test_servers_that_were_asked_different_requests_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="different requests"):
        differences({0: (1,)}, {0: (1,), 1: (1,)})
