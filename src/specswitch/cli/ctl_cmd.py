"""`specswitch ctl`: see and steer a running server.

A command holds from the next decode step on, on all ranks alike, until the server ends or another
command; nothing is written to the configuration file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from specswitch.cli.assignments import parse_assignments
from specswitch.cli.server_client import (
    DEFAULT_URL,
    AdminKeyOption,
    ApiKeyOption,
    ServerClient,
    ServerError,
    UrlOption,
)
from specswitch.cli.state_view import state_table
from specswitch.config import ConfigError
from specswitch.steering import Command

app = typer.Typer(help="See and steer a running server.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def status(
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show mode, load, counters, and what differs from the start-up configuration."""
    with _errors(), ServerClient(url, api_key) as client:
        _print_states(client.states(), as_json)


@app.command()
def auto(
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let the policy choose the mode again."""
    _send(Command(mode="auto"), url, api_key, admin_key, as_json)


@app.command()
def speculate(
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Speculate whatever the load, as far as max_speculative_batch, exactness, requests that opted
    out and the switch cap allow."""
    _send(Command(mode="speculate"), url, api_key, admin_key, as_json)


@app.command(name="target-only")
def target_only(
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Decode without speculation whatever the load."""
    _send(Command(mode="target_only"), url, api_key, admin_key, as_json)


@app.command(name="set")
def set_values(
    assignments: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...", help="Keys as in the YAML file, e.g. policy.waiting.enter=8."
        ),
    ],
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change thresholds of the policy and the guard. All of them, or with one bad value none."""
    with _errors():
        values = parse_assignments(assignments, "KEY=VALUE")
    _send(Command(values=values), url, api_key, admin_key, as_json)


@app.command()
def reset(
    url: UrlOption = DEFAULT_URL,
    api_key: ApiKeyOption = None,
    admin_key: AdminKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go back to the values of the start-up and to auto; also the way out of the safe mode."""
    _send(Command(reset=True), url, api_key, admin_key, as_json)


def _send(
    command: Command, url: str, api_key: str | None, admin_key: str | None, as_json: bool
) -> None:
    with _errors(), ServerClient(url, api_key, admin_key) as client:
        answers = client.command(command.plain())
    if as_json:
        _print_json(answers)
        return
    console = Console(highlight=False)
    for index, answer in enumerate(answers):
        label = _label(index, answers)
        for line in answer["changed"] or ["nothing to change: it was so already"]:
            console.print(f"{label}{line}", markup=False, soft_wrap=True)


def _print_states(states: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _print_json(states)
        return
    console = Console(highlight=False)
    for index, state in enumerate(states):
        if label := _label(index, states):
            console.print(label.strip(), style="bold")
        console.print(state_table(state))


def _label(index: int, schedulers: list[Any]) -> str:
    """Which data-parallel replica a line is about, where there are several."""
    return f"scheduler {index}: " if len(schedulers) > 1 else ""


def _print_json(found: list[dict[str, Any]]) -> None:
    typer.echo(json.dumps(found, indent=2))


@contextmanager
def _errors() -> Iterator[None]:
    """Exit with code 1 and the message alone when the server or a value says no."""
    try:
        yield
    except (ServerError, ConfigError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
