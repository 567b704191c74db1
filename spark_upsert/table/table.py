"""The class `Table`: the entry point to a table for Python programs and the Spark adapters.

>>> import pyarrow as pa, tempfile
>>> table = Table.create(tempfile.mkdtemp() + "/t", pa.schema({"id": pa.int64()}), keys=["id"])
>>> table.upsert(pa.table({"id": [1, 2]})).version
1
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from threading import Lock
from typing import Any, TypeVar

import pyarrow as pa

from spark_upsert.core.merge_engines import MergeEngine
from spark_upsert.core.names import find_columns, names_of
from spark_upsert.core.python_values import (
    duration_argument,
    member_argument,
    optional,
    version_argument,
    whole_argument,
)
from spark_upsert.core.schema import ErrorPolicy, OnUnknown, Scope, TableSchema, Ties
from spark_upsert.errors import (
    OptionError,
    SchemaError,
    TableExistsError,
)
from spark_upsert.store import Store
from spark_upsert.store.open import open_store
from spark_upsert.table import maintenance, row_ttl, schema_changes
from spark_upsert.table.arguments import (
    GivenRows,
    as_keys,
    as_table,
    deletes_of,
    merged,
    with_columns_only,
    with_marks,
)
from spark_upsert.table.compaction import CompactionResult, Job, commit_compactions, due_jobs
from spark_upsert.table.compaction.worker import VERSION_JOBS_MAX
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.log import remove_unused
from spark_upsert.table.log.manifest import Commit, Manifest, Transaction
from spark_upsert.table.log.properties import (
    FULL_WAIT_MS,
    LateRows,
    checked,
)
from spark_upsert.table.log.snapshot import LogSnapshot
from spark_upsert.table.log.storage import Clock
from spark_upsert.table.maintenance import Repairs, repair
from spark_upsert.table.observers import PublicationResult, commit_observer
from spark_upsert.table.published import is_published, require_place, vacuum_mirrors
from spark_upsert.table.retention import expiry
from spark_upsert.table.retention.expiry import (
    GRACE_MS,
    LEASE_MS,
    SAFETY_MS,
    WRITERS_MS,
    Expiry,
    VacuumResult,
)
from spark_upsert.table.retention.lag import BacklogCounter, PressureGauge, PressureReport, reports
from spark_upsert.table.retention.leases import Lease, hold, keep_held, leases, release
from spark_upsert.table.row_ttl import ExpiredRows
from spark_upsert.table.state.check import Report
from spark_upsert.table.state.fold import as_collected
from spark_upsert.table.state.prepared import PreparedFiles
from spark_upsert.table.table_reader import TableReader
from spark_upsert.table.write import group_commit
from spark_upsert.table.write.commands import GONE, Envelope
from spark_upsert.table.write.commit import commit
from spark_upsert.table.write.guards import Admission, Guard, Sleep
from spark_upsert.table.write.write_set import StagedRuns, WriteSet, restoration

T = TypeVar("T")


class Table(TableReader):
    """A keyed table and its changelog.

    Parameters
    ----------
    store : Store
        The table's folder; `Table.open` and `Table.create` take a path instead.
    clock : callable, optional
        Returns seconds since 1970, for commit timestamps.
    threads : int
        Maximum threads of one `upsert`, `changes` or `iter_changes`.
    sleep : callable, optional
        Waits for some seconds while a full table makes no room.
    pressure : callable, optional
        Returns the load from 0 to 1; under load, a group commit waits longer for further upserts
        (`commit_window_ms`). By default the load reported by consumers, if the table respects it.

    Notes
    -----
    In all reads, `columns` gives the output order and defaults to all columns, and `version`
    defaults to the newest.

    Thread-safe. Concurrent upserts on one object share versions (`upsert`).
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock = time.time,
        threads: int = 1,
        sleep: Sleep = time.sleep,
        pressure: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(
            store, clock=clock, threads=threads, sleep=sleep, compact_index=self._compact_index
        )
        self._sleep = sleep
        self._clock = clock
        self._backlog = BacklogCounter()
        self._gauge = PressureGauge()
        self._pressure = pressure or (lambda: self._gauge.pressure(self.log.now_ms()))
        self._made_appends: group_commit.Appends | None = None
        self._making = Lock()

    def __repr__(self) -> str:
        manifest = self.log.try_head()
        return f"Table({self.store.url!r}, {manifest or 'absent'})"

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        storage_options: Mapping[str, str] | None = None,
        threads: int = 1,
        pressure: Callable[[], float] | None = None,
    ) -> Table:
        """Return the table at a path.

        Raises
        ------
        TableNotFoundError
            There is none.
        """
        table = cls(open_store(path, storage_options), threads=threads, pressure=pressure)
        table.log.head()
        return table

    @classmethod
    def create(
        cls,
        path: str | PathLike[str],
        columns: pa.Schema,
        *,
        keys: Sequence[str],
        sequence_by: Sequence[str] = (),
        scope: Scope = Scope.TABLE,
        engine: MergeEngine | None = None,
        on_error: ErrorPolicy = ErrorPolicy.FAIL,
        ties: Ties | None = None,
        hash_prefix: int = 0,
        on_unknown: OnUnknown = OnUnknown.FAIL,
        properties: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        allow_non_empty_path: bool = False,
    ) -> Table:
        """Create a table at a path.

        Parameters
        ----------
        columns : pyarrow.Schema
            The table's columns.
        keys : str or sequence of str
            Columns identifying a row. A string is one name, here and for all name arguments.
        sequence_by : str or sequence of str
            Columns ordering a key's commands; without them arrival order applies.
        scope : Scope
            Whether order keys apply across epochs.
        engine : MergeEngine, optional
            How a key's commands are merged; a collected column becomes a list.
        on_error : ErrorPolicy
            Handling for a row that cannot be applied.
        ties : Ties, optional
            Rule for equal order keys; by default the later row wins.
        hash_prefix : int
            Number of leading key columns, fewer than all, by which rows are clustered, so
            `having_prefix` reads only the matching range.
        on_unknown : OnUnknown
            Rule for a row with a value that no command has set.
        properties : mapping of str to str, optional
            For example ``{"tombstoneRetention": "7 days"}``.
        allow_non_empty_path : bool
            Whether the folder may contain foreign files, or be in a Delta table's folder.

        Raises
        ------
        TableExistsError
            The table exists; `ensure` opens it if it is the same.
        OptionError
            The folder is not empty.
        """
        table = cls(open_store(path, storage_options))
        ordered_by = names_of(sequence_by, "sequence_by")
        names = find_columns(ordered_by, columns.names, role="sequence_by column")
        order = [columns.field(name) for name in names]
        columns = as_collected(columns, engine or MergeEngine())
        schema = TableSchema.of(
            columns,
            keys=keys,
            order=order,
            scope=member_argument("scope", scope, Scope),
            engine=engine,
            on_error=member_argument("on_error", on_error, ErrorPolicy),
            ties=None if ties is None else member_argument("ties", ties, Ties),
            hash_prefix=whole_argument("hash_prefix", hash_prefix),
            on_unknown=member_argument("on_unknown", on_unknown, OnUnknown),
        )
        if not table._make(schema, properties, allow_non_empty_path=allow_non_empty_path):
            raise TableExistsError.at(table.store.url)
        return table

    def ensure(
        self,
        schema: TableSchema,
        properties: Mapping[str, str] | None = None,
        *,
        allow_non_empty_path: bool = False,
        internal: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Return the newest manifest; create the table with this schema if it does not exist.

        Parameters
        ----------
        internal : mapping of str to str, optional
            Properties reserved to the code (`table.log.properties.INTERNAL`).

        Raises
        ------
        TableExistsError
            A table with other keys, another order or other rules exists.
        OptionError
            No table exists, and its folder is not empty.
        """
        if self.log.try_head() is None:
            self._make(schema, properties, internal, allow_non_empty_path=allow_non_empty_path)
        manifest = self.log.head()
        if not manifest.schema.has_rules_of(schema):
            raise TableExistsError.at(self.store.url)
        return manifest

    def _make(
        self,
        schema: TableSchema,
        properties: Mapping[str, str] | None,
        internal: Mapping[str, str] | None = None,
        *,
        allow_non_empty_path: bool,
    ) -> bool:
        """Create the table, without an epoch; return False if it exists."""
        if not allow_non_empty_path and self.log.try_head() is None:
            schema_changes.require_free(self.store)
        unborn = self.unborn(schema, properties)
        unborn = replace(unborn, properties={**unborn.properties, **(internal or {})})
        require_place(self, unborn.properties)
        return schema_changes.create(self.log, unborn)

    @staticmethod
    def unborn(
        schema: TableSchema,
        properties: Mapping[str, str] | None = None,
        *,
        table_id: str | None = None,
    ) -> Manifest:
        """Return an uncreated table, which the first commit of an epoch staged on it creates
        (`commit`).

        It gets a random identity and hash seed, unless an identity is given with at least 16
        hexadecimal digits: then all tables created from it are one table. A schema with a hash seed
        keeps it.
        """
        return schema_changes.unborn_manifest(schema, properties, table_id)

    def alter(
        self,
        schema: TableSchema,
        properties: Mapping[str, str] | None = None,
        *,
        upon: TableSchema | None = None,
    ) -> Manifest:
        """Change the schema and set properties, unless they already match.

        Columns added or widened since by another writer, and a quarantine, are retained.

        Parameters
        ----------
        schema : TableSchema
        properties : mapping of str to str, optional
        upon : TableSchema, optional
            The table schema from which ``schema`` was derived. Then only the differences between
            both are applied, and a column dropped since by another writer stays dropped.

        Raises
        ------
        SchemaError, OptionError
            Columns or properties do not fit the existing table.
        MirroredTypeError, NotMirroredError, OtherTableError
            The table is or will be published, and would have no mirror, or not at that location.
        """
        checked_properties = checked(properties, self.log.head().properties)
        require_place(self, checked_properties)
        return schema_changes.alter(self.log, schema, checked_properties, upon)

    def drop_columns(self, *names: str) -> Manifest:
        """Give up value columns; nothing is rewritten, and their names never come back.

        Raises
        ------
        SchemaError
            There is no such column, or the table needs it (`table.schema_changes`).
        """
        return schema_changes.drop_columns(self.log, names)

    # -- writing ---------------------------------------------------------------------

    def upsert(
        self,
        rows: GivenRows,
        *,
        deletes: str | None = None,
        columns: Sequence[str] | None = None,
        unchanged: Mapping[str, Any] | None = None,
        merge_schema: bool = False,
        envelope: Envelope | None = None,
        transaction: Transaction | None = None,
        overwrite: bool = False,
        late_rows: LateRows = LateRows.FAIL,
        full_wait_ms: int = FULL_WAIT_MS,
        disable_backpressure: bool = False,
    ) -> Commit | None:
        """Apply rows as one epoch, which concurrent appends by other threads may share.

        An append commits immediately if no other append is in progress. Appends that arrive
        meanwhile wait; then the first of them commits all as one version with all their
        transactions (group commit). They behave as if executed one after the other, and each
        returns its own result (`table.write.group_commit`).

        Parameters
        ----------
        rows : pyarrow.Table, pyarrow.RecordBatch, or an object with ``__arrow_c_stream__``
            The table's columns, the order columns and, if any, the column ``deletes``. Any Arrow
            source is accepted: a pandas or Polars data frame, a DuckDB relation, a reader.
        deletes : str, optional
            Boolean column marking deletes.
        columns : str or sequence of str, optional
            The value columns that the rows set. All others stay unchanged, and the rows may lack
            them. Not with ``unchanged`` or ``envelope``.
        unchanged : mapping, optional
            For value columns, a mask with a boolean for each row, or the name of a boolean column
            in the rows: true leaves the value unchanged, and the value in the row is ignored. Null
            is false. Deletes ignore the masks. Not with ``envelope``.
        merge_schema : bool
            Whether the table may gain columns and wider types, and rows may lack columns, which
            are null then. Ignored with ``envelope``.
        envelope : Envelope, optional
            Decodes rows other than plain columns; then ``deletes`` is ignored.
        transaction : Transaction, optional
            Makes the call idempotent: a number already committed by this writer is skipped.
        overwrite : bool
            Whether the rows replace the contents.
        late_rows : LateRows
            The policy for rows so old that their deletes may be forgotten.
        full_wait_ms : int
            Maximum wait for room in a full table with ``onFull=wait``.
        disable_backpressure : bool
            Whether to write although a consumer is overloaded and the table respects that.

        Returns
        -------
        Commit or None
            None if the transaction is already committed. If the version is shared, ``counters``
            and ``transactions`` cover only these rows; the log record
            (``log.commit(version)``) covers all.

        Raises
        ------
        DataError, SchemaError
            These rows are invalid; other appends sharing the version are not affected.
        TableFullError, BatchTooLargeError
            There is no room in the table (`table.write.guards`); nothing was stored.
        ThrottledError
            A consumer is overloaded; nothing was stored. Retry after its ``retry_after_ms``.
        StorageError, OSError, ContentionError
            As in `commit`; all appends sharing the version raise. With a transaction, retry.
        """
        if unchanged and envelope is not None:
            raise OptionError.conflict("unchanged", "envelope", why="an envelope decides it")
        taken = as_table(rows)
        if columns is not None:
            if unchanged or envelope is not None:
                other = "unchanged" if unchanged else "envelope"
                raise OptionError.conflict("columns", other, why="each says what the rows set")
            taken, unchanged = with_columns_only(self.schema, taken, columns)
        taken, marks = with_marks(taken, unchanged or {})
        apply = partial(
            self._appends.append,
            taken,
            deletes=deletes,
            envelope=envelope,
            transaction=transaction,
            overwrite=overwrite,
            late_rows=member_argument("late_rows", late_rows, LateRows),
            full_wait_ms=duration_argument("full_wait_ms", full_wait_ms),
            heeds_pressure=not disable_backpressure,
            unchanged=marks,
        )
        if not merge_schema or envelope is not None:
            return apply(may_lack=columns is not None)
        while True:
            table_schema = self.schema
            target_schema = merged(table_schema, taken.schema, deletes, marks.values())
            if target_schema != table_schema:
                self.alter(target_schema, upon=table_schema)
            try:
                return apply(may_lack=True)
            except SchemaError:
                table_schema = self.schema
                if merged(table_schema, taken.schema, deletes, marks.values()) == table_schema:
                    raise
                # Another writer has dropped a column since: the next merge raises for it.

    @property
    def _appends(self) -> group_commit.Appends:
        """The group commit shared by all threads' appends, created by the first one."""
        with self._making:
            if self._made_appends is None:
                self._made_appends = group_commit.Appends(self, self._pressure)
            return self._made_appends

    def delete(
        self,
        keys: Any = None,
        *,
        filter: str | None = None,
        transaction: Transaction | None = None,
    ) -> Commit | None:
        """Delete rows by key or by filter, as one epoch.

        The newest version determines the rows. In a table with an order, a row concurrently
        replaced by another writer's later one remains; in other tables the delete comes last.

        Parameters
        ----------
        keys : object, optional
            One key or many, as in `get`. Keys without a row are ignored.
        filter : str, optional
            SQL, as in `scan`, in place of keys.
        transaction : Transaction, optional
            As in `upsert`.

        Returns
        -------
        Commit or None
            None if no row matches and there is no transaction to record, or if the
            transaction is already committed.

        Raises
        ------
        OptionError
            Neither or both of keys and filter are given; or no delete can win over its row,
            because the table prefers the earlier of two equal order keys (``ties``).
        SchemaError, PlanError
            As in `get` and `scan`.
        DataError, TableFullError, ThrottledError, ContentionError
            As in `upsert`.

        Notes
        -----
        Holds all deleted rows' keys in memory. `expire` and `vacuum` remove the data in older
        versions.
        """
        if (keys is None) == (filter is None):
            raise OptionError(
                "a delete is of keys or of a filter: expected one of them, found "
                f"{'none' if keys is None else 'both'}.",
                hint="delete(keys), or delete(filter='id IN (1, 2)'); of all rows, filter='TRUE'.",
            )
        snapshot = self.at()
        schema = snapshot.manifest.schema
        if filter is None:
            key_rows = as_keys(schema, keys)
        else:
            matches = self.scan(schema.keys, filter=filter, version=snapshot.manifest.version)
            key_rows = as_keys(schema, matches.read_all())
        rows = deletes_of(snapshot, key_rows)
        if not rows.num_rows and transaction is None:
            return None
        # Even without rows: a later repetition must not delete newer rows.
        return self.upsert(rows, deletes=GONE, transaction=transaction)

    def admission(
        self,
        full_wait_ms: int = FULL_WAIT_MS,
        *,
        heeds_pressure: bool = True,
        waits_for_relief: bool = False,
        guard: Guard | None = None,
    ) -> Admission:
        """Return the admission check for one write (`Admission`)."""
        return Admission(
            self.log,
            self.store,
            self._backlog,
            self._gauge if heeds_pressure else None,
            wait_ms=duration_argument("full_wait_ms", full_wait_ms),
            waits_for_relief=waits_for_relief,
            sleep=self._sleep,
            guard=guard,
        )

    def commit(self, epoch: WriteSet, *, admission: Admission | None = None) -> Commit | None:
        """Seal an epoch: make it visible atomically, exactly once.

        An epoch staged on an uncreated table creates the table, by the same put.

        Parameters
        ----------
        epoch : WriteSet
        admission : Admission, optional
            Checks for room; by default with the usual wait.

        Returns
        -------
        Commit or None
            None if its transaction is already committed; the staged files are removed.

        Raises
        ------
        OtherTableError
            The epoch was staged on another table or another copy, or the table lacks earlier
            epochs, which its writer must have committed.
        ContentionError
            Another writer has created the table, or the epoch is too old for a commit.
        TableFullError, BatchTooLargeError
            There is no room. The staged files remain: commit again, or `discard` the epoch.
        """
        committed = commit(self.log, epoch, admission or self.admission())
        if committed is None:
            self.discard(epoch.staged)
        else:
            is_next = all(
                staged_task.base_version + 1 == committed.version for staged_task in epoch.staged
            )
            prepared = (
                staged_task.ahead for staged_task in epoch.staged if staged_task.ahead is not None
            )
            self._follow(
                committed,
                [run_files if is_next else run_files.without_deaths() for run_files in prepared],
            )
        return committed

    def _follow(self, committed: Commit | None = None, ahead: Iterable[PreparedFiles] = ()) -> None:
        """Update indexes and the mirror after a commit; their failures do not fail the commit."""
        if committed is not None:
            self._indexes.follow(committed)
        cached_head = self.log.cached_head or self.log.head()
        if is_published(cached_head.properties):
            version = None if committed is None else committed.version
            commit_observer().follow(self, version, ahead)

    def restore(self, version: int) -> Commit | None:
        """Restore the table to an earlier version, by an epoch with all retractions.

        Nothing is read or rewritten (`table.write.write_set`). Schema, properties and transactions
        are unchanged: a writing query continues with its next batch.

        Returns
        -------
        Commit or None
            None if the table already has that version's contents.

        Raises
        ------
        DataLossError
            The version is expired or does not exist.
        DataError
            The table materializes a view.
        """
        url = self.store.url
        version = version_argument("version", version)
        committed = self.log.append(lambda head: restoration(head, self.log.at(version), url))
        if committed is not None:
            self._follow(committed)
        return committed

    def discard(
        self, staged: Iterable[StagedRuns], compacted: Iterable[CompactionResult] = ()
    ) -> None:
        """Remove staged files, unless a version has come to reference them.

        Only if no commit can add the files any more: none was tried, or the last one has returned.
        A commit may have taken effect although it raised, or may still do so by a put in progress:
        commit again, or leave the files to a vacuum.

        Parameters
        ----------
        staged : iterable of StagedRuns
        compacted : iterable of CompactionResult
            Created by the same tasks, on the same version.
        """
        file_groups = [(staged_task.base_version, staged_task.files) for staged_task in staged]
        file_groups += [
            (compaction.base_version, tuple(s.file for s in compaction.added))
            for compaction in compacted
        ]
        files = [file for _, files in file_groups for file in files]
        base_version = min((version for version, _ in file_groups), default=0)
        remove_unused(self.store, self.log, files, base_version=base_version)

    # -- upkeep ----------------------------------------------------------------------

    def compact(self, *, full: bool = False, run: maintenance.Runner | None = None) -> int:
        """Compact runs until nothing is due; return the number of compactions.

        Parameters
        ----------
        full : bool
            Whether to leave one run per hash range, regardless of size.
        run : callable, optional
            Executes and commits the jobs elsewhere, for example in Spark tasks, and returns how
            many; by default this thread does it, one after the other.

        Notes
        -----
        Correctness does not depend on it: output superseded by another compaction is
        dropped, and a killed compaction's files are removed by the next vacuum.
        """
        return maintenance.compact(
            self.log, self.store, full=full, run=run, commit=self.commit_compactions
        )

    def compact_leased(self, base: Manifest, jobs: Iterable[Job]) -> int:
        """Run and commit compactions, sharing them with other processes; return how many.

        See `spark_upsert.table.maintenance.compact_leased`.
        """
        return maintenance.compact_leased(self.log, self.store, base, jobs, self.commit_compactions)

    def compaction_jobs(
        self, *, full: bool = False, look: LogSnapshot | None = None, is_share: bool = False
    ) -> list[Job]:
        """Return the due compactions, the smallest first; by default in the newest version.

        With ``is_share``, only those for the next batch (`compaction.policy.batch_share`).
        """
        if look is None:
            return due_jobs(self.log, self.log.now_ms(), full=full, is_share=is_share)
        with look:
            return due_jobs(look, self.log.now_ms(), full=full, is_share=is_share)

    def commit_compactions(self, compacted: Iterable[CompactionResult]) -> int:
        """Make compactions visible; returns how many. One with missing runs is dropped.

        Those of a list share versions; those of an iterator are committed one by one.
        """
        prepared: list[PreparedFiles | None] = []

        def noted() -> Iterator[CompactionResult]:
            for compaction in compacted:
                prepared.append(compaction.ahead)
                yield compaction

        per_version = VERSION_JOBS_MAX if isinstance(compacted, list) else 1
        count = commit_compactions(self.store, self.log, noted(), per_version=per_version)
        if count:
            self._follow(ahead=[run_files for run_files in prepared if run_files is not None])
        return count

    def expire(
        self,
        *,
        retain_versions: int | None = None,
        retain_ms: int | None = None,
        safety_ms: int = SAFETY_MS,
        writers_ms: int = WRITERS_MS,
    ) -> Expiry:
        """Give up versions no longer needed by a reader; see `retention.expiry.expire`.

        Then delete the expired rows (`expire_rows`), if the table has a ``rowTtl``. No file is
        removed yet: `vacuum` does that.
        """
        safety_ms = duration_argument("safety_ms", safety_ms)
        result = expiry.expire(
            self.store,
            self.log,
            retain_versions=optional(whole_argument, "retain_versions", retain_versions),
            retain_ms=optional(duration_argument, "retain_ms", retain_ms),
            safety_ms=safety_ms,
            writers_ms=duration_argument("writers_ms", writers_ms),
        )
        for _ in self.apply_to_indexes(
            # An index's older versions are never read.
            lambda index: index.expire(retain_versions=0, safety_ms=safety_ms)
        ):
            continue
        rows = self.expire_rows()
        return result if rows is None else replace(result, rows_deleted=rows.deletes)

    def expire_rows(self) -> ExpiredRows | None:
        """Delete the rows older than the property ``rowTtl`` allows; return None without it.

        Each is a retraction in the changelog, once. `expire` does the same.
        """
        return row_ttl.expire_rows(self)

    def repair_clock(self) -> Commit | None:
        """Repair version timestamps far in the future; see `Log.repair_clock`."""
        return self.log.repair_clock()

    def repair(self) -> Repairs:
        """Make a table readable in which an earlier release stored values without a reader.

        It drops only the columns that no release can read (`table.maintenance`). Call it on
        ``Table(open_store(path))``, because `Table.open` needs a readable log.
        """
        return repair(self.store, self.log)

    def vacuum(self, *, grace_ms: int = GRACE_MS, dry_run: bool = False) -> VacuumResult:
        """Remove files of expired versions and crashed writers; see `retention.expiry.vacuum`."""
        grace_ms = duration_argument("grace_ms", grace_ms)
        result = expiry.vacuum(self.store, self.log, grace_ms=grace_ms, dry_run=dry_run)
        for folder, vacuumed in self.apply_to_indexes(
            lambda index: index.vacuum(grace_ms=grace_ms, dry_run=dry_run)
        ):
            result = result.with_subfolder(vacuumed, folder)
        return vacuum_mirrors(self, result)

    def consumers(self) -> list[Lease]:
        """Return all consumers' leases, including lapsed ones."""
        return leases(self.store)

    def pressure(self) -> list[PressureReport]:
        """Return the current reports from overloaded consumers (`retention.lag.reports`)."""
        return reports(self.store, self.log.now_ms())

    def hold(self, consumer: str, version: int, *, ttl_ms: int = LEASE_MS) -> Lease:
        """Keep a version's state, and all changes after it, readable for a consumer.

        Raises
        ------
        DataLossError
            The version is expired already.
        VersionNotFoundError
            The version does not exist yet.
        """
        lease = self._lease(consumer, version, ttl_ms)
        hold(self.store, self.log, lease)
        return lease

    def _lease(self, consumer: str, version: int, ttl_ms: int) -> Lease:
        return Lease(
            consumer=consumer,
            version=version_argument("version", version),
            renewed_ms=self.log.now_ms(),
            ttl_ms=duration_argument("ttl_ms", ttl_ms, least=1),
        )

    def keep_held(self, consumer: str, version: int, *, ttl_ms: int = LEASE_MS) -> Lease:
        """Keep a version readable (`hold`), without a write if it is held for long enough."""
        lease = self._lease(consumer, version, ttl_ms)
        keep_held(self.store, self.log, lease)
        return lease

    def hold_all(self, consumer: str, *, ttl_ms: int = LEASE_MS) -> Lease:
        """Keep all readable versions readable, for example during a copy.

        Raises
        ------
        ContentionError
            Expiries were faster, again and again.
        """
        return expiry.retry_after_expiry(
            lambda: self.hold(consumer, self.log.head().since, ttl_ms=ttl_ms), self.store.url
        )

    def release(self, consumer: str) -> bool:
        """Drop a consumer's lease; return whether it had one."""
        return release(self.store, consumer)

    def check(self, on_progress: Callable[[int, int], object] | None = None) -> Report:
        """Verify all files, counts and orders required by readable versions, and the indexes.

        `on_progress` is called before each file with the number checked so far and the total.
        """
        return maintenance.check(self.log, self.store, self.indexes(), on_progress)

    # -- indexes ---------------------------------------------------------------------

    def build_indexes(self, *, rebuild: bool = False) -> list[Index]:
        """Update all indexes, and build missing ones.

        Commits update them automatically, except where too expensive: an index for a pre-existing
        table, or one with a large lag.

        Parameters
        ----------
        rebuild : bool
            Whether to rebuild all.
        """
        indexes = []
        for index, _ in self._indexes.bring_up(self.log.head(), rebuild=rebuild):
            self.open_index(index).compact()
            indexes.append(index)
        return indexes

    def apply_to_indexes(self, action: Callable[[Table], T]) -> Iterator[tuple[str, T]]:
        """Apply an action to each existing index, as a table; yield its folder and the result.

        Errors are recorded, not raised: an index must not block its table's maintenance.
        """
        for index in self.indexes():
            try:
                table = self.open_index(index)
                if table.log.try_head() is not None:
                    yield index.folder, action(table)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next build mends it
                self._indexes.note(index.column, error)

    def _compact_index(self, store: Store) -> None:
        index = Table(store, clock=self._clock)
        maintenance.compact_once(index.log, store, index.commit_compactions)

    def open_index(self, index: Index) -> Table:
        """Return an index's table."""
        return Table(index.store, clock=self._clock, threads=self.threads)

    # -- mirrors ---------------------------------------------------------------------

    def publish(self, to: str | None = None, **how: Any) -> PublicationResult:
        """Update the table's mirror, a Delta table, incrementally to the newest version.

        Parameters
        ----------
        to : str, optional
            The mirror location; by default from its properties, else its folder ``_delta``.
        **how
            ``rebuild=True`` rewrites it completely, ``change_feed=True`` adds a change feed,
            ``guard=False`` permits other writers, ``retention="2 days"`` is its versions'
            retention time, and ``storage_options`` has the settings for another location
            (`delta.follow.publish`).
        """
        return commit_observer().publish(self, to, **how)
