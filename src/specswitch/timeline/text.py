"""A switch and a stretch of the waiting queue in text, for terminals."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text

from specswitch.control import Mode
from specswitch.timeline.model import Moment, SwitchAt

COLOURS = {Mode.SPECULATE.value: "cyan", Mode.TARGET_ONLY.value: "yellow"}
_BARS = " ▁▂▃▄▅▆▇█"


def describe(switch: SwitchAt) -> str:
    """A switch in one line."""
    return (
        f"step {switch.step}: {switch.source} -> {switch.target} ({switch.reason}; "
        f"waiting {switch.waiting}, running {switch.running}, KV use {switch.kv_use:.0%})"
    )


def queue_strip(moments: Iterable[Moment]) -> Text:
    """The queue depth of some moments as bars, coloured by mode."""
    shown = list(moments)
    top = max((moment.waiting for moment in shown), default=0) or 1
    strip = Text()
    for moment in shown:
        level = -(-moment.waiting * (len(_BARS) - 1) // top)
        strip.append(_BARS[level] if level else "_", style=COLOURS.get(moment.mode, "white"))
    return strip
