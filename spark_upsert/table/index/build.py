"""Index updates: the table's net changes since the shown version become one epoch of the index.

Invariant: an index showing ``v`` has the entries ``(c, k)`` of the rows at ``v`` in which ``c`` is
not null. Entries and version are in one commit.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.durations import Fields
from spark_upsert.core.keys import equal_rows
from spark_upsert.core.schema import CHANGE_DIFF, CHANGE_TYPE, TableSchema
from spark_upsert.errors import CorruptionError, masked
from spark_upsert.store import Store
from spark_upsert.table.changelog.changes import EpochRange, RangeBoundary, cut_into_ranges
from spark_upsert.table.changelog.read import (
    CHANGE_NAMES,
    PREIMAGE,
    ChangeOptions,
    Deduplication,
    read_changes,
)
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Draft, Kind, Manifest, TableVersion
from spark_upsert.table.log.properties import (
    INDEX_BY,
    covered_version,
    index_schema,
    indexed_columns,
    with_covered_version,
)
from spark_upsert.table.log.storage import Clock
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.commands import DecodedRows, to_commands
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet, remove_runs

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """The result of one index update step."""

    shows: int | None
    """The table version now covered by the index; None if the index is unusable."""
    versions_left: int
    """The number of table versions after ``shows``."""
    is_done: bool
    """Whether the index is up to date, or this step has advanced it."""
    is_too_much: bool = False
    """Whether a step would have exceeded the limit. If both flags are false, another process was
    faster.
    """


def advance(
    index: Index, *, rows_max: int | None = None, rebuild: bool = False, threads: int = 1
) -> Advance:
    """Update an index by one step towards the table's newest version, or build it.

    Parameters
    ----------
    index : Index
    rows_max : int, optional
        Maximum table entries to read: a step ends before a version exceeding it. By default
        unlimited.
    rebuild : bool
        Whether to build it from scratch.
    threads : int
        Maximum pieces computed in parallel.
    """
    index_head = index.try_head() or _create_index(index)
    head = index.table_log.head()
    index_head = _widen_types(head.schema, index, index_head)
    # For this head: another process may have advanced the index meanwhile.
    usable = None if rebuild else index.usable(index_head)
    if usable is not None and usable.version >= head.version:
        return Advance(shows=usable.version, versions_left=0, is_done=True)
    if usable is None:
        reached: TableVersion | None = head.version_ref
        is_done = is_within = _is_within(_rows(head), rows_max)
        if is_done:
            rows = _puts_for_rows(index, head, index_head.schema)
            is_done = _commit_entries(index, index_head, rows, head.version_ref, overwrite=True)
    else:
        reached = _choose_target(index, usable, head, rows_max)
        is_done = is_within = reached is not None
        if reached is not None:
            commands = _commands_for_changes(
                index, usable, reached, head, index_head.schema, threads
            )
            is_done = _commit_entries(index, index_head, commands, reached, threads=threads)
    now = reached if is_done else usable
    left = head.version + 1 if now is None else head.version - now.version
    shows = None if now is None else now.version
    return Advance(shows=shows, versions_left=left, is_done=is_done, is_too_much=not is_within)


def _create_index(index: Index) -> Manifest:
    """Create the index, empty and not yet usable."""
    schema = index_schema(
        index.table_log.head().schema, index.column, hash_seed=secrets.randbits(64)
    )
    # An index has no late rows, so it needs no tombstones.
    draft = Draft(kind=Kind.CREATE, schema=schema, properties={"tombstoneRetention": "0 epochs"})
    index.log.create(draft)
    return index.log.head()


def _widen_types(table: TableSchema, index: Index, own: Manifest) -> Manifest:
    """Widen the index's column types to the table's column types."""

    def propose(head: Manifest) -> Draft | None:
        wanted_schema = index_schema(table, index.column)
        schema = head.schema.accept(wanted_schema.columns, merge=True)
        if schema == head.schema:
            return None
        return Draft(kind=Kind.ALTER, schema=schema, live_rows=head.live_rows)

    if propose(own) is None:
        return own
    index.log.append(propose)
    return index.log.head()


# -- how far ------------------------------------------------------------------------------


def _choose_target(
    index: Index, covered: TableVersion, head: Manifest, rows_max: int | None
) -> TableVersion | None:
    """Return the last version reachable in a step; None if the next one exceeds the limit."""
    rows, last = 0, covered.version
    for commit in index.table_log.commits(covered.version + 1, head.upper):
        rows += _cost(index, commit)
        if not _is_within(rows, rows_max):
            break
        last = commit.version
    return None if last == covered.version else index.table_log.version_ref(last)


def _cost(index: Index, commit: Commit) -> int:
    """Return the entry count to read for a version's changes."""
    if not commit.is_epoch:
        return 0
    before = index.table_log.before(commit.version) if commit.kind is Kind.OVERWRITE else None
    return _rows(before) + sum(slice_.file.rows for slice_ in commit.slices())


def _rows(manifest: Manifest | None) -> int:
    return 0 if manifest is None else manifest.slice_list.rows


def _is_within(rows: int, rows_max: int | None) -> bool:
    return rows_max is None or rows <= rows_max


# -- what --------------------------------------------------------------------------------


def _puts_for_rows(index: Index, head: Manifest, schema: TableSchema) -> Iterator[pa.RecordBatch]:
    """Yield puts for all table rows with a value in the indexed column."""
    for batch in Snapshot(index.table_store, head).read(schema.keys):
        yield _index_commands(schema, batch.filter(pc.is_valid(batch.column(index.column))))


def _commands_for_changes(
    index: Index,
    covered: TableVersion,
    reached: TableVersion,
    head: Manifest,
    schema: TableSchema,
    threads: int,
) -> Iterator[pa.RecordBatch]:
    """Yield index commands for the changes after ``covered`` up to ``reached``, in version order."""
    lower, upper = covered.version + 1, reached.version + 1
    epoch_ranges, mode = _epoch_ranges(index, lower, upper, head.schema)
    options = ChangeOptions(columns=schema.keys, deduplication=mode)
    for epoch_range in epoch_ranges:
        for batch in read_changes(index.table_store, epoch_range, options, threads=threads):
            yield _index_commands(schema, _value_changes(batch, index.column))


def _epoch_ranges(
    index: Index, lower: int, upper: int, schema: TableSchema
) -> tuple[list[EpochRange], Deduplication]:
    """Return the net changes, or all changes where net changes would compare the complete table."""
    log = index.table_log
    epoch_ranges = cut_into_ranges(log, lower, upper, schema, net=True)
    if any(epoch_range.cut is RangeBoundary.NET for epoch_range in epoch_ranges):
        epoch_ranges = cut_into_ranges(log, lower, upper, schema)
        return epoch_ranges, Deduplication.DROP_CARRYOVERS
    return epoch_ranges, Deduplication.NET_CHANGES


def _value_changes(changes: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """Keep changes with a value in the column; drop updates with an unchanged value."""
    values = changes.column(column)
    keep = np.asarray(pc.is_valid(values))
    kinds = changes.column(CHANGE_TYPE)
    before = np.flatnonzero(np.asarray(pc.equal(kinds, CHANGE_NAMES[PREIMAGE])))
    # An update's new row directly follows its old one.
    old, new = (values.take(pa.array(row_indices)) for row_indices in (before, before + 1))
    same = before[equal_rows([old], [new])]
    keep[same] = keep[same + 1] = False
    return changes.filter(pa.array(keep))


def _index_commands(schema: TableSchema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return a delete for each retracted row and a put for each other row."""
    gone = np.zeros(rows.num_rows, dtype=np.bool_)
    if CHANGE_DIFF in rows.schema.names:
        gone = rows.column(CHANGE_DIFF).to_numpy() < 0
    columns = {name: rows.column(name) for name in schema.keys}
    decoded = DecodedRows(
        columns=columns, order=[], tombstones=gone, raw_values=lambda _: pa.nulls(0, pa.binary())
    )
    return to_commands(schema, decoded)


# -- the commit ----------------------------------------------------------------------------


def _commit_entries(
    index: Index,
    own: Manifest,
    commands: Iterable[pa.RecordBatch],
    covered: TableVersion,
    *,
    overwrite: bool = False,
    threads: int = 1,
) -> bool:
    """Commit entries and their covered version; False if another process was faster."""
    base, was = Snapshot(index.store, own), covered_version(own)
    staged = stage(base, commands, overwrite=overwrite, threads=threads)
    epoch = WriteSet(base=base, staged=(staged,), overwrite=overwrite)

    def propose(head: Manifest) -> Draft | None:
        if (
            covered_version(head) != was
            or head.schema != own.schema
            or not head.accepts(own.version)
        ):
            return None
        index.log.require_descent(head, own.version_ref, "the index")
        sealed = epoch.seal(head, index.log.commits(own.upper, head.upper))
        return replace(sealed.draft, properties=with_covered_version(head, covered))

    if index.log.append(propose) is None:
        remove_runs(index.store, epoch.files)
        return False
    return True


STEP_ROWS = 1 << 20
"""Minimum limit for the table entries read by the step after a commit."""

_COMMIT_FACTOR = 4
"""The step's limit as a multiple of the commit's row count, if that exceeds `STEP_ROWS`."""


_RACES_MAX = 3
"""Maximum lost races; after each, another process has advanced the index."""


class Indexes:
    """One table's indexes.

    Parameters
    ----------
    log : Log
        The table's log.
    store : Store
    clock : callable
    compact : callable
        Runs at most one due compaction in an index, given its store.
    """

    def __init__(
        self, log: Log, store: Store, *, clock: Clock, compact: Callable[[Store], object]
    ) -> None:
        self._log = log
        self._store = store
        self._clock = clock
        self._compact = compact
        self._known: dict[str, Index] = {}
        self.failures = 0
        """Number of failed steps in this object; the table proceeded without them."""

    def of(self, head: Manifest) -> list[Index]:
        """Return a table version's declared indexes, built or not."""
        return [self._index(column) for column in indexed_columns(head.schema, head.properties)]

    def _index(self, column: str) -> Index:
        if column not in self._known:
            self._known[column] = Index(self._log, self._store, column, clock=self._clock)
        return self._known[column]

    def usable(self, head: Manifest, column: str) -> Index | None:
        """Return the index on a column, or None if no usable one exists at present."""
        for index in self.of(head):
            if index.column == column:
                try:
                    return None if index.covered_version() is None else index
                except CorruptionError as error:
                    self.note(column, error)
        return None

    def follow(self, commit: Commit) -> None:
        """Update the indexes after a commit, within a limit on the work; raises no error."""
        cached_head = self._log.cached_head
        # After the commit creating the table, no head is cached yet.
        properties = (commit.properties or {}) if cached_head is None else cached_head.properties
        if not properties.get(INDEX_BY):
            return
        try:
            self._follow(cached_head or self._log.head(), commit)
        except Exception as error:  # noqa: BLE001 - an index is never worth a commit
            self.note(properties[INDEX_BY], error)

    def _follow(self, head: Manifest, commit: Commit) -> None:
        written = sum(file.rows for file in commit.added)
        rows_max = max(STEP_ROWS, _COMMIT_FACTOR * written)
        for index in self.of(head):
            try:
                done = self._advance(index, rows_max=rows_max)
                self._compact(index.store)
            except Exception as error:  # noqa: BLE001 - an index is never worth a commit
                self.note(index.column, error)
            else:
                if done.is_too_much:
                    self._warn_lagging(index, done)

    def note(self, column: str, error: Exception) -> None:
        """Count and log an error without failing the caller."""
        self.failures += 1
        fields = Fields(path=self._store.url, column=column, failures=self.failures)
        _LOGGER.warning("index not kept up: %s error=%s", fields, masked(f"{error!r}"))

    def _warn_lagging(self, index: Index, done: Advance) -> None:
        fields = Fields(
            path=self._store.url,
            column=index.column,
            shows=done.shows,
            versions_left=done.versions_left,
        )
        _LOGGER.warning("index left behind, run 'upsertflow index': %s", fields)

    def bring_up(self, head: Manifest, *, rebuild: bool = False) -> Iterator[tuple[Index, Advance]]:
        """Update all indexes, or build them, without a limit; yield each result."""
        for index in self.of(head):
            yield index, self._advance(index, rebuild=rebuild)

    def _advance(
        self, index: Index, *, rows_max: int | None = None, rebuild: bool = False
    ) -> Advance:
        """Run a step; if another process was faster, run the next step on its result."""
        done = advance(index, rows_max=rows_max, rebuild=rebuild)
        for _ in range(_RACES_MAX):
            if done.is_done or done.is_too_much:
                break
            done = advance(index, rows_max=rows_max)
        return done
