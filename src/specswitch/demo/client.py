"""What the demo asks of a server over HTTP: an answer to one prompt, and its state."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import aiohttp

from specswitch.demo.errors import DemoError
from specswitch.demo.server import ServerProcess
from specswitch.demo.traffic import Request

_ANSWER_LIMIT_S = 180.0


class Client:
    """Connections to one server; an asynchronous context."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        # The default of 100 connections would hold back a burst before it arrives. None is used
        # again: the server closes an idle one after 5 s, perhaps just as a request is sent on it.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=_ANSWER_LIMIT_S),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(self, request: Request) -> tuple[int, ...]:
        """Token ids of the greedy answer.

        Raises:
            DemoError: the server ended, refused the request or did not answer in time.
        """
        body = {
            "text": request.prompt,
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": request.new_tokens,
                "ignore_eos": True,
            },
        }
        answer = await self._call("POST", "/generate", body)
        return tuple(answer["output_ids"])

    async def state(self) -> dict[str, Any]:
        """specswitch's part of `/server_info`.

        Raises:
            DemoError: the server ended, or runs without specswitch.
        """
        info = await self._call("GET", "/server_info", None)
        states = info.get("internal_states") or [{}]
        state = states[0].get("specswitch")
        if not isinstance(state, dict):
            raise DemoError(
                "the server runs without specswitch: /server_info has no "
                f'internal_states[0]["specswitch"]; see {self._server.log}'
            )
        return state

    async def _call(self, method: str, path: str, body: object) -> dict[str, Any]:
        if self._session is None:
            raise RuntimeError("Client is used outside of its context")
        try:
            async with self._session.request(
                method, self._server.url + path, json=body
            ) as response:
                if response.status != 200:
                    text = (await response.text())[:300]
                    raise DemoError(f"{method} {path} was answered {response.status}: {text}")
                answer: dict[str, Any] = await response.json()
                return answer
        except (asyncio.TimeoutError, TimeoutError):
            raise DemoError(
                f"{method} {path} had no answer within {_ANSWER_LIMIT_S:.0f} s; "
                f"{self._server.evidence()}"
            ) from None
        except aiohttp.ClientError as error:
            # Most often the server is going down: its exit code and log say more
            # than the error of the connection, so give it a moment to be gone.
            await asyncio.sleep(1.0)
            self._server.check_alive("ended while it was in use")
            raise DemoError(f"{method} {path} failed: {error}; {self._server.evidence()}") from None
