"""What the patched engine's scheduler calls on its worker.

Each method hands on to the function that is hooked to the same place on an unpatched engine. The
engine's defaults are in ``SpecWorkerCallbacks`` (speculative/base_spec_worker.py, patched).
"""

from __future__ import annotations

from typing import Any

from specswitch.control.decision import Mode
from specswitch.engine import handshake, observers, scheduler
from specswitch.engine.debug import debug_enabled
from specswitch.engine.draft_sync import gap


class NativeCallbacks:
    """Mixin for a switching worker; nothing calls it on an engine without the patch."""

    #: The scheduler takes the load, and asks ``begin_decode``.
    chooses_steps = True

    @property
    def relay_all_lengths(self) -> bool:
        """Whether lengths that the host knows come through the future map too, to be compared."""
        return debug_enabled()

    def on_scheduler_ready(self, owner: Any) -> None:
        self._scheduler = owner
        observers.attach(None, owner)

    def on_request_queued(self, request: Any) -> None:
        observers.note_request(self._scheduler, request)

    def begin_decode(self, batch: Any, load: Any) -> bool:
        """Decide the mode of the next decode step; True for target-only."""
        mode = scheduler.decide_step(
            self, batch, load.num_waiting_reqs, load.num_running_reqs, load.token_usage
        )
        return mode is Mode.TARGET_ONLY

    def on_decode_result(self, batch: Any, result: Any) -> None:
        scheduler.count_result(None, self._scheduler, result, batch)

    def on_batch_end(self, batch: Any) -> None:
        observers.end_batch(None, self._scheduler, batch, None)

    def on_idle(self) -> None:
        observers.publish_when_idle(self._scheduler)

    def on_kv_release(self, request: Any, tree_cache: Any, is_insert: bool) -> None:
        gap.leave(request, tree_cache, is_insert)

    def get_init_info(self) -> dict[str, Any]:
        return handshake.report(self)

    def get_internal_state(self) -> dict[str, Any]:
        return scheduler.state(self)
