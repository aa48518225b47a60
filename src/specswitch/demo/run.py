"""A demo from start to end: the switching server, the reference, the comparison."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from specswitch.demo.client import Client
from specswitch.demo.compare import differences
from specswitch.demo.launch import Launch
from specswitch.demo.observe import Observer
from specswitch.demo.outcome import Outcome, PhaseTime
from specswitch.demo.screen import Screen
from specswitch.demo.server import ServerProcess, free_port
from specswitch.demo.traffic import Phase, Request, send


@dataclass(frozen=True)
class Demo:
    """What to run.

    Attributes:
        launch: how the servers are started.
        phases: the traffic.
        folder: where the servers' logs go; must exist.
        settle_s: seconds of observation before the first and after the last request.
    """

    launch: Launch
    phases: tuple[Phase, ...]
    folder: Path
    settle_s: float

    async def run(self, screen: Screen) -> Outcome:
        """Run both servers, one after the other, and compare their answers.

        Cancelling it stops the server that runs.

        Raises:
            DemoError: a server could not be started or used.
        """
        answers: dict[int, tuple[int, ...]] = {}
        times: list[PhaseTime] = []
        async with self._server("specswitch", self.launch.specswitch, screen) as client:
            observer = Observer(client, screen.sample, screen.switch)
            async with observing(observer):
                await asyncio.sleep(self.settle_s)
                for phase in self.phases:
                    start = observer.seconds
                    observer.phase = phase.name
                    got = await self._send(phase, client, screen, observer)
                    answers.update(got)
                    tokens = sum(len(ids) for ids in got.values())
                    times.append(PhaseTime(phase.name, start, observer.seconds, len(got), tokens))
                observer.phase = "idle"
                await asyncio.sleep(self.settle_s)
            await observer.poll()

        async with self._server("reference", self.launch.reference, screen) as client:
            everything = tuple(request for phase in self.phases for request in phase.requests)
            together = Phase("same requests, no speculation", everything, len(everything))
            begun = time.monotonic()
            expected = await self._send(together, client, screen, None)
            reference_seconds = time.monotonic() - begun

        return Outcome(
            samples=tuple(observer.samples),
            switches=tuple(observer.switches),
            phases=tuple(times),
            answers=len(answers),
            differing=tuple(differences(answers, expected)),
            reference_seconds=reference_seconds,
        )

    @asynccontextmanager
    async def _server(
        self, name: str, command: Callable[[int], list[str]], screen: Screen
    ) -> AsyncIterator[Client]:
        port = free_port()
        log = self.folder / f"server-{name}.log"
        environment = self.launch.environment()
        async with ServerProcess(name, command(port), environment, port, log) as server:
            screen.task(f"start the {name} server", None)
            took = await server.ready(lambda _, line: screen.progress(detail=line))
            screen.finish(f"ready after {took:.0f} s")
            async with Client(server) as client:
                yield client
            screen.task(f"stop the {name} server", None)
        screen.finish()

    async def _send(
        self, phase: Phase, client: Client, screen: Screen, observer: Observer | None
    ) -> dict[int, tuple[int, ...]]:
        screen.task(phase.name, len(phase.requests))
        done = 0

        async def ask(request: Request) -> tuple[int, ...]:
            if observer is None:
                return await client.ask(request)
            observer.outstanding += 1
            try:
                return await client.ask(request)
            finally:
                observer.outstanding -= 1

        def answered(_: Request) -> None:
            nonlocal done
            done += 1
            screen.progress(done)

        got = await send(phase, ask, answered)
        screen.finish()
        return got


@asynccontextmanager
async def observing(observer: Observer) -> AsyncIterator[None]:
    """Poll in the background; a poll that fails ends the block with its error."""
    block = asyncio.current_task()
    failure: list[BaseException] = []

    def failed(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failure.append(error)
            if block is not None:
                block.cancel()

    watcher = asyncio.create_task(observer.watch())
    watcher.add_done_callback(failed)
    try:
        yield
    except asyncio.CancelledError:
        if failure:
            raise failure[0] from None
        raise
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
