"""docs/exactness.md is what the stored results give, and says something of every option."""

from __future__ import annotations

import pytest
from tests.engine.exactness.document import PAGE, render, sections
from tests.engine.exactness.recorder import stored
from tests.engine.exactness.verdicts import Verdict

from specswitch.engine.compat.v0_5_12_post1_exactness import OPTIONS

ROWS = {row.key: row for rows in sections().values() for row in rows}


def test_page_is_made_from_the_stored_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), (
        "run python -m tests.engine.exactness.document"
    )


def test_each_row_has_a_stored_result_and_each_result_a_row() -> None:
    assert set(ROWS) == set(stored())
    assert sum(len(rows) for rows in sections().values()) == len(ROWS), "a key is used twice"


def test_each_stored_verdict_is_a_known_one() -> None:
    assert {result["verdict"] for result in stored().values()} <= {str(each) for each in Verdict}


@pytest.mark.parametrize("verdict", list(Verdict), ids=str)
def test_page_explains_each_verdict(verdict: Verdict) -> None:
    explained = PAGE.read_text(encoding="utf-8").split("## The rule")[0]
    assert str(verdict) in explained


@pytest.mark.parametrize("option", [option.name for option in OPTIONS])
def test_page_says_of_each_option_under_the_rule_what_it_is_for(option: str) -> None:
    ruled = [
        row
        for key, row in ROWS.items()
        if stored()[key]["verdict"] in (Verdict.TARGET_ONLY, Verdict.NOT_TESTED)
    ]
    assert any(f"`{option}`" in row.ask for row in ruled)


@pytest.mark.parametrize("row", list(ROWS.values()), ids=lambda row: row.key)
def test_a_verdict_that_is_no_praise_says_why(row) -> None:
    result = stored()[row.key]
    if result["verdict"] in (Verdict.DIFFERS, Verdict.NOT_TESTED, Verdict.REFUSED):
        assert row.remark or "why" in result
