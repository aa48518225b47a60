"""A server's state as a few readable lines, from what `/server_info` shows."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from specswitch.control import Mode, Reason
from specswitch.steering import AUTO, describe_change

#: What an override to speculate waits for (`Controller`).
_HOLDS = (Reason.BATCH_LIMIT, Reason.EXACTNESS, Reason.REQUEST_OPT_OUT, Reason.SWITCH_CAP)


def state_table(state: dict[str, Any]) -> Table:
    """Two columns: what, and how it stands.

    Args:
        state: specswitch's state of one scheduler.
    """
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text, style in _lines(state):
        # As it is: an exception's text or a reason is no markup.
        table.add_row(name, Text(text), style=style)
    return table


def _lines(state: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    lines: list[tuple[str, str, str | None]] = [
        ("mode", f"{state['mode']} ({state['reason']}, step {state['step']})", "bold"),
        ("load", _load(state), None),
        ("acceptance length", _acceptance(state), None),
        ("decode steps", _by_mode(state["steps"]), None),
        ("tokens", _by_mode(state["tokens"]), None),
        ("tokens/s in decode", _rates(state), None),
        ("guard", _guard(state["guard"]), None),
        ("switches", _switches(state["switches"]), None),
        ("draft sync", _draft_sync(state["draft_sync"]), None),
    ]
    if state["override"] != AUTO:
        lines.insert(1, ("override", _override(state), "yellow"))
    lines += [
        ("changed", describe_change(key, before, now), "yellow")
        for key, (before, now) in state["changed"].items()
    ]
    inexact = state["exactness"]["requests"]
    if inexact:
        text = ", ".join(f"{option} {requests}" for option, requests in inexact.items())
        lines.append(("inexact requests", f"{text} ({state['exactness']['setting']})", None))
    if state["failure"] is not None:
        lines.append(("safe mode", f"the policy failed: {state['failure']}", "red"))
    errors = {part: count for part, count in state["errors"].items() if count}
    if errors:
        text = ", ".join(f"{part} {count}" for part, count in errors.items())
        lines.append(("errors", f"{text}; see the server's log", "red"))
    return lines


def _override(state: dict[str, Any]) -> str:
    said = str(state["override"])
    if state["mode"] == said:
        return said
    if said == Mode.SPECULATE and state["reason"] in _HOLDS:
        return f"{said} (waits: {state['reason']})"
    return f"{said} (from the next decode step)"


def _load(state: dict[str, Any]) -> str:
    return (
        f"waiting {state['waiting']}, running {state['running']} of {state['max_running_requests']}"
        f", KV use {state['kv_use']:.0%} (at the last decode step)"
    )


def _acceptance(state: dict[str, Any]) -> str:
    sides = state["acceptance_at_switch"]
    text = _number(state["acceptance_length"])
    if sides["before"] is None and sides["after"] is None:
        return text
    return f"{text}; {_number(sides['before'])} before and {_number(sides['after'])} after a switch"


def _number(value: float | None) -> str:
    return "not known yet" if value is None else f"{value:.2f}"


def _by_mode(counts: dict[str, int]) -> str:
    return ", ".join(f"{mode} {count}" for mode, count in counts.items())


def _rates(state: dict[str, Any]) -> str:
    seconds = state["seconds"]
    return ", ".join(
        f"{mode} {tokens / seconds[mode]:.1f}" if seconds[mode] else f"{mode} -"
        for mode, tokens in state["tokens"].items()
    )


def _guard(guard: dict[str, int]) -> str:
    parts = []
    if guard.keys() >= {"votes", "votes_needed", "dwell_left"}:
        parts.append(f"votes {guard['votes']} of {guard['votes_needed']}")
        parts.append(f"dwell {guard['dwell_left']} steps left")
    cap = f" of {guard['switch_cap']}" if "switch_cap" in guard else ""
    parts.append(f"{guard['switches_in_window']}{cap} switches in 1000 steps")
    return ", ".join(parts)


def _switches(switches: dict[str, Any]) -> str:
    text = str(switches["total"])
    if not switches["recent"]:
        return text
    last = switches["recent"][-1]
    return (
        f"{text}; last at step {last['step']}: {last['from']} -> {last['to']} ({last['reason']}: "
        f"waiting {last['waiting']}, running {last['running']}, KV use {last['kv_use']:.0%})"
    )


def _draft_sync(counts: dict[str, Any]) -> str:
    return (
        f"{counts['pending']} positions pending; {counts['missed']} missed: {counts['flushed']} "
        f"flushed, {counts['caught_up']} caught up, {counts['discarded']} discarded"
    )
