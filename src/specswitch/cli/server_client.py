"""What the commands ask of a running server over HTTP, with errors that say what to change."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import Annotated, Any

import httpx
import typer

from specswitch.cli.state_shape import ShapeError, check_answers, check_states

STATE_KEY = "specswitch"
DEFAULT_URL = "http://127.0.0.1:30000"

UrlOption = Annotated[
    str, typer.Option("--url", envvar="SPECSWITCH_URL", help="Address of the server.")
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="SPECSWITCH_API_KEY",
        show_envvar=True,
        help="Key that the server was started with (--api-key).",
    ),
]
AdminKeyOption = Annotated[
    str | None,
    typer.Option(
        "--admin-key",
        envvar="SPECSWITCH_ADMIN_KEY",
        show_envvar=True,
        help="Admin key that the server was started with (--admin-api-key).",
    ),
]


class ServerError(Exception):
    """The server cannot be asked, or answers something else. The message says what to change."""


class Refused(ServerError):
    """The server refused a command; nothing has changed."""


class ServerClient:
    """Connection to one server; a context.

    Args:
        url: e.g. `http://127.0.0.1:30000`.
        api_key: for servers started with `--api-key`.
        admin_key: for servers started with `--admin-api-key`, which take it alone for commands.
        timeout_s: longest wait for an answer, in seconds.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        admin_key: str | None = None,
        timeout_s: float = 15.0,
    ) -> None:
        self._url = url.rstrip("/")
        self._api_key = api_key
        self._admin_key = admin_key
        self._timeout_s = timeout_s
        self._client = httpx.Client(timeout=timeout_s)

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def info(self) -> dict[str, Any]:
        """`GET /server_info`.

        Raises:
            ServerError: no such server, or not with this key.
        """
        # It takes the API key only, also from a server that has an admin key
        # (sglang 0.5.12.post1, utils/auth.py:148).
        response = self._send("GET", "/server_info", self._api_key)
        answer = self._json(response)
        if not isinstance(answer, dict):
            raise self._no_sglang()
        states = answer.get("internal_states")
        if not isinstance(states, list) or not all(isinstance(each, dict) for each in states):
            raise self._no_sglang()
        return answer

    def states(self) -> list[dict[str, Any]]:
        """specswitch's state, one for each scheduler (data-parallel replica).

        Raises:
            ServerError: see `info`; or the server runs without specswitch, or with one that tells
                its state otherwise.
        """
        found = self.info()["internal_states"]
        if not found or not all(STATE_KEY in each for each in found):
            raise self._no_specswitch()
        states = [each[STATE_KEY] for each in found]
        if None in states:
            raise ServerError(
                f"{self._url} could not put its state together: its log says why; it serves on"
            )
        self._check(check_states, states)
        return states

    def command(self, command: dict[str, object]) -> list[dict[str, Any]]:
        """Have a command carried out (`specswitch.steering.Command.plain`).

        Returns:
            For each scheduler: {"accepted": true, "changed": lines, "specswitch": state}.

        Raises:
            Refused: the server says why.
            ServerError: see `states`.
        """
        response = self._send(
            "POST",
            "/set_internal_state",
            self._admin_key or self._api_key,
            {"server_args": {STATE_KEY: command}},
        )
        answers = self._json(response)
        if not isinstance(answers, list) or not answers:
            raise self._no_sglang()
        if not all(isinstance(answer, dict) for answer in answers):
            # SGLang says true to what it does not know, and only logs it.
            raise self._no_specswitch()
        self._check(check_answers, answers)
        for answer in answers:
            if not answer["accepted"]:
                raise Refused(answer["error"])
        return answers

    def metrics(self) -> str:
        """`GET /metrics`, in the text format of Prometheus.

        Raises:
            ServerError: no such server, or it reports no metrics.
        """
        response = self._send("GET", "/metrics", None)
        if "sglang" not in response.text:
            raise ServerError(f"{self._url} reports no metrics: start it with --enable-metrics")
        return response.text

    def _send(self, method: str, path: str, key: str | None, body: object = None) -> httpx.Response:
        if key is not None and not key.isascii():
            raise ServerError("a key holds other than ASCII characters, which no server takes")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            try:
                content = json.dumps(body, allow_nan=False)
            except ValueError:
                raise Refused("a value is not a finite number, which no key takes") from None
        try:
            response = self._client.request(
                method, self._url + path, headers=headers, content=content
            )
        except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise ServerError(f"{self._url}: {error}; write --url as http://HOST:PORT") from None
        except httpx.TimeoutException:
            raise ServerError(
                f"{self._url} did not answer within {self._timeout_s:g} s: it is starting, stuck, "
                "or --url is not its address"
            ) from None
        except httpx.DecodingError:
            raise self._no_sglang() from None
        except httpx.TransportError as error:
            raise ServerError(
                f"no server answers at {self._url} ({error}): is it running, and is --url right?"
            ) from None
        if response.status_code in (401, 403):
            raise ServerError(self._about_keys(path, key))
        if response.status_code == 400:
            raise Refused(_message(response))
        if response.status_code == 404:
            raise ServerError(
                "this server reports no metrics: start it with --enable-metrics"
                if path == "/metrics"
                else f"{self._url} has no {path}: is it an SGLang server?"
            )
        if response.status_code != 200:
            raise ServerError(
                f"{method} {self._url}{path} was answered {response.status_code}: "
                f"{_message(response)}"
            )
        return response

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except (ValueError, RecursionError):
            raise self._no_sglang() from None

    def _check(self, check: Callable[[object], None], answer: object) -> None:
        try:
            check(answer)
        except ShapeError as error:
            raise ServerError(
                f"{self._url} answers otherwise than this specswitch knows it ({error}): use the "
                "version that the server runs"
            ) from None

    def _about_keys(self, path: str, key: str | None) -> str:
        what = "wants a key" if key is None else "refuses the key"
        if path == "/server_info":
            return f"{self._url} {what}: give --api-key or set SPECSWITCH_API_KEY"
        return (
            f"{self._url} {what} for commands: give the admin key (--admin-key, "
            "SPECSWITCH_ADMIN_KEY) where the server has one, else the API key (--api-key, "
            "SPECSWITCH_API_KEY)"
        )

    def _no_sglang(self) -> ServerError:
        return ServerError(f"{self._url} does not answer like an SGLang server: is --url right?")

    def _no_specswitch(self) -> ServerError:
        return ServerError(
            f"{self._url} runs without specswitch: start it with --speculative-worker specswitch"
        )


def _message(response: httpx.Response) -> str:
    """What an error answer says, on a few lines at most; fit for a terminal."""
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        answer = None
    said = answer.get("message") if isinstance(answer, dict) else None
    # Not by the charset that the answer names, which may be none.
    text = str(said or response.content.decode(errors="replace"))[:2000].strip()
    shown = "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in text)
    return shown or response.reason_phrase
