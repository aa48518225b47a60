"""What the server says about itself, several times a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from specswitch.control import Mode
from specswitch.demo.client import Client
from specswitch.timeline.follow import TokenRate, new_switches
from specswitch.timeline.model import seconds_of_step

__all__ = ["POLL_S", "Observer", "Sample", "SeenSwitch", "seconds_of_step", "switched_both_ways"]

POLL_S = 0.2


@dataclass(frozen=True)
class Sample:
    """State of the server at one moment.

    Attributes:
        seconds: since the observation began.
        phase: name of the traffic phase.
        mode: mode of the last decode step.
        reason: why that step had its mode.
        step: number of the last decode step.
        waiting: requests in the waiting queue.
        running: requests in the decode batch.
        kv_use: fraction of the KV pool in use.
        acceptance_length: tokens per request and speculative step, bonus token included.
        tokens_per_second: over the last second.
        steps: decode steps so far, by mode.
        tokens: decoded tokens so far, by mode.
    """

    seconds: float
    phase: str
    mode: str
    reason: str
    step: int
    waiting: int
    running: int
    kv_use: float
    acceptance_length: float | None
    tokens_per_second: float
    steps: dict[str, int]
    tokens: dict[str, int]


@dataclass(frozen=True)
class SeenSwitch:
    """A switch as the server reported it, with the load that was decided on."""

    step: int
    source: str
    target: str
    reason: str
    waiting: int
    running: int
    kv_use: float

    @classmethod
    def from_state(cls, entry: dict[str, Any]) -> SeenSwitch:
        return cls(
            step=entry["step"],
            source=entry["from"],
            target=entry["to"],
            reason=entry["reason"],
            waiting=entry["waiting"],
            running=entry["running"],
            kv_use=entry["kv_use"],
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Observer:
    """Polls one server and keeps all samples and switches.

    Args:
        client: where to ask.
        on_sample: called with each sample.
        on_switch: called once for each switch.
    """

    def __init__(
        self,
        client: Client,
        on_sample: Callable[[Sample], None],
        on_switch: Callable[[SeenSwitch], None],
    ) -> None:
        self.samples: list[Sample] = []
        self.switches: list[SeenSwitch] = []
        self.phase = "idle"
        self.outstanding = 0
        """Requests that were sent and are not answered; kept by the sender."""
        self._client = client
        self._on_sample = on_sample
        self._on_switch = on_switch
        self._begun = time.monotonic()
        self._rate = TokenRate()

    @property
    def seconds(self) -> float:
        """Time on the observer's clock."""
        return time.monotonic() - self._begun

    async def watch(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(POLL_S)

    async def poll(self) -> None:
        """Take one sample."""
        state = await self._client.state()
        self._take_switches(state["switches"])
        # The counts are those of the last decode step, and an idle server makes
        # none: that nothing waits or runs then is known from the client side.
        busy = self.outstanding > 0
        seconds = self.seconds
        sample = Sample(
            seconds=round(seconds, 3),
            phase=self.phase,
            mode=state["mode"],
            reason=state["reason"],
            step=state["step"],
            waiting=state["waiting"] if busy else 0,
            running=state["running"] if busy else 0,
            kv_use=state["kv_use"],
            acceptance_length=state["acceptance_length"],
            tokens_per_second=round(self._rate.at(seconds, sum(state["tokens"].values())), 1),
            steps=dict(state["steps"]),
            tokens=dict(state["tokens"]),
        )
        self.samples.append(sample)
        self._on_sample(sample)

    def _take_switches(self, state: dict[str, Any]) -> None:
        for entry in new_switches(state, len(self.switches)):
            switch = SeenSwitch.from_state(entry)
            self.switches.append(switch)
            self._on_switch(switch)


def switched_both_ways(switches: list[SeenSwitch]) -> tuple[bool, bool]:
    """Whether the server went to target_only, and whether it came back after that."""
    targets = [switch.target for switch in switches]
    left = Mode.TARGET_ONLY.value in targets
    if not left:
        return False, False
    back = Mode.SPECULATE.value in targets[targets.index(Mode.TARGET_ONLY.value) :]
    return True, back
