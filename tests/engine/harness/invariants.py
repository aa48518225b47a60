"""Books of the memory pools that must balance after every step, whatever the modes did.

The engine compares sums now and then; a slot that is handed out twice while another one is lost
passes such a check. Here each page is looked at by itself: it is free, or in the prefix cache, or
belongs to one request. Lines cited are of SGLang 0.5.12.post1.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class BooksDoNotBalance(AssertionError):
    """A pool, a request or the draft sync claims what is not so."""


class Books:
    """Checks one scheduler between two passes of its loop.

    Args:
        scheduler: the engine's Scheduler, with any worker or none, that has served nothing yet.

    Attributes:
        checks: how often the books have been checked.
        fullest: largest fraction of the KV slots that was in use, evictable ones not counted.

    Raises:
        BooksDoNotBalance: here, the pools are not empty, or target and draft do not share slots.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._tree = scheduler.tree_cache
        self._rows = scheduler.req_to_token_pool
        self._page = scheduler.page_size
        self._pages = self._allocator.size // self._page
        self._sync = getattr(scheduler.draft_worker, "sync", None)
        self.checks = 0
        self.fullest = 0.0
        if scheduler.draft_worker is not None:
            self._check_draft_shares(scheduler.draft_worker.draft_worker.draft_runner)
        self.check_empty()

    def check_empty(self) -> None:
        """Check that every slot and every row is free, as after ``flush_cache``.

        Raises:
            BooksDoNotBalance: they are not.
        """
        slots, rows = self._allocator.available_size(), self._rows.available_size()
        if (slots, rows) != (self._allocator.size, self._rows.size):
            raise self._wrong(
                f"free are {slots} slots of {self._allocator.size}, {rows} rows of "
                f"{self._rows.size}"
            )

    def check(self) -> None:
        """Check everything that holds between two passes of the scheduler's loop.

        Raises:
            BooksDoNotBalance: says what is wrong, and with which request or pages.
        """
        requests = self._requests()
        self._check_rows(requests)
        for request in requests:
            self._check_lengths(request)
        self._check_pages(requests)
        if self._sync is not None:
            self._check_gaps(requests)
        used = self._allocator.size - self._allocator.available_size() - self._tree.evictable_size()
        self.fullest = max(self.fullest, used / self._allocator.size)
        self.checks += 1

    def _wrong(self, what: str) -> BooksDoNotBalance:
        return BooksDoNotBalance(f"after {self.checks} checks: {what}")

    def _check_draft_shares(self, draft: Any) -> None:
        """The draft has a KV pool of its own, in which a slot has the number of the target's.

        The worker hands the target's table and allocator on (speculative/eagle_worker_v2.py:125).
        """
        target, own = self._allocator.get_kvcache(), draft.token_to_kv_pool
        if (
            draft.req_to_token_pool is not self._rows
            or draft.token_to_kv_pool_allocator is not self._allocator
            or (own.size, own.page_size) != (target.size, target.page_size)
        ):
            raise self._wrong("the draft does not go by the target's slots")

    def _requests(self) -> list[Any]:
        """Requests that hold a row, each once: running, in flight, or between two chunks."""
        scheduler = self._scheduler
        batches = [scheduler.running_batch, scheduler.last_batch]
        batches += [batch for batch, _ in scheduler.result_queue]
        found = [request for batch in batches if batch is not None for request in batch.reqs]
        found += [*scheduler.waiting_queue, scheduler.chunked_req]
        held = [one for one in found if one is not None and one.req_pool_idx is not None]
        return list({id(one): one for one in held}.values())

    def _check_rows(self, requests: list[Any]) -> None:
        taken = [request.req_pool_idx for request in requests]
        if sorted([*taken, *self._rows.free_slots]) != list(range(1, self._rows.size + 1)):
            raise self._wrong(f"rows: taken {taken}, free {self._rows.free_slots}")

    def _check_lengths(self, request: Any) -> None:
        lengths = [
            *(0, request.cache_protected_len, request.kv_committed_len),
            *(request.kv_allocated_len, self._rows.max_context_len),
        ]
        if lengths != sorted(lengths):
            raise self._wrong(
                f"{request.rid}: cached, committed, allocated and possible lengths {lengths[1:]}"
            )
        scheduler = self._scheduler
        in_flight = scheduler.last_batch if scheduler.result_queue else None
        if in_flight is None or not in_flight.forward_mode.is_decode():
            return
        # The step in flight has claimed a slot for its token (speculative/eagle_info_v2.py:149).
        tokens = len(request.origin_input_ids) + len(request.output_ids)
        if request in in_flight.reqs and request.kv_committed_len != tokens:
            raise self._wrong(f"{request.rid}: {request.kv_committed_len} slots, {tokens} tokens")

    def _check_pages(self, requests: list[Any]) -> None:
        """Each page has one owner, and pages are whole wherever they lie in a sequence."""
        if not self._allocator.is_not_in_free_group:
            raise self._wrong("a group of frees was left open")
        free = self._allocator.free_pages, self._allocator.release_pages
        parts = [pages.cpu().numpy() for pages in free]
        parts += [self._pages_of("a cached prefix", slots) for slots in self._cached()]
        for request in requests:
            row = self._rows.req_to_token[request.req_pool_idx, : request.kv_allocated_len]
            pages = self._pages_of(request.rid, row.cpu().numpy())
            if request.cache_protected_len % self._page:
                raise self._wrong(f"{request.rid}: cached up to within a page")
            # Those before are in the prefix cache.
            parts.append(pages[request.cache_protected_len // self._page :])
        owned = np.concatenate(parts)
        if owned.min() < 1 or owned.max() > self._pages:
            raise self._wrong(f"pages {owned.min()} to {owned.max()}, of {self._pages}")
        owners = np.bincount(owned, minlength=self._pages + 1)
        # Page 0 takes what padding writes.
        if (wrong := np.flatnonzero(owners[1:] != 1) + 1).size:
            raise self._wrong(f"pages {wrong.tolist()} have {owners[wrong].tolist()} owners")

    def _cached(self) -> list[np.ndarray]:
        """Slots of each node of the prefix cache, whose own counts must agree with them."""
        if self._tree.disable:
            return []
        found, protected = [], 0
        nodes = list(self._tree.root_node.children.values())
        while nodes:
            node = nodes.pop()
            nodes += node.children.values()
            found.append(node.value.cpu().numpy())
            if node.lock_ref < 0 or len(node.value) % self._page:
                raise self._wrong(
                    f"a cached prefix of {len(node.value)} slots, locked {node.lock_ref} times"
                )
            protected += len(node.value) if node.lock_ref else 0
        evictable = sum(map(len, found)) - protected
        said = self._tree.protected_size(), self._tree.evictable_size()
        if said != (protected, evictable):
            raise self._wrong(
                f"the prefix cache says {said} slots are in use and not, there are "
                f"{protected} and {evictable}"
            )
        return found

    def _pages_of(self, whose: str, slots: np.ndarray) -> np.ndarray:
        """Pages that a stretch of slots fills, in order; the last one may be filled in part."""
        pages = slots[:: self._page] // self._page
        if self._page > 1:
            whole = pages[:, None] * self._page + np.arange(self._page)
            if not np.array_equal(whole.ravel()[: len(slots)], slots):
                raise self._wrong(f"{whose}: slots that are not those of pages: {slots}")
        return pages

    def _check_gaps(self, requests: list[Any]) -> None:
        """What the draft has missed is within what is decoded, and the sum is what is counted."""
        from specswitch.engine.draft_sync import gap

        gaps = [(one, mine) for one in requests if (mine := gap.find(one)) is not None]
        for request, mine in gaps:
            if not (
                request.cache_protected_len <= mine.synced
                and 0 <= mine.missed <= mine.decoded - mine.synced
                and mine.decoded <= request.kv_committed_len
            ):
                raise self._wrong(f"{request.rid}: {mine}, {request.kv_committed_len} committed")
        missed, counts = sum(mine.missed for _, mine in gaps), self._sync.counts
        if (missed, len(gaps)) != (counts.pending, counts.behind):
            raise self._wrong(
                f"the draft misses {missed} positions of {len(gaps)} requests, counted are "
                f"{counts.pending} of {counts.behind}"
            )
