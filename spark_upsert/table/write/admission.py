"""Admission: whether an epoch may come in, by the caps of its table and the pressure on it.

Pressure is heeded only before anything is staged: refusing staged work would waste it, and not
lower the pressure. The caps are exact.

Caps are judged before anything is staged, when the bytes are not known yet, and again right before
the put of a version, against the version that it follows: a writer that loses the race is judged
anew. So what lies behind the slowest consumer never exceeds the caps, with any number of writers.
An epoch that is committed already counts as done, whether or not there is room; so a caller checks
for that first.

The leases of a table without caps are not read, nor are reports of pressure for a table without the
property ``backpressure``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_upsert.errors import (
    BatchTooLargeError,
    TableFullError,
    ThrottledError,
    UpsertFlowError,
)
from spark_upsert.store import Store
from spark_upsert.table.log.caps import FULL_WAIT_MS, Caps, OnFull, heeds_pressure
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Manifest
from spark_upsert.table.retention.backlog import BacklogCounter, slowest
from spark_upsert.table.retention.leases import readable_leases
from spark_upsert.table.retention.pressure import PressureGauge

PAUSE_S = 0.05
PAUSE_S_MAX = 1.0
"""Each look at the leases of a table is a handful of requests: one a second is harmless."""

Sleep = Callable[[float], None]

Guard = Callable[[Manifest], UpsertFlowError | None]


class Admission:
    """Lets the epochs of one write into a table, or refuses them.

    Parameters
    ----------
    log : Log
    store : Store
    counter : BacklogCounter
        The counter of this table; what it has counted stays for the next write.
    gauge : PressureGauge, optional
        The gauge of this table. None: the write heeds no pressure.
    wait_ms : int
        How long it waits altogether, in a table that waits.
    waits_for_relief : bool
        Whether it waits, too, where pressure refuses it.
    sleep : callable, optional
        Waits for some seconds.
    guard : callable, optional
        Returns why nothing of this write may come behind a version, asked right before each put.
    """

    def __init__(
        self,
        log: Log,
        store: Store,
        counter: BacklogCounter,
        gauge: PressureGauge | None = None,
        *,
        wait_ms: int = FULL_WAIT_MS,
        waits_for_relief: bool = False,
        sleep: Sleep = time.sleep,
        guard: Guard | None = None,
    ) -> None:
        self._log = log
        self._store = store
        self._counter = counter
        self._gauge = gauge
        self._waits_for_relief = waits_for_relief
        self._left_s = wait_ms / 1000
        self._pause_s = PAUSE_S
        self._sleep = sleep
        self._guard = guard

    def require(self, head: Manifest, draft: Draft | None = None) -> Manifest:
        """Return the version behind which there is room for an epoch, once there is.

        Parameters
        ----------
        head : Manifest
            The newest version; after a wait it is looked for anew.
        draft : Draft, optional
            Without one, nothing is staged yet, and the epoch has one byte at least.

        Raises
        ------
        BatchTooLargeError
            There never will be room.
        TableFullError
            There was no room in time. Nothing was committed.
        ThrottledError
            A consumer was overloaded to the end of the wait. Only where nothing is staged yet.
        """
        while True:
            refusal = self.refusal(head, draft)
            if refusal is None:
                return head
            if not (self._left_s > 0 and self._waits(head, refusal)):
                raise refusal
            self._pause()
            head = self._log.head()

    def _waits(self, head: Manifest, refusal: UpsertFlowError) -> bool:
        """Return whether this write waits for a refusal to pass."""
        if isinstance(refusal, ThrottledError):
            self._pause_s = max(self._pause_s, refusal.fields["retry_after_ms"] / 1000)
            return self._waits_for_relief
        return isinstance(refusal, TableFullError) and (
            Caps.of(head.properties).on_full is OnFull.WAIT
        )

    def refusal(self, head: Manifest, draft: Draft | None = None) -> UpsertFlowError | None:
        """Return why an epoch may not come in behind a version, None if it may."""
        if head.is_unborn or not (draft is None or draft.is_epoch):
            return None
        guarded = self._guard(head) if self._guard and draft is not None else None
        if guarded is not None:
            return guarded
        pressed = self._pressed(head) if draft is None else None
        return pressed or self._full(head, draft)

    def _pressed(self, head: Manifest) -> ThrottledError | None:
        if self._gauge is None or not heeds_pressure(head.properties):
            return None
        said = self._gauge.refusing(self._store, self._log.now_ms())
        if said is None:
            return None
        return ThrottledError.of(
            self._store.url,
            consumer=said.consumer,
            pressure=said.pressure,
            retry_after_ms=said.retry_after_ms,
        )

    def _full(self, head: Manifest, draft: Draft | None) -> UpsertFlowError | None:
        caps = Caps.of(head.properties)
        if caps.is_none:
            return None
        lease = slowest(readable_leases(self._store), self._log.now_ms())
        if lease is None:
            return None
        url = self._store.url
        bytes_added = 1 if draft is None else sum(file.bytes for file in draft.added)
        if caps.bytes is not None and bytes_added > caps.bytes:
            return BatchTooLargeError.of(url, bytes=bytes_added, bytes_max=caps.bytes)
        found = self._counter.behind(lease, self._log, head, caps)
        if caps.admits(epochs=found.epochs + 1, bytes=found.bytes + bytes_added):
            return None
        return TableFullError.of(
            url,
            epochs=found.epochs,
            bytes=found.bytes,
            epochs_max=caps.epochs,
            bytes_max=caps.bytes,
            upper=head.upper,
            consumer=found.consumer,
            version=found.version,
        )

    def _pause(self) -> None:
        pause_s = min(self._pause_s, self._left_s)
        self._left_s -= pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        self._sleep(pause_s)
