"""Writes docs/exactness.md from the stored results: ``python -m tests.engine.exactness.document``.

With ``--check`` it writes nothing and ends with 1 when the page is not what the results give.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import rows_requests, rows_serving
from .recorder import stored
from .verdicts import Row

PAGE = Path(__file__).parents[3] / "docs" / "exactness.md"
TEMPLATE = Path(__file__).with_name("page.md")


def sections() -> dict[str, tuple[Row, ...]]:
    """All rows, by the heading of their section."""
    return {**rows_requests.SECTIONS, **rows_serving.SECTIONS}


def render() -> str:
    """The page.

    Raises:
        KeyError: a row without a stored result, or a result without a row.
    """
    results = stored()
    rows = {row.key for each in sections().values() for row in each}
    if rows != set(results):
        raise KeyError(f"rows and stored results differ: {sorted(rows ^ set(results))}")
    tables = "\n".join(
        f"### {heading}\n\n{_table(each, results)}" for heading, each in sections().items()
    )
    return TEMPLATE.read_text(encoding="utf-8").replace("<!-- tables -->\n", tables)


def _table(rows: tuple[Row, ...], results: dict[str, dict[str, Any]]) -> str:
    lines = ["| Option | Asked for with | Verdict | Remarks |", "|---|---|---|---|"]
    for row in rows:
        result = results[row.key]
        said = [row.remark] if row.remark else []
        if "unruled" in result:
            said.append(f"Speculated for all the same: {result['unruled']}.")
        if "why" in result:
            said.append(result["why"])
        lines.append(f"| {row.title} | {row.ask} | {result['verdict']} | {' '.join(said)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when it is stale")
    page = render()
    if parser.parse_args().check:
        return int(PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
