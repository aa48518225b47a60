"""TCP ports that nothing else in a test run takes before the server they are for has bound them.

A server binds its port many seconds after it was told the number. Ports that the system picks are
no good for that: within these seconds it gives the same number to any connection or to the engine
of another worker. So each worker of a run has numbers of its own, below those that Linux gives
out, and uses them in turn.
"""

from __future__ import annotations

import itertools
import os
import random

from specswitch.demo.errors import DemoError
from specswitch.demo.server import free_port

_FIRST = 12_000
_PER_WORKER = 500
_WORKERS = 16

# From any place: another run on this machine has the same numbers.
_turn = itertools.count(random.randrange(_PER_WORKER))


def reserve_port() -> int:
    """A free port that this worker gives out once in a few hundred calls and no other one does."""
    # gw0, gw1, ...; unset without parallel workers.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    while True:
        port = _FIRST + _PER_WORKER * worker + next(_turn) % _PER_WORKER
        if _is_free(port):
            return port


def _is_free(port: int) -> bool:
    try:
        return free_port(range(port, port + 1)) == port
    except DemoError:
        return False
