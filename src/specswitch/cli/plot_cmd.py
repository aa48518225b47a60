"""`specswitch plot`: mode over load, acceptance and speed, from an event log or a live server."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import track

from specswitch.cli.durations import LONGEST_S, no_nan
from specswitch.cli.server_client import ApiKeyOption, ServerClient, ServerError
from specswitch.timeline.event_file import EventLogError, read_event_log
from specswitch.timeline.follow import Follower
from specswitch.timeline.model import Timeline


def plot(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL",
            help="An event log (event_log.path of the server), or the address of a server.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Picture to write; default: specswitch.png, unless --html is given.",
            dir_okay=False,
        ),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Page to write: picture, numbers, all switches.", dir_okay=False),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=1.0,
            max=LONGEST_S,
            callback=no_nan,
            help="How long to watch a server; not for files.",
        ),
    ] = 60.0,
    interval: Annotated[
        float,
        typer.Option(
            min=0.05, max=LONGEST_S, callback=no_nan, help="Seconds between two looks at a server."
        ),
    ] = 0.5,
    scheduler: Annotated[
        int, typer.Option(min=0, help="Data-parallel replica to look at, where there are several.")
    ] = 0,
    api_key: ApiKeyOption = None,
) -> None:
    """Draw mode over load, acceptance and tokens/s.

    From a file: the event log, with the files that were set aside when it grew.
    From an address: what the server does from now on; Ctrl-C draws what there is.
    """
    if importlib.util.find_spec("matplotlib") is None:
        _fail("drawing needs matplotlib: pip install 'specswitch[plot]'")
    for file in (out, html):
        if file is not None and not file.absolute().parent.is_dir():
            _fail(f"{file}: its folder does not exist")
    try:
        if source.startswith(("http://", "https://")):
            with ServerClient(source, api_key) as client:
                timeline = _watch(client, source, scheduler, seconds, interval)
        else:
            timeline = read_event_log(Path(source))
    except (ServerError, EventLogError) as error:
        _fail(str(error))
    try:
        _write(timeline, out, html)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}")


def _watch(
    client: ServerClient, url: str, scheduler: int, seconds: float, interval: float
) -> Timeline:
    states = client.states()
    if scheduler >= len(states):
        raise ServerError(f"{url} has {len(states)} scheduler(s): set --scheduler below that")
    follower, begun = Follower(), time.monotonic()
    follower.take(0.0, states[scheduler])
    looks = range(1, max(1, round(seconds / interval)) + 1)
    try:
        for look in track(looks, "watching", console=Console(stderr=True), transient=True):
            time.sleep(max(0.0, begun + look * interval - time.monotonic()))
            follower.take(time.monotonic() - begun, client.states()[scheduler])
    except KeyboardInterrupt:
        typer.echo("stopped; drawing what there is", err=True)
    return follower.timeline(url)


def _write(timeline: Timeline, out: Path | None, html: Path | None) -> None:
    # Imported here: matplotlib takes a second, and is an optional extra.
    from specswitch.timeline.figure import draw
    from specswitch.timeline.page import page

    if out is None and html is None:
        out = Path("specswitch.png")
    if out is not None:
        draw(timeline, out)
        typer.echo(str(out))
    if html is not None:
        html.write_text(page(timeline), encoding="utf-8")
        typer.echo(str(html))


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)
