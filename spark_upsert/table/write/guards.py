"""Commit guards and admission: conditions on the newest version, checked before each put."""

from __future__ import annotations

import time
from collections.abc import Callable

from spark_upsert.errors import (
    BatchTooLargeError,
    ContentionError,
    DataError,
    DataLossError,
    OtherTableError,
    TableFullError,
    ThrottledError,
    UpsertFlowError,
    setting,
)
from spark_upsert.store import Store
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import (
    HISTORY,
    HISTORY_OF,
    QUERY,
    Draft,
    Manifest,
    Transaction,
    stores_rows,
)
from spark_upsert.table.log.properties import FULL_WAIT_MS, Caps, LateRows, OnFull, heeds_pressure
from spark_upsert.table.retention.lag import BacklogCounter, PressureGauge, slowest
from spark_upsert.table.retention.leases import readable_leases
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.outcomes import (
    NOTHING,
    Verdict,
    recorded_position,
    refused,
    require_move,
)
from spark_upsert.table.write.write_set import WriteSet


def is_due(log: Log, write_set: WriteSet, head: Manifest) -> bool:
    """Return whether a write set is still to be committed; raise if it must not be."""
    url = write_set.base.store.url
    if not is_new(write_set, head):
        return False
    for base in {staged_task.base for staged_task in write_set.staged}:
        log.require_descent(head, base, "the epoch")
    base_schema = write_set.base.manifest.schema
    for option, policy, own_policy in (
        ("onError", base_schema.on_error, head.schema.on_error),
        ("onUnknown", base_schema.on_unknown, head.schema.on_unknown),
    ):
        if policy is not own_policy:
            raise ContentionError(
                f"{option} of '{url}' became '{own_policy.value}' while the epoch was under way. "
                "Nothing was committed.",
                hint="write it again; a query that is restarted does.",
            )
    _require_unfenced(write_set, head, url)
    if head.schema.engine.multiplicity is not None:
        return is_next_move(write_set, head)
    if stores_rows(head.properties):
        _require_keeper(write_set, head, url)
    if HISTORY_OF in head.properties:
        _require_historian(write_set, url)
    for transaction in write_set.transactions:
        _require_remembered(transaction, head, url)
        require_no_gap(transaction, head, url)
    return True


def _require_keeper(write_set: WriteSet, head: Manifest, url: str) -> None:
    """Refuse writes to a materialized view by any query other than its own."""
    writers = {transaction.writer for transaction in write_set.transactions}
    if not writers or not all(writer.startswith(QUERY) for writer in writers):
        raise DataError(
            f"the table at '{url}' keeps the rows of a view, which the query of that view writes "
            "and no other writer. Nothing was committed.",
            hint="write to the tables of the view, or into another table.",
        )
    others = sorted(name for name in head.transactions if name.startswith(QUERY))
    others += [f"a query that was forgotten ({name})" for name in sorted(head.forgotten)]
    if others and not writers <= head.transactions.keys():
        raise OtherTableError(
            f"the table at '{url}' keeps the rows of a view by '{others[0]}', and "
            f"'{min(writers)}' writes: rows that are gone since would stay, and of rows that both "
            "have changed the older one might win. Nothing was committed.",
            hint="go on with the checkpoint of that query, or keep the view in a new path.",
            path=url,
        )


def _require_historian(write_set: WriteSet, url: str) -> None:
    """Raise for writes to a materialized history unless they are from `table.keep_history`."""
    writers = [transaction.writer for transaction in write_set.transactions]
    if not writers or not all(writer.startswith(HISTORY) for writer in writers):
        raise DataError(
            f"the table at '{url}' keeps the history of another one, and takes no other rows. "
            "Nothing was committed.",
            hint="write to the table whose history it is, or into another table.",
        )


class UnchangedRowsGuard:
    """Admits an epoch only while the rows equal those of one version."""

    def __init__(self, base: Manifest) -> None:
        self._changed = base.changed
        self.has_changed = False

    def __call__(self, head: Manifest) -> ContentionError | None:
        self.has_changed = head.changed != self._changed
        return ContentionError("other rows came between.") if self.has_changed else None


def is_next_move(write_set: WriteSet, head: Manifest) -> bool:
    """Return whether a table of contributions still lacks a step (`moves`).

    Its own marker is more precise than the writers' numbers, which omit skipped steps.
    """
    url = write_set.base.store.url
    if write_set.overwrite:
        raise DataError(
            f"the table at '{url}' is of contributions, which only add up: its contents cannot be "
            "replaced. Nothing was committed.",
            hint="keep the view in another path, or restore an older version of the table.",
        )
    move = require_move((staged_task.move for staged_task in write_set.staged), url)
    recorded = NOTHING
    if not head.is_unborn:
        recorded = recorded_position(Snapshot(write_set.base.store, head))
    verdict = move.compare_with(recorded)
    if verdict is Verdict.REFUSE:
        raise refused(move, recorded, url)
    return verdict is Verdict.APPLY


def is_new(write_set: WriteSet, head: Manifest) -> bool:
    """Return whether none of a write set's transactions is committed; raise if only some are."""
    count = len(write_set.transactions)
    known_transactions = [
        transaction for transaction in write_set.transactions if head.has(transaction)
    ]
    if known_transactions and len(known_transactions) < count:
        raise ContentionError(
            f"of {count} transactions that were to be one version of '{write_set.base.store.url}', "
            f"{len(known_transactions)} are in the table already (for example number "
            f"{known_transactions[0].number} of '{known_transactions[0].writer}'). Nothing was "
            "committed.",
            hint="stage the others again without the rows of those.",
        )
    return not known_transactions


def require_placed(write_set: WriteSet) -> None:
    """Raise if an epoch's truncate would leave the rows before it in the table."""
    if write_set.truncated is None:
        return
    if write_set.overwrite or write_set.late_rows is LateRows.APPLY:
        raise DataError(
            "the rows hold a truncate, and the write replaces the contents or applies late "
            "rows, so that what is before the truncate would stay. Nothing was committed.",
            hint="use mode 'append' and no lateRows=apply, or another 'onTruncate'.",
        )


def require_no_gap(transaction: Transaction, head: Manifest, url: str) -> None:
    """Raise for a query's batch if earlier batches are not in the table."""
    if not head.lacks(transaction):
        return
    last = head.transactions.get(transaction.writer)
    known_range = "none of them" if last is None else f"those up to {last}"
    raise OtherTableError(
        f"'{transaction.writer}' writes its batch {transaction.number}, so that the table at "
        f"'{url}' must hold all batches before it; found {known_range}. Nothing was committed.",
        hint="was the table removed, made anew or restored from an older copy, or is this the "
        "checkpoint of a query that wrote elsewhere? Put the table back, or give the query a "
        "new checkpointLocation, so that it begins anew. To go on without what is missing, "
        f"give {setting('allowMissingBatches', 'true')}.",
        path=url,
    )


def _require_remembered(transaction: Transaction, head: Manifest, url: str) -> None:
    """Raise for an epoch whose writer's commits the table has forgotten."""
    if not head.has_forgotten(transaction.writer):
        return
    raise DataLossError(
        f"'{transaction.writer}' has written to '{url}' and was silent for so long that it was "
        f"forgotten: whether its epoch {transaction.number} is in the table cannot be told. "
        "Nothing was committed.",
        hint="look at the table; then write under another name (another 'txnAppId', or a query "
        "with a new checkpointLocation that begins behind what the table has).",
        writer=transaction.writer,
    )


def _require_unfenced(write_set: WriteSet, head: Manifest, url: str) -> None:
    """Raise for an epoch whose staged files a vacuum may have removed as orphans."""
    versions = [staged_task.base_version for staged_task in write_set.staged if staged_task.files]
    if versions and not head.accepts(min(versions)):
        raise ContentionError(
            f"the epoch was planned on version {min(versions)} of '{url}', and what was planned "
            f"before version {max(head.since, head.fence)} is given up by now. Nothing was "
            "committed.",
            hint="write it again; a query that is restarted does. If a single batch takes so "
            "long, run 'upsertflow expire' and 'vacuum' with a longer --retain and --grace.",
        )


PAUSE_S = 0.05
PAUSE_S_MAX = 1.0
"""Maximum pause between lease reads, each a few requests: one per second is harmless."""

Sleep = Callable[[float], None]

Guard = Callable[[Manifest], UpsertFlowError | None]


class Admission:
    """Admits or rejects one write's epochs.

    Caps are checked before staging and right before each put, so a backlog never exceeds them.
    Pressure is checked before staging only: a later refusal would waste staged work. Committed
    epochs count as done, so a caller checks for those first.

    Parameters
    ----------
    log : Log
    store : Store
    counter : BacklogCounter
        This table's counter; its counts are cached for the next write.
    gauge : PressureGauge, optional
        This table's gauge. None: the write ignores pressure.
    wait_ms : int
        Maximum total wait, if the table waits.
    waits_for_relief : bool
        Whether to wait also when rejected by pressure.
    sleep : callable, optional
        Sleeps for the given seconds.
    guard : callable, optional
        Returns why this write may not follow a version; called right before each put.
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
        """Wait if necessary, then return the version after which there is room for an epoch."""
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
        """Return why an epoch may not follow a version, None if it may."""
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
        report = self._gauge.refusing(self._store, self._log.now_ms())
        if report is None:
            return None
        return ThrottledError.of(
            self._store.url,
            consumer=report.consumer,
            pressure=report.pressure,
            retry_after_ms=report.retry_after_ms,
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
        backlog = self._counter.count(lease, self._log, head, caps)
        if caps.admits(epochs=backlog.epochs + 1, bytes=backlog.bytes + bytes_added):
            return None
        return TableFullError.of(
            url,
            epochs=backlog.epochs,
            bytes=backlog.bytes,
            epochs_max=caps.epochs,
            bytes_max=caps.bytes,
            upper=head.upper,
            consumer=backlog.consumer,
            version=backlog.version,
        )

    def _pause(self) -> None:
        pause_s = min(self._pause_s, self._left_s)
        self._left_s -= pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        self._sleep(pause_s)
