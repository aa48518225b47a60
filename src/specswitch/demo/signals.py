"""Ctrl-C and SIGTERM end the demo in order: its servers first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Interrupted(Exception):
    """The user ended the run.

    Attributes:
        exit_code: 128 + signal number, as shells report it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def run_until_signal(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; a SIGINT or SIGTERM cancels it, so that its contexts are left in order.

    `asyncio.run` alone turns SIGINT into an exception at an arbitrary place before
    Python 3.11, and lets SIGTERM end the process with its servers still running.

    Raises:
        Interrupted: after the coroutine has ended.
    """

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(main)
        received: list[int] = []

        def cancel(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, cancel, number)
        try:
            return await task
        except asyncio.CancelledError:
            if received:
                raise Interrupted(received[0]) from None
            raise
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    return asyncio.run(guarded())
