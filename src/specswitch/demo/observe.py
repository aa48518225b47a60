"""What the server says about itself, several times a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specswitch.control import Mode
from specswitch.demo.client import Client
from specswitch.timeline.follow import TokenRate, new_switches
from specswitch.timeline.model import Moment, SwitchAt

POLL_S = 0.2


@dataclass(frozen=True)
class Sample(Moment):
    """State of the server at one moment.

    Attributes:
        phase: name of the traffic phase.
        reason: why the last decode step had its mode.
        steps: decode steps so far, by mode.
        tokens: decoded tokens so far, by mode.
    """

    tokens_per_second: float  # always known here
    phase: str
    reason: str
    steps: dict[str, int]
    tokens: dict[str, int]


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
        on_switch: Callable[[SwitchAt], None],
    ) -> None:
        self.samples: list[Sample] = []
        self.switches: list[SwitchAt] = []
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
        # The counts are those of the last decode step, and an idle server makes
        # none: that nothing waits or runs then is known from the client side.
        busy = self.outstanding > 0
        seconds = self.seconds
        sample = Sample(
            seconds=round(seconds, 3),
            step=state["step"],
            mode=state["mode"],
            waiting=state["waiting"] if busy else 0,
            running=state["running"] if busy else 0,
            kv_use=state["kv_use"],
            acceptance_length=state["acceptance_length"],
            tokens_per_second=round(self._rate.at(seconds, sum(state["tokens"].values())), 1),
            phase=self.phase,
            reason=state["reason"],
            steps=dict(state["steps"]),
            tokens=dict(state["tokens"]),
        )
        self.samples.append(sample)
        for switch in new_switches(state, len(self.switches), self.samples[-2:]):
            self.switches.append(switch)
            self._on_switch(switch)
        self._on_sample(sample)


def switched_both_ways(switches: Sequence[SwitchAt]) -> tuple[bool, bool]:
    """Whether the server went to target_only, and whether it came back after that."""
    targets = [switch.target for switch in switches]
    left = Mode.TARGET_ONLY.value in targets
    if not left:
        return False, False
    back = Mode.SPECULATE.value in targets[targets.index(Mode.TARGET_ONLY.value) :]
    return True, back
