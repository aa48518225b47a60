"""What a run found out, and whether that is what the demo promises."""

from __future__ import annotations

from dataclasses import dataclass

from specswitch.demo.compare import Difference
from specswitch.demo.observe import Sample, switched_both_ways
from specswitch.timeline.model import SwitchAt


@dataclass(frozen=True)
class PhaseTime:
    """When a phase ran on the server with specswitch (seconds), and what it sent."""

    name: str
    start: float
    end: float
    requests: int
    tokens: int

    @property
    def tokens_per_second(self) -> float:
        """Answered tokens over the whole phase."""
        return self.tokens / (self.end - self.start) if self.end > self.start else 0.0


@dataclass(frozen=True)
class Outcome:
    """Everything that a run found out.

    Attributes:
        samples: at least one.
        switches: in order.
        phases: in order.
        answers: number of answers that were compared.
        differing: those that were not equal.
        reference_seconds: time of the server without speculation for all requests.
    """

    samples: tuple[Sample, ...]
    switches: tuple[SwitchAt, ...]
    phases: tuple[PhaseTime, ...]
    answers: int
    differing: tuple[Difference, ...]
    reference_seconds: float

    def checks(self) -> dict[str, bool]:
        """What the demo promises, and whether it held."""
        left, back = switched_both_ways(self.switches)
        return {
            "all answers equal those of the server without speculation": not self.differing,
            "the burst switched the server to target_only": left,
            "it went back to speculate when the load fell": back,
        }

    @property
    def passed(self) -> bool:
        """Whether all checks held."""
        return all(self.checks().values())
