"""What stops a server at start-up."""

from __future__ import annotations


class StartupRefusal(ValueError):
    """The server cannot run as asked. The message says what to change; one line a problem."""


class HookNotApplied(StartupRefusal):
    """A hook is registered but not in place, so the server would not do what it says."""


class MirrorMismatch(RuntimeError):
    """Debug mode: the host copy of the sequence lengths differs from the device."""


class RingMismatch(RuntimeError):
    """Draft sync kept other tokens than the request has emitted (``SPECSWITCH_DEBUG=1``)."""


class RanksDisagree(RuntimeError):
    """Tensor-parallel ranks decided on different modes; their answers would be wrong, or none."""


class SlotMismatch(RuntimeError):
    """A step would write KV slots that its requests do not have (``SPECSWITCH_DEBUG=1``)."""
