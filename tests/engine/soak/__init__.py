"""The soak: one engine serves random traffic while its mode flips thousands of times.

``python -m tests.engine.soak`` from the root of the repository. Every answer is held against what
an engine without speculation says, the books of the memory pools are checked at every pass of the
scheduler's loop, and at every idle time whatever a leak would leave behind is counted.
"""
