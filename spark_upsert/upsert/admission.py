"""Admission: whether there is room for an epoch, by the caps of its table (`state.caps`).

It is judged before anything is staged, when its bytes are not known yet, and again right before
its version is put, against that very version before it: whoever loses that race is judged anew. So
what lies behind the slowest consumer never exceeds the caps, whoever else writes. What a writer
has committed already is answered as done, whether or not there is room; so who calls this asks for
that first.

A table without caps is not asked for its leases.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_upsert.errors import BatchTooLargeError, TableFullError, UpsertFlowError
from spark_upsert.options.write import FULL_WAIT_MS
from spark_upsert.state.caps import Caps, OnFull
from spark_upsert.state.log.log import Log
from spark_upsert.state.log.manifest import Draft, Manifest
from spark_upsert.state.retention import BacklogCounter, readable_leases, slowest
from spark_upsert.store import Store

PAUSE_S = 0.05
PAUSE_S_MAX = 1.0
"""Each look at the leases of a table is a handful of requests: one a second is harmless."""

Sleep = Callable[[float], None]


class Admission:
    """Lets the epochs of one write into a table, or refuses them.

    Parameters
    ----------
    log : Log
    store : Store
    counter : BacklogCounter
        That of this table; what it has counted stays for the next write.
    wait_ms : int
        How long it waits altogether, in a table that waits.
    sleep : callable, optional
        Waits for some seconds.
    """

    def __init__(
        self,
        log: Log,
        store: Store,
        counter: BacklogCounter,
        *,
        wait_ms: int = FULL_WAIT_MS,
        sleep: Sleep = time.sleep,
    ) -> None:
        self._log = log
        self._store = store
        self._counter = counter
        self._left_s = wait_ms / 1000
        self._pause_s = PAUSE_S
        self._sleep = sleep

    def require(self, head: Manifest, draft: Draft | None = None) -> Manifest:
        """Return the version behind which there is room for an epoch, once there is.

        Parameters
        ----------
        head : Manifest
            The newest one; after a wait it is looked for anew.
        draft : Draft, optional
            Without one, nothing is staged yet, and the epoch has one byte at least.

        Raises
        ------
        BatchTooLargeError
            There never will be.
        TableFullError
            There is none, and it did not come in time. Nothing was committed.
        """
        while True:
            refusal = self.refusal(head, draft)
            if refusal is None:
                return head
            is_waiting = Caps.of(head.properties).on_full is OnFull.WAIT
            if isinstance(refusal, BatchTooLargeError) or not (is_waiting and self._left_s > 0):
                raise refusal
            self._pause()
            head = self._log.head()

    def refusal(self, head: Manifest, draft: Draft | None = None) -> UpsertFlowError | None:
        """Return why there is no room for an epoch behind a version, None if there is."""
        caps = Caps.of(head.properties)
        if caps.is_none or head.is_unborn or not (draft is None or draft.is_epoch):
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
