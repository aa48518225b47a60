"""Ctrl-C, SIGTERM and a closed terminal end the demo in order: its servers first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The user ended the run.

    Attributes:
        exit_code: 128 + signal number, as shells report it.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.exit_code = 128 + number


def run_until_signal(main: Coroutine[Any, Any, T], noticed: Callable[[signal.Signals], None]) -> T:
    """Run a coroutine; SIGINT, SIGTERM or SIGHUP cancels it, so that its contexts end in order.

    `asyncio.run` alone turns SIGINT into an exception at an arbitrary place before
    Python 3.11, and lets the others end the process with its servers still running.

    Args:
        main: what to run.
        noticed: called at once with the signal, before anything has ended.

    Raises:
        Interrupted: after the coroutine has ended.
    """

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(main)
        received: list[signal.Signals] = []

        def cancel(number: signal.Signals) -> None:
            received.append(number)
            task.cancel()
            noticed(number)

        for number in _ENDING:
            loop.add_signal_handler(number, cancel, number)
        try:
            return await task
        except asyncio.CancelledError:
            if received:
                raise Interrupted(received[0]) from None
            raise
        finally:
            for number in _ENDING:
                loop.remove_signal_handler(number)

    return asyncio.run(guarded())
