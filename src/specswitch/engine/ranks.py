"""Tensor-parallel ranks compare what they decided, so that a difference ends the server with a line
that names it.

Decisions depend on counts that are equal on all ranks, so they are equal; this is for the day when
that is wrong. The two modes run different collectives, so ranks that disagree wait for each other
in a forward, or add up numbers that do not belong together. Either way no rank's scheduler gets to
a later step at which it could compare, and the engine's own watchdog ends them after 300 s without
a cause. So:

- A thread of each rank does the comparing. It is woken every `EVERY` steps, and once a second
  whatever the steps do, so it speaks up while the scheduler hangs.
- A step that fails, as one with unequal collectives may, waits for one more comparison, so that the
  log tells the cause before the engine ends the server for the effect.
- What is compared is a digest over all decisions so far, kept for the last `KEPT` steps. Equal
  digests at one step mean equal decisions up to it, and the first that differ name the step.
- Nothing waits for it: a step does some arithmetic and stores a tuple.
- ``SPECSWITCH_DEBUG=1`` compares before each step instead, load samples included. That makes every
  rank wait for the slowest, and no wrong step is ever run.

Ranks exchange over a gloo group of their own. The engine's group for the CPU is used by the
scheduler's thread at each pass (managers/scheduler.py:1759, SGLang 0.5.12.post1), and collectives
of two threads on one group would meet in another order on another rank; it also waits two hours for
a rank that does not come (distributed/parallel_state.py:254).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from zlib import crc32

from specswitch.control.decision import Decision, Mode, Reason
from specswitch.control.load import LoadSample
from specswitch.engine.errors import RanksDisagree

logger = logging.getLogger(__name__)

#: Decode steps after which the comparing thread is woken.
EVERY = 64
#: Decode steps whose decisions a rank remembers. Ranks are a step or two apart, and what they send
#: is some steps older on a rank whose thread was woken first.
KEPT = 256
#: Longest time between two comparisons.
PAUSE_S = 1.0
#: Time that a failed step gives the comparison; on every rank one begins within `PAUSE_S`.
EXPLAIN_S = 5 * PAUSE_S
#: Longest time that a rank waits for the others' part of a comparison.
TIMEOUT_S = 120

# Of the names, which are the same on all machines; Python's own hash of a text is not.
_CODES = {word: crc32(word.value.encode()) for word in (*Mode, *Reason)}
_FACTOR, _MASK = 1_000_003, (1 << 63) - 1
_NEVER = -1


class Ranks:
    """The ranks of a server that has one: nothing to compare.

    As a context it goes round a step.
    """

    size = 1

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.explain_failure()

    def explain_failure(self) -> None:
        """A step has failed: say so in the log if the ranks disagree, before the server ends."""

    def note(self, decision: Decision, sample: LoadSample) -> None:
        """A decision was made, and its step has not been launched."""

    def snapshot(self) -> dict[str, Any]:
        """State for ``/server_info``.

        Returns:
            {"size": ranks, "compared_step": last step up to which decisions are known to be equal,
            null before the first comparison and where there is nothing to compare}.
        """
        return {"size": self.size, "compared_step": None}


def make_ranks(members: Sequence[int], *, debug: bool, end_server: Callable[[], None]) -> Ranks:
    """What compares decisions on this rank. With several ranks all of them must call it at once.

    Args:
        members: numbers of the tensor-parallel ranks in ``torch.distributed``.
        debug: compare before each step.
        end_server: called, by another thread, when the ranks are found to disagree.
    """
    if len(members) == 1:
        return Ranks()
    import torch.distributed as dist

    group = dist.new_group(members, backend="gloo", timeout=timedelta(seconds=TIMEOUT_S))
    if debug:
        return ComparedBefore(group)
    ranks = ComparedBehind(group, end_server)
    ranks.start()
    return ranks


class ComparedBefore(Ranks):
    """Compares each decision and its load sample before the step is launched.

    Args:
        group: gloo process group of the ranks.
    """

    def __init__(self, group: Any) -> None:
        self._group, self.size = group, group.size()
        self._compared: int | None = None

    def note(self, decision: Decision, sample: LoadSample) -> None:
        """Exchange this decision; waits for all ranks.

        Raises:
            RanksDisagree: they differ, or a rank makes no decision.
        """
        try:
            all_of_them = _exchange((decision, sample), self._group)
        except RuntimeError as error:
            raise RanksDisagree(
                f"this rank decided {_describe(decision, sample)}, and another one does not say "
                f"what it decided: {error}"
            ) from error
        if any(other != (decision, sample) for other in all_of_them):
            raise RanksDisagree(_difference([_describe(*one) for one in all_of_them]))
        self._compared = decision.step

    def snapshot(self) -> dict[str, Any]:
        return {"size": self.size, "compared_step": self._compared}


class _Noted(NamedTuple):
    step: int
    digest: int
    decision: Decision
    sample: LoadSample


class ComparedBehind(Ranks):
    """Compares decisions from a thread of its own, some steps behind.

    Args:
        group: gloo process group of the ranks.
        end_server: called by the thread when they disagree, after the log line.
    """

    def __init__(self, group: Any, end_server: Callable[[], None]) -> None:
        self._group, self.size = group, group.size()
        self._end_server = end_server
        self._digest = 0
        # Step s is at s % KEPT, on every rank. A slot is written in one go and the list copied in
        # one, so neither thread ever waits for the other.
        self._kept: list[_Noted | None] = [None] * KEPT
        self._due = threading.Event()
        self._compared: int | None = None

        self._thread = threading.Thread(target=self._run, name="specswitch-ranks", daemon=True)

    def start(self) -> None:
        """Begin to compare; a thread does so until the process ends."""
        self._thread.start()

    def note(self, decision: Decision, sample: LoadSample) -> None:
        step = decision.step
        code = _CODES[decision.mode] ^ _CODES[decision.reason]
        self._digest = digest = (self._digest * _FACTOR + code) & _MASK
        self._kept[step % KEPT] = _Noted(step, digest, decision, sample)
        if step % EVERY == 0:
            self._due.set()

    def explain_failure(self) -> None:
        self._due.set()
        # The thread ends when it has found a difference and told of it.
        self._thread.join(EXPLAIN_S)

    def snapshot(self) -> dict[str, Any]:
        return {"size": self.size, "compared_step": self._compared}

    def compare(self) -> None:
        """Exchange once what is kept; waits for all ranks to do so.

        Where one thread was so late that no step is kept by all ranks, the next comparison tells.

        Raises:
            RanksDisagree: the decisions differ.
            RuntimeError: a rank does not answer, or is gone.
        """
        import numpy as np
        import torch
        import torch.distributed as dist

        kept = self._kept.copy()
        mine = torch.tensor(
            [(one.step, one.digest) if one else (_NEVER, 0) for one in kept],
            dtype=torch.int64,
            device="cpu",
        )
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(gathered, mine, group=self._group)
        # [ranks, KEPT], the same on every rank, and so is what follows from it.
        steps, digests = np.moveaxis(np.stack([one.numpy() for one in gathered]), 2, 0)
        shared = (steps == steps[0]).all(axis=0) & (steps[0] != _NEVER)
        differ = shared & (digests != digests[0]).any(axis=0)
        if differ.any():
            first = steps[0][differ].min()
            here = kept[first % KEPT]
            assert here is not None
            said = _exchange(_describe(here.decision, here.sample), self._group)
            forgotten = 0 < first == steps[0][shared].min()
            raise RanksDisagree(_difference(said) + ", or at an earlier step" * bool(forgotten))
        if shared.any():
            self._compared = int(steps[0][shared].max())

    def _run(self) -> None:
        try:
            while True:
                self._due.wait(PAUSE_S)
                self._due.clear()
                self.compare()
        except RanksDisagree as problem:
            logger.critical("specswitch: %s; the server ends", problem)
            self._end_server()
        except Exception as error:
            # A rank that is gone ends the server without us; one that merely is slow does not.
            logger.warning(
                "specswitch: ranks no longer compare their decisions, since one does not answer: "
                "%s",
                error,
            )


def _exchange(mine: Any, group: Any) -> list[Any]:
    """What each rank has given, in the order of the ranks."""
    import torch.distributed as dist

    everyones: list[Any] = [None] * group.size()
    dist.all_gather_object(everyones, mine, group=group)
    return everyones


def _describe(decision: Decision, sample: LoadSample) -> str:
    values = ", ".join(f"{name} {getattr(sample, name)}" for name in LoadSample.__slots__[1:])
    return f"{decision.mode} at step {decision.step} ({decision.reason}; {values})"


def _difference(said: Sequence[str]) -> str:
    ranks = "; ".join(f"rank {rank}: {one}" for rank, one in enumerate(said))
    return f"tensor-parallel ranks decided differently: {ranks}"
