"""The exactness rule: an answer must not depend on the mode, and so not on load.

Some options of a request mean something else in a speculative step than in plain decode, or
nothing. Which, and why, is in the table of the engine's release
(``compat.release().exactness.OPTIONS``). A request is judged once, when it arrives. As long as a
decode batch holds one that asks for such an option, it is target-only, because all requests of a
batch share its steps.

Where little is needed to make both paths the same, the path of speculation is repaired instead.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from specswitch.engine import compat
from specswitch.engine.errors import StartupRefusal
from specswitch.engine.request_mark import RequestMark

logger = logging.getLogger(__name__)

#: Stands for what could not be found out.
UNKNOWN = "unknown"


class InexactRequests:
    """Knows which requests speculation would answer otherwise; they are judged when they arrive.

    Args:
        setting: ``exactness`` of the configuration: strict, warn or off.
        server_args: the engine's.
        speak: whether to log; one rank is enough.

    Attributes:
        setting: as given.
        requests: requests so far, by option; one that asks for several counts for each. With
            ``off`` nobody looks.
    """

    def __init__(self, setting: str, server_args: Any, *, speak: bool = True) -> None:
        self.setting = setting
        self.requests: Counter[str] = Counter()
        self._server_args = server_args
        self._speak = speak
        self._judged = RequestMark("specswitch_judged")
        self._inexact = RequestMark("specswitch_inexact")

    @property
    def options(self) -> dict[str, str]:
        """Options that speculation answers otherwise, with what it does instead."""
        return {option.name: option.why for option in compat.release().exactness.OPTIONS}

    def note(self, request: Any) -> None:
        """A request is on its way into the waiting queue, for the first time or once more."""
        if self.setting == "off" or self._judged.is_on(request):
            return
        self._judged.put(request)
        try:
            asked = [
                option
                for option in compat.release().exactness.OPTIONS
                if option.asked(request, self._server_args)
            ]
        except Exception:
            # Whoever contains this goes on serving, and the answer must be right even so.
            self._mark(request)
            self.requests[UNKNOWN] += 1
            raise
        for option in asked:
            self.requests[option.name] += 1
            if self.setting == "warn" and self.requests[option.name] == 1 and self._speak:
                logger.warning(
                    "specswitch: request %s asks for %s, and speculation %s: its answer may change "
                    "with the mode (exactness: warn); further ones are counted without a word",
                    request.rid,
                    option.name,
                    option.why,
                )
        if asked:
            self._mark(request)

    def count(self, requests: Sequence[Any]) -> int:
        """How many of a decode batch's requests keep it from speculating."""
        return self._inexact.count(requests)

    def problems_of(self, values: Mapping[str, Any]) -> list[str]:
        """Settings of the engine that must not be changed so while the server runs; each line says
        what to change. With ``warn`` they are logged, and none is returned."""
        problems = compat.release().exactness.loose_thresholds(values)
        if self.setting == "strict":
            return [f"{problem} (exactness: strict)" for problem in problems]
        if self.setting == "warn" and self._speak:
            for problem in problems:
                _warn(problem)
        return []

    def totals(self) -> dict[str, int]:
        """Requests so far by option, options that nobody has asked for included."""
        return {**dict.fromkeys(self.options, 0), **self.requests}

    def describe(self) -> str:
        """One line for the start-up summary."""
        does = {
            "strict": "target_only as long as the decode batch holds a request with one of",
            "warn": "speculates, and logs once, for requests with each of",
            "off": "speculates, without a word, for requests with",
        }[self.setting]
        possible = [
            option.name
            for option in compat.release().exactness.OPTIONS
            if option.possible(self._server_args)
        ]
        return f"{self.setting}: {does} {', '.join(possible)}"

    def snapshot(self) -> dict[str, Any]:
        """``{"setting": ..., "requests": {option: requests so far}}``."""
        return {"setting": self.setting, "requests": dict(self.requests)}

    def _mark(self, request: Any) -> None:
        if self.setting == "strict":
            self._inexact.put(request)


def check_server(setting: str, server_args: Any) -> None:
    """Refuse or report arguments with which every answer depends on the mode.

    Args:
        setting: ``exactness`` of the configuration.
        server_args: the engine's, completed.

    Raises:
        StartupRefusal: the setting is strict; one line for each argument.
    """
    problems = list(compat.release().exactness.server_problems(server_args))
    if setting == "strict" and problems:
        raise StartupRefusal(
            "\n".join(f"{problem}, or set exactness: warn" for problem in problems)
        )
    if setting == "warn":
        for problem in problems:
            _warn(problem)


def _warn(problem: str) -> None:
    logger.warning("specswitch: answers depend on the mode: %s", problem)


def repair() -> None:
    """Let speculation answer as plain decode does where little is needed for it.

    To be called in the scheduler's process before the first batch.
    """
    exactness = compat.release().exactness
    exactness.filter_as_plain_decode()
    exactness.draw_as_plain_decode()
    exactness.end_as_plain_decode()
    exactness.continue_as_plain_decode()


def inherited(setting: str, model_config: Any) -> str | None:
    """A line for servers whose chat requests are all kept from speculation by a default of the
    model, which nobody would think of.

    Args:
        setting: ``exactness`` of the configuration.
        model_config: the target's, of the engine.
    """
    options = compat.release().exactness.inherited_options(model_config)
    if setting != "strict" or not options:
        return None
    given = ", ".join(f"{name} {value}" for name, value in options.items())
    return (
        f"the model's generation_config.json gives chat requests {given} unless they set it "
        "themselves, which speculation answers otherwise, so chat is hardly ever speculated for: "
        "set --sampling-defaults openai, or exactness: warn"
    )


def simulation() -> str | None:
    """A line for servers that were told to feign acceptance: their answers are not the model's."""
    length = compat.release().exactness.simulated_acceptance()
    if length is None:
        return None
    return (
        f"SGLANG_SIMULATE_ACC_LEN is {length}: speculative steps accept what the draft proposes, "
        "whatever the target says; for measurements of speed only"
    )
