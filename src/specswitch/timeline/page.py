"""A recording as one HTML file: the picture, the numbers and every switch, without a network."""

from __future__ import annotations

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import timedelta
from html import escape
from string import Template

from specswitch.timeline.figure import draw
from specswitch.timeline.model import SwitchAt, Timeline

#: Rows of the table; a page with every switch of weeks would be slow to open.
_LISTED_SWITCHES = 1000

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px;
       padding: 0 1rem; color: #222; background: #fff; }
img { width: 100%; height: auto; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; }
th, td { padding: 0.25rem 0.9rem 0.25rem 0; text-align: left; border-bottom: 1px solid #ddd; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
</style>
</head>
<body>
<h1>$title</h1>
<p>$span</p>
<img alt="Mode over load, acceptance length and tokens per second" src="data:image/png;base64,$png">
<h2>Work by mode</h2>
$work
<h2>Switches</h2>
<p>$causes</p>
$switches
</body>
</html>
""")


def page(timeline: Timeline) -> str:
    """The HTML, with nothing in it that has to be fetched."""
    picture = io.BytesIO()
    draw(timeline, picture)
    return _PAGE.substitute(
        title=escape(timeline.title),
        span=escape(_span(timeline)),
        png=base64.b64encode(picture.getvalue()).decode("ascii"),
        work=_work(timeline),
        causes=escape(_causes(timeline.switches)),
        switches=_switches(timeline),
    )


def _span(timeline: Timeline) -> str:
    length = timedelta(seconds=round(timeline.seconds))
    if timeline.begun is None:
        return f"{length} h"
    end = timeline.begun + timedelta(seconds=timeline.seconds)
    return f"{timeline.begun:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC ({length} h)"


def _work(timeline: Timeline) -> str:
    share: defaultdict[str, float] = defaultdict(float)
    for start, end, mode in timeline.stretches():
        share[mode] += end - start
    whole = timeline.seconds or 1.0
    rows = (
        (mode, steps, timeline.tokens.get(mode, 0), f"{share[mode] / whole:.0%}")
        for mode, steps in timeline.steps.items()
    )
    return _table(("mode", "decode steps", "tokens", "share of the time"), rows)


def _causes(switches: Iterable[SwitchAt]) -> str:
    causes = Counter((switch.target, switch.reason) for switch in switches)
    if not causes:
        return "None."
    return "; ".join(
        f"{count} to {target} ({reason})" for (target, reason), count in causes.most_common()
    )


def _switches(timeline: Timeline) -> str:
    if not timeline.switches:
        return ""
    shown = timeline.switches[-_LISTED_SWITCHES:]
    rows = (
        (
            _when(timeline, switch),
            switch.step,
            f"{switch.source} → {switch.target}",
            switch.reason,
            switch.waiting,
            switch.running,
            f"{switch.kv_use:.0%}",
        )
        for switch in shown
    )
    head = ("time", "step", "switch", "reason", "waiting", "running", "KV use")
    left_out = len(timeline.switches) - len(shown)
    note = f"<p>The last {len(shown)}; {left_out} earlier ones are left out.</p>\n"
    return (note if left_out else "") + _table(head, rows)


def _when(timeline: Timeline, switch: SwitchAt) -> str:
    if timeline.begun is None:
        return f"{switch.seconds:.2f} s"
    return f"{timeline.begun + timedelta(seconds=switch.seconds):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = ["<table>", "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>"]
    lines += ["<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def _cell(value: object) -> str:
    number = ' class="n"' if isinstance(value, int) else ""
    return f"<td{number}>{escape(str(value))}</td>"
