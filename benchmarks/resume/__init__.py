"""`resume`: what draft sync costs while speculation is off, and what it is worth afterwards.

Four parts, each with servers of its own:

- `acceptance`, with trained weights: requests speculate until a burst of one request takes the
  batch above its limit. It lasts 10, 100 or 400 steps, and the first speculative steps after it are
  compared with those of the same text, sent as a prompt to the emptied server: a request that never
  left speculation, at the very same place.
- `catch_up`: a server that alternates every 64 steps; the step that resumes, with 64 missed
  positions a request, against the others.
- `flush`: a server that never speculates; the steps in which missed positions are written.
- `off_cost`: decode throughput of servers that never speculate, per mode of draft sync.
"""

from benchmarks.resume.command import add_arguments, run

__all__ = ["add_arguments", "run"]
