"""Short ways to write loads, shared by the controller tests."""

from __future__ import annotations

from collections.abc import Iterable

from specswitch.control import Controller, Decision, LoadSample, Mode, Policy, Proposal, Reason

SPECULATE = Mode.SPECULATE
TARGET_ONLY = Mode.TARGET_ONLY


def load(step: int = 0, waiting: int = 0, running: int = 1, kv_use: float = 0.1) -> LoadSample:
    """A sample of a calm server, but for what is named."""
    return LoadSample(step, waiting, running, kv_use)


def decide_all(controller: Controller, samples: Iterable[LoadSample]) -> list[Decision]:
    return [controller.decide(sample) for sample in samples]


def modes(decisions: Iterable[Decision]) -> str:
    """One letter a step: S for speculate, t for target_only."""
    return "".join("S" if each.mode is SPECULATE else "t" for each in decisions)


class Script(Policy):
    """Proposes what it is told, one letter a call (as in `modes`), and notes what it hears."""

    def __init__(self, wanted: str) -> None:
        self._wanted = iter(wanted)
        self.switches: list[int] = []
        self.passed_over = 0

    def propose(self, sample: LoadSample, mode: Mode) -> Proposal:
        wanted = SPECULATE if next(self._wanted) == "S" else TARGET_ONLY
        return Proposal(wanted, Reason.STEADY if wanted is mode else Reason.WAITING_HIGH)

    def on_switch(self, step: int) -> None:
        self.switches.append(step)

    def on_passed_over(self) -> None:
        self.passed_over += 1


def run_script(
    policy: Policy, steps: int, *, cap: int | None = None, start: Mode = SPECULATE, first: int = 0
) -> list[Decision]:
    """Decisions over `steps` calm steps, without a batch limit in the way."""
    controller = Controller(policy, max_speculative_batch=10**6, switch_cap=cap, start=start)
    return decide_all(controller, (load(first + step) for step in range(steps)))
