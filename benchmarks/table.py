"""Makes the README's tables from result files, so that no number in it is typed by hand.

    python -m benchmarks.table RESULT.json ... [--readme README.md] [--check]

Between `<!-- bench:NAME:begin -->` and `<!-- bench:NAME:end -->`, NAME being the
benchmark (envelope, switch, bursts, resume), the text is replaced. `--check` writes nothing and
fails when the README differs from what the files say.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars
from benchmarks.errors import BenchmarkError, reading
from benchmarks.results import load

_NAMES = {
    "no_spec": "no speculation",
    "static": "static EAGLE3",
    "upstream_adaptive": "`--speculative-adaptive`",
    "specswitch": "**specswitch**",
    "forced_target_only": "specswitch, always target-only",
    "forced_speculate": "specswitch, always speculating",
}
_MISSING = "-"
#: How `_caption` names its file.
_SOURCE = re.compile(r"\(`([^`]+\.json)`\)\.$", re.MULTILINE)


def render(result: Mapping[str, Any], name: str, *, brief: bool = False) -> str:
    """Markdown of one result: what was measured, then its tables.

    `brief`: of an envelope, decode throughput and its ratios alone.
    """
    renderers = {**_RENDERERS, **_BRIEF} if brief else _RENDERERS
    tables = renderers[result["benchmark"]](result)
    return "\n\n".join([_caption(result, name), *tables])


def _caption(result: Mapping[str, Any], name: str) -> str:
    setup = result["setup"]
    if "resume_ratio" in result:
        # Held-out texts of the pair that ships, and as many tokens as the stretches take.
        pair = result["setup"]["acceptance_setup"]
        return (
            f"{result['gpu']}, {result['engine']}, the trained tiny pair, EAGLE3 with "
            f"{pair['steps']} steps, {result['setup']['requests']} requests at a time, first 16 "
            f"speculative steps, {result['date'][:10]} (`{name}`)."
        )
    model = f"{setup['model']} with {setup['weights']} weights"
    if setup["simulated"]:
        acceptance = f"**simulated** acceptance length {setup['acceptance']:g}"
    elif setup["acceptance"] is None:
        acceptance = "acceptance as the models give it"
    else:
        acceptance = f"thresholds for an acceptance length of {setup['acceptance']:g}"
    lengths = f"{setup['input_len']} tokens in, {setup['output_len']} out"
    return (
        f"{result['gpu']}, {result['engine']}, {model}, EAGLE3 with {setup['steps']} steps, "
        f"{acceptance}, {lengths}, {result['date'][:10]} (`{name}`)."
    )


def _envelope(result: Mapping[str, Any]) -> list[str]:
    return [
        *_decode_speed(result),
        *_by_arm(
            result,
            "end-to-end tok/s (spread) at concurrency",
            lambda cell: _with_spread(cell, "e2e_tok_s", "e2e_spread"),
        ),
        *_by_arm(
            result,
            "inter-token latency p50 / p99, ms",
            lambda cell: _quantiles(cell, "itl_ms"),
        ),
        *_by_arm(
            result,
            "time to first token p50 / p99, ms",
            lambda cell: _quantiles(cell, "ttft_ms"),
        ),
    ]


def _decode_speed(result: Mapping[str, Any]) -> list[str]:
    throughput = _by_arm(
        result,
        "decode tok/s (spread) at concurrency",
        lambda cell: _with_spread(cell, "decode_tok_s", "spread"),
    )
    return [*throughput, *_ratios(result)]


def _by_arm(
    result: Mapping[str, Any], title: str, cell_text: Callable[[Mapping[str, Any]], str]
) -> list[str]:
    """A table of arms that have something to show; none where no arm has, as a run can go without
    the latency pass."""
    points = _points(result)
    rows = [
        [_NAMES.get(arm, arm), *(cell_text(cells.get(point, {})) for point in points)]
        for arm, cells in result["arms"].items()
    ]
    held = [row for row in rows if set(row[1:]) != {_MISSING}]
    return [markdown([title, *points], held)] if held else []


def _points(result: Mapping[str, Any]) -> list[str]:
    """Concurrencies, ascending."""
    return sorted({point for cells in result["arms"].values() for point in cells}, key=int)


def _ratios(result: Mapping[str, Any]) -> list[str]:
    """Of step times, from arms that were measured in turns; see `bars`."""
    points = _points(result)
    kinds: dict[str, dict[str, str]] = {}
    for verdict in bars.judge(result):
        kind = verdict.bar.partition(" (")[0]
        kinds.setdefault(kind, {})[verdict.point] = _number(verdict.value, 3)
    rows = [
        [kind, *(values.get(point, _MISSING) for point in points)]
        for kind, values in kinds.items()
        if set(values.values()) != {_MISSING}
    ]
    return [markdown(["ratio of decode speed", *points], rows)] if rows else []


def _resume(result: Mapping[str, Any]) -> list[str]:
    tables = []
    if "resume_ratio" in result:
        stretches = sorted(
            {s for ratios in result["resume_ratio"].values() for s in ratios}, key=int
        )
        rows = [
            [mode, *(_number(ratios.get(stretch), 3) for stretch in stretches)]
            for mode, ratios in result["resume_ratio"].items()
        ]
        header = ["acceptance after steps off / never off", *stretches]
        tables.append(markdown(header, rows))
    if "off_cost" in result:
        points = sorted({p for ratios in result["off_cost"].values() for p in ratios}, key=int)
        rows = [
            [mode, *(_number(ratios.get(point), 3) for point in points)]
            for mode, ratios in result["off_cost"].items()
        ]
        header = ["target-only decode tok/s / mode `off`, at concurrency", *points]
        tables.append(markdown(header, rows))
    if found := result.get("catch_up"):
        rows = [
            [
                f"{point} x {cell['positions'] // int(point)}",
                # A flush of as many positions at once is this same forward.
                *(_number(cell[key], 2) for key in ("fill_ms", "propose_ms")),
                *(_number(cell[key], 2) for key in ("step_ms", "median_step_ms")),
                _number(cell["ratio"], 3),
            ]
            for point, cell in found.items()
        ]
        header = ["catch-up, requests x positions", "filling KV (flush of as many), ms"]
        header += ["proposing, ms", "step with it, ms", "median speculative step, ms", "ratio"]
        tables.append(markdown(header, rows))
    if found := result.get("flush"):
        rows = [
            [
                point,
                *(_number(cell[key], 0) for key in ("flushes", "positions", "largest")),
                *(_number(cell[key], 2) for key in ("flush_ms", "step_ms", "median_step_ms")),
                f"{100 * cell['share']:.2f}%",
            ]
            for point, cell in found.items()
        ]
        header = ["flush, at concurrency", "flushes", "positions, median", "largest", "flush, ms"]
        header += ["step with it, ms", "step without, ms", "share of decode time"]
        tables.append(markdown(header, rows))
    return tables


def _switch(result: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            point,
            mode,
            _number(cell[mode]["switches"], 0),
            _number(cell[mode]["step_ms"], 3),
            _number(cell[mode]["first_ms"], 3),
            _number(cell[mode]["ratio"], 3),
            _number(cell[mode]["worst"], 3),
        ]
        for cells in result["arms"].values()
        for point, cell in cells.items()
        for mode in ("speculate", "target_only")
        if mode in cell
    ]
    header = ["concurrency", "mode", "switches", "median step, ms", "first step, ms", "ratio"]
    return [markdown([*header, "worst first step / its stretch"], rows)]


def _bursts(result: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            phase,
            _NAMES.get(arm, arm),
            _with_spread(cell, "e2e_tok_s", "spread"),
            _quantiles(cell, "ttft_ms"),
            _quantiles(cell, "itl_ms"),
            _quantiles(cell, "e2e_ms"),
        ]
        for phase in dict.fromkeys(p for cells in result["arms"].values() for p in cells)
        for arm, cells in result["arms"].items()
        if (cell := cells.get(phase))
    ]
    header = ["requests of phase", "arm", "tok/s", "TTFT p50 / p99, ms"]
    return [markdown([*header, "inter-token p50 / p99, ms", "request p50 / p99, ms"], rows)]


_RENDERERS: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "envelope": _envelope,
    "switch": _switch,
    "bursts": _bursts,
    "resume": _resume,
}
_BRIEF: dict[str, Callable[[Mapping[str, Any]], list[str]]] = {"envelope": _decode_speed}


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; every column but the first is set right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _number(value: float | None, digits: int) -> str:
    return _MISSING if value is None else f"{value:,.{digits}f}"


def _with_spread(cell: Mapping[str, Any], key: str, spread: str) -> str:
    value = cell.get(key)
    if value is None:
        return _MISSING
    text = _number(value, 0 if value >= 100 else 1)
    return text if cell.get(spread) is None else f"{text} ({100 * cell[spread]:.1f}%)"


def _quantiles(cell: Mapping[str, Any], key: str) -> str:
    values = cell.get(key)
    if not values:
        return _MISSING
    return " / ".join(_number(values[name], 1) for name in ("p50", "p99"))


def replaced(readme: str, benchmark: str, text: str, name: str = "the README") -> str:
    """`readme` with `text` between the markers of `benchmark`.

    Raises BenchmarkError when a marker is missing, comes twice or they are in the wrong order.
    """
    begin, end = (f"<!-- bench:{benchmark}:{side} -->" for side in ("begin", "end"))
    for marker in (begin, end):
        if readme.count(marker) != 1:
            raise BenchmarkError(f"{name} must hold {marker} once, it does {readme.count(marker)}x")
    head, rest = readme.split(begin)
    if end not in rest:
        raise BenchmarkError(f"{name}: {end} comes before {begin}")
    tail = rest.split(end)[1]
    return f"{head}{begin}\n{text}\n{end}{tail}"


def _shown(readme: str, benchmark: str) -> set[str]:
    """Names of the files whose tables stand between the markers of `benchmark`."""
    _, _, rest = readme.partition(f"<!-- bench:{benchmark}:begin -->")
    section, _, _ = rest.partition(f"<!-- bench:{benchmark}:end -->")
    return set(_SOURCE.findall(section))


def update(files: Sequence[Path], readme: Path, check: bool) -> bool:
    """Put the tables of `files` into `readme`; files of one benchmark stand one below the other,
    of several envelopes the first in full.

    Returns whether the README already said so. With `check` it is not written.
    """
    groups: dict[str, list[str]] = {}
    given = {path.name for path in files}
    for path in files:
        result = load(path)
        if result["benchmark"] not in _RENDERERS:
            raise BenchmarkError(f"{path}: no table for benchmark {result['benchmark']!r}")
        with reading(path):
            texts = groups.setdefault(result["benchmark"], [])
            texts.append(render(result, path.name, brief=bool(texts)))
    try:
        before = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"cannot read {readme}: {error}") from error
    after = before
    for benchmark, texts in groups.items():
        if left := _shown(before, benchmark) - given:
            raise BenchmarkError(
                f"{readme} shows {', '.join(sorted(left))} too: give all files of {benchmark}, or "
                "take that part out of it by hand"
            )
        after = replaced(after, benchmark, "\n\n".join(texts), str(readme))
    if not check and after != before:
        readme.write_text(after, encoding="utf-8")
    return after == before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--readme", type=Path, default=Path("README.md"))
    parser.add_argument("--check", action="store_true", help="fail when the README differs")


def run(options: argparse.Namespace) -> int:
    current = update(options.files, options.readme, options.check)
    if options.check and not current:
        print(f"{options.readme} differs from the result files: run without --check")
        return 1
    print(f"{options.readme} is {'up to date' if current else 'written'}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except BenchmarkError as error:
        print(f"table: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
