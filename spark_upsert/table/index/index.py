"""The index on one column (`Index`): proposed keys, the shown version, and its check."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.key_hash import HASH_END, hash_keys
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError, DataLossError, OtherTableError
from spark_upsert.plan.join_keys import codes, first_occurrences, is_among
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, TableVersion
from spark_upsert.table.log.properties import covered_version, index_folder, index_schema
from spark_upsert.table.log.storage import Clock
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.state.check import Finding, check
from spark_upsert.table.state.snapshot import CHUNK_ROWS, Snapshot


class KeysHaving(NamedTuple):
    """Keys proposed by an index."""

    keys: pa.RecordBatch
    """Distinct table keys, in key column order."""
    shows_version: int
    """The table version at which exactly these keys have rows with a requested value."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """A usable index version, the table version it indexes, and the newest table version.

    The table is read after the index, so its types can represent every key in the index.
    """

    index_manifest: Manifest
    indexed_version: TableVersion
    """The table version whose keys the index has."""
    table_manifest: Manifest
    """The newest table version."""


class Index:
    """The index on one column.

    Parameters
    ----------
    table_log : Log
    table_store : Store
    column : str
    clock : callable
        For the index's commits.
    """

    def __init__(self, table_log: Log, table_store: Store, column: str, *, clock: Clock) -> None:
        self.column = column
        self.table_log = table_log
        self.table_store = table_store
        self.folder = index_folder(column)
        self.store: Store = PrefixStore(table_store, self.folder)
        self._clock = clock
        self.log = Log(self.store, clock=clock)

    @classmethod
    def of(cls, store: Store, column: str) -> Index:
        """Return the index on a table's column, for a reading task."""
        return cls(Log(store), store, column, clock=time.time)

    def __repr__(self) -> str:
        return f"Index({self.column!r}, {self.store.url!r})"

    def try_head(self) -> Manifest | None:
        """Return the newest index manifest; None if the index was never built.

        Another process may have removed or rebuilt the index: then its old log is dropped.
        """
        try:
            return self.log.try_head()
        except OtherTableError:
            self.log = Log(self.store, clock=self._clock)
            return self.log.try_head()

    def covered_version(self) -> TableVersion | None:
        """Return the table version covered by the index; None if the index is unusable.

        It is unusable if it was never built, if its version is expired in the table, or if it
        belongs to another table: then it must be rebuilt.
        """
        index_head = self.try_head()
        return None if index_head is None else self.usable(index_head)

    def usable(self, index_manifest: Manifest) -> TableVersion | None:
        """Return the table version covered by an index manifest; None if it is unusable."""
        # The table is read after the index, so its head is never older.
        state = self._readable(index_manifest, self.table_log.head())
        return None if state is None else state.indexed_version

    def state(self, *, near: int | None = None) -> IndexState:
        """Return the newest index state, or an older one nearer to the table version ``near``."""
        index_head = self.try_head()
        state = None if index_head is None else self._readable(index_head, self.table_log.head())
        if state is None:
            raise DataLossError(
                f"the index on '{self.column}' at '{self.store.url}' shows no version of the table "
                "that could be compared with others.",
                hint="build it anew: upsertflow index PATH.",
            )
        return (
            state
            if near is None or near >= state.indexed_version.version
            else self._as_of(near, state)
        )

    def _readable(self, index_manifest: Manifest, table: Manifest) -> IndexState | None:
        """Return an index manifest's state; None if the given table version cannot use it."""
        table_ref = covered_version(index_manifest)
        is_expired = table_ref is None or table_ref.version < table.since
        if table_ref is None or is_expired or self.column not in table.schema.columns.names:
            return None
        try:
            self.table_log.require_descent(table, table_ref, "the index")
        except OtherTableError:
            return None
        return IndexState(index_manifest, table_ref, table)

    def keys_having(self, values: pa.Array) -> KeysHaving:
        """Return the keys whose rows have one of the given values in the column.

        The cost follows the number of matching keys, not the table size. All keys are in memory
        together; `iter_keys_having` returns them in pieces, for values with very many rows.
        """
        state = self.state()
        fields = pa.schema(
            [state.table_manifest.schema.columns.field(n) for n in state.table_manifest.schema.keys]
        )
        table = pa.Table.from_batches(self.keys_in(state, values), schema=fields).combine_chunks()
        columns = [column.combine_chunks() for column in table.columns]
        keys = pa.RecordBatch.from_arrays(columns, schema=table.schema)
        return KeysHaving(keys, state.indexed_version.version)

    def count(self, values: pa.Array) -> int:
        """Return the approximate number of proposed keys; raises as `keys_having`.

        The cost follows the number of values, not the number of keys.
        """
        return self._widened_snapshot(self.state()).count_having_prefix([values.drop_null()])

    def iter_keys_having(
        self, values: pa.Array, *, near: int | None = None
    ) -> tuple[int, Iterator[pa.RecordBatch]]:
        """Return the index's covered version, and the keys in pieces (`keys_having`).

        A piece has about `CHUNK_ROWS` keys, even if one value has more.
        """
        state = self.state(near=near)
        return state.indexed_version.version, self.keys_in(state, values)

    def keys_in(self, state: IndexState, values: pa.Array) -> Iterator[pa.RecordBatch]:
        """Return an index state's keys for the given values, in pieces."""
        return self._widened_snapshot(state).having_prefix(
            [values.drop_null()], state.table_manifest.schema.keys
        )

    def _widened_snapshot(self, state: IndexState) -> Snapshot:
        """Return an index state as a snapshot in the newest types; wider types keep the hashes."""
        seed = state.index_manifest.schema.hash_seed
        wide = index_schema(state.table_manifest.schema, self.column, hash_seed=seed)
        return Snapshot(self.store, replace(state.index_manifest, schema=wide))

    def _as_of(self, version: int, newest: IndexState) -> IndexState:
        """Return the newest index state covering no version after ``version``.

        By bisection, because the covered version only grows. If no such state is readable, the
        state covering the next version.
        """
        lower, upper = newest.index_manifest.since, newest.index_manifest.version
        latest_state, later = None, newest
        while lower < upper:
            middle = (lower + upper) // 2
            manifest = self.log.at(middle)
            at, state = covered_version(manifest), self._readable(manifest, newest.table_manifest)
            if at is not None and at.version > version:
                upper, later = middle, state or later
            else:
                lower, latest_state = middle + 1, state or latest_state
        return latest_state or later


class _EntrySums(NamedTuple):
    """Aggregates for comparing two sets of entries."""

    entries: int
    hashes: int


def check_index(index: Index) -> Iterator[Finding]:
    """Yield an index's errors; an unbuilt or unusable index has none.

    Index and table are compared by entry count and hash sum, so memory is bounded.
    """
    folder = index.folder
    try:
        index_head = index.try_head()
    except CorruptionError as error:
        yield Finding(place=folder, expected="a sound log", found=error.message)
        return
    if index_head is None:
        return
    for finding in check(index.store, index.log).findings:
        yield replace(finding, place=f"{folder}/{finding.place}")
    usable = index.usable(index_head)
    if usable is None:
        return
    names = index_head.schema.keys
    try:
        table = Snapshot(index.table_store, index.table_log.at(usable.version))
        expected, actual = (
            _sum_entries(snapshot, names) for snapshot in (table, Snapshot(index.store, index_head))
        )
    except (CorruptionError, DataLossError):
        return  # The table is damaged, the error is reported above, or a version expired meanwhile.
    if expected != actual:
        yield Finding(
            place=f"{folder}, version {index_head.version}",
            expected=f"the {expected.entries} keys of version {usable.version} of the table",
            found=f"{actual.entries} keys, or others (build it anew: 'upsertflow index --rebuild')",
        )


def _sum_entries(snapshot: Snapshot, names: tuple[str, ...]) -> _EntrySums:
    """Sum up the rows with a value in the first column."""
    count = hashes = 0
    for batch in snapshot.read(names):
        rows = batch.filter(pc.is_valid(batch.column(names[0])))
        count += rows.num_rows
        if rows.num_rows:
            hashes += int(np.sum(hash_keys(rows.columns, seed=0), dtype=np.uint64))
    return _EntrySums(count, hashes % HASH_END)


KeyBatch: TypeAlias = pa.RecordBatch
"""Table keys, in key column order."""


def rows_at(
    index: Index | None,
    snapshot: Snapshot,
    newest: TableSchema,
    column: str,
    values: pa.Array,
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield a version's rows with one of the given values in a column, in the version's types.

    Memory holds the bridge and one piece of keys, regardless of the row count. The table is read in
    wider types, which also represent the index's and the bridge's keys from other versions.
    """
    at = snapshot.manifest
    wide = at.schema.widened_to(newest)
    state = None if index is None else _readable_state(index, near=at.version)
    if state is not None:
        wide = wide.widened_to(state.table_manifest.schema)
    values = values.drop_null().cast(wide.columns.field(column).type)
    snapshot = replace(snapshot, manifest=replace(at, schema=wide))
    pieces = None
    if index is not None and state is not None:
        pieces = proposed(index, state, values, snapshot.manifest)
    read_names = [*names, *({column} - set(names))]
    if pieces is None:
        batches = snapshot.read(read_names)
    else:
        batches = (snapshot.look_up(keys.columns, read_names).rows for keys in pieces)
    fields = pa.schema([at.schema.columns.field(name) for name in names])
    for batch in batches:
        chosen = is_among([batch.column(column)], [values])
        if bool(chosen.any()):
            matches = batch.filter(pa.array(chosen)).select(list(names))
            yield matches if matches.schema == fields else matches.cast(fields)


def _readable_state(index: Index, *, near: int) -> IndexState | None:
    """Return the index state nearest to a table version; None if there is no usable one."""
    try:
        return index.state(near=near)
    except (DataLossError, CorruptionError):
        return None


def proposed(
    index: Index, state: IndexState, values: pa.Array, at: Manifest
) -> Iterator[KeyBatch] | None:
    """Return distinct keys in pieces, including all matches; None without a bridge.

    The bridge has the keys changed between the indexed version and ``at`` (`keys_between`).
    """
    between = keys_between(index, state.indexed_version.version, at)
    return None if between is None else _with_bridge(index.keys_in(state, values), between)


def _with_bridge(pieces: Iterator[KeyBatch], between: KeyBatch) -> Iterator[KeyBatch]:
    """Yield the bridge's keys, then the index's other keys.

    The index has each key once: a row has one value.
    """
    for at in range(0, between.num_rows, CHUNK_ROWS):
        yield between.slice(at, CHUNK_ROWS)
    for keys in pieces:
        if between.num_rows:
            is_current = is_among(keys.columns, between.cast(keys.schema).columns)
            keys = keys.filter(pa.array(~is_current))
        if keys.num_rows:
            yield keys


def keys_between(index: Index, indexed_version: int, at: Manifest) -> KeyBatch | None:
    """Return the *bridge*: the distinct keys of the commands between two table versions.

    None if those commands do not cover every changed key (an overwrite, expired changes), or
    outnumber the rows at the version.
    """
    lower, upper = sorted((indexed_version, at.version))
    log, schema = index.table_log, at.schema
    head = log.head()
    if lower + 1 < head.first_changes:
        return None
    commits = [commit for commit in log.commits(lower + 1, upper + 1) if commit.is_epoch]
    rows = sum(slice_.file.rows for commit in commits for slice_ in commit.slices())
    if rows > max(at.live_rows, CHUNK_ROWS) or any(c.kind is Kind.OVERWRITE for c in commits):
        return None
    return distinct([_no_keys(schema), *_command_keys(index, commits, at)])


def _command_keys(index: Index, commits: Sequence[Commit], at: Manifest) -> Iterator[KeyBatch]:
    """Yield the keys of all commands in the commits, in the types of ``at``."""
    slices = tuple(slice_ for commit in commits for slice_ in commit.slices())
    commands = Snapshot(index.table_store, replace(at, slices=slices))
    for part, _ in commands.parts():
        columns = Rows(at.schema, [part]).slice(0, at.schema.keys, 0, len(part))
        keys = pa.RecordBatch.from_arrays(columns, schema=_no_keys(at.schema).schema)
        if at.schema.has_quarantine:
            # Null keys belong to error entries, which never were rows.
            is_null = np.logical_and.reduce([np.asarray(column.is_null()) for column in columns])
            keys = keys.filter(pa.array(~is_null))
        yield keys


def _no_keys(schema: TableSchema) -> KeyBatch:
    """Return an empty key batch."""
    fields = pa.schema([schema.columns.field(name) for name in schema.keys])
    return pa.RecordBatch.from_pylist([], schema=fields)


def distinct(batches: Sequence[KeyBatch]) -> KeyBatch:
    """Return the distinct keys in several batches, by key equality."""
    keys = pa.concat_batches(batches)
    [numbers] = codes(keys.columns)
    return keys.take(pa.array(first_occurrences(numbers)))
