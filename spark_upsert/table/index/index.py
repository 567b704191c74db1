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
from spark_upsert.plan.join_keys import codes, firsts, is_among
from spark_upsert.store import Store
from spark_upsert.store.open import StoreBelow
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, TableVersion
from spark_upsert.table.log.properties import index_folder, index_schema, shown
from spark_upsert.table.log.storage import Clock
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.state.check import Finding, check
from spark_upsert.table.state.snapshot import CHUNK_ROWS, Snapshot


class KeysHaving(NamedTuple):
    """The candidates that an index proposes."""

    keys: pa.RecordBatch
    """Keys of the table, each once, as columns in the order of its key."""
    shows_version: int
    """The version of the table at which the rows with a wanted value have exactly these keys."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """A readable state of an index, with the newest version of its table.

    The table is looked at after the index, so that its types hold each key of the index.
    """

    own: Manifest
    shows: TableVersion
    table: Manifest


class Index:
    """The index on a column.

    Parameters
    ----------
    table_log : Log
    table_store : Store
    column : str
    clock : callable
        For the commits of the index.
    """

    def __init__(self, table_log: Log, table_store: Store, column: str, *, clock: Clock) -> None:
        self.column = column
        self.table_log = table_log
        self.table_store = table_store
        self.folder = index_folder(column)
        self.store: Store = StoreBelow(table_store, self.folder)
        self._clock = clock
        self.log = Log(self.store, clock=clock)

    @classmethod
    def of(cls, store: Store, column: str) -> Index:
        """Return the index on a column of a table, for a task that asks it."""
        return cls(Log(store), store, column, clock=time.time)

    def __repr__(self) -> str:
        return f"Index({self.column!r}, {self.store.url!r})"

    def try_head(self) -> Manifest | None:
        """Return the newest state of the index; None if it was never built.

        An index may be removed or built anew by another process: then its old log is forgotten.
        """
        try:
            return self.log.try_head()
        except OtherTableError:
            self.log = Log(self.store, clock=self._clock)
            return self.log.try_head()

    def place(self) -> TableVersion | None:
        """Return the version of the table that the index shows; None if it is of no use.

        It is of no use if it was never built, or if what lies between it and the table's readable
        versions is expired, or not of this table: then it is to be built anew.
        """
        index_head = self.try_head()
        return None if index_head is None else self.usable(index_head)

    def usable(self, own: Manifest) -> TableVersion | None:
        """Return the version that a state of the index shows, if that is of use."""
        # The table is looked at behind the index, which it must not be behind.
        state = self._readable(own, self.table_log.head())
        return None if state is None else state.shows

    def state(self, *, near: int | None = None) -> IndexState:
        """Return the newest state of the index, or one that is nearer to a version of the table."""
        index_head = self.try_head()
        state = None if index_head is None else self._readable(index_head, self.table_log.head())
        if state is None:
            raise DataLossError(
                f"the index on '{self.column}' at '{self.store.url}' shows no version of the table "
                "that could be compared with others.",
                hint="build it anew: upsertflow index PATH.",
            )
        return state if near is None or near >= state.shows.version else self._as_of(near, state)

    def _readable(self, own: Manifest, table: Manifest) -> IndexState | None:
        """Return a state of the index if it can be read by a later version of the table."""
        table_ref = shown(own)
        is_expired = table_ref is None or table_ref.version < table.since
        if table_ref is None or is_expired or self.column not in table.schema.columns.names:
            return None
        try:
            self.table_log.require_descent(table, table_ref, "the index")
        except OtherTableError:
            return None
        return IndexState(own, table_ref, table)

    def keys_having(self, values: pa.Array) -> KeysHaving:
        """Return the keys of the rows that have one of some values in the column.

        The cost follows the keys that are found, not the table. All of them are held at once; use
        `iter_keys_having`, which gives pieces, if very many rows may have a value.
        """
        state = self.state()
        fields = pa.schema([state.table.schema.columns.field(n) for n in state.table.schema.keys])
        table = pa.Table.from_batches(self.keys_in(state, values), schema=fields).combine_chunks()
        columns = [column.combine_chunks() for column in table.columns]
        keys = pa.RecordBatch.from_arrays(columns, schema=table.schema)
        return KeysHaving(keys, state.shows.version)

    def count(self, values: pa.Array) -> int:
        """Return about how many keys it proposes for some values; raises as `keys_having`.

        The cost follows the number of values, not of the keys.
        """
        return self._shown(self.state()).count_having_prefix([values.drop_null()])

    def iter_keys_having(
        self, values: pa.Array, *, near: int | None = None
    ) -> tuple[int, Iterator[pa.RecordBatch]]:
        """Return the version that is shown, and the keys piece by piece (`keys_having`).

        A piece holds about `CHUNK_ROWS` keys, also of one value that more rows have.
        """
        state = self.state(near=near)
        return state.shows.version, self.keys_in(state, values)

    def keys_in(self, state: IndexState, values: pa.Array) -> Iterator[pa.RecordBatch]:
        """Return the keys that a state of the index has for some values, piece by piece."""
        return self._shown(state).having_prefix([values.drop_null()], state.table.schema.keys)

    def _shown(self, state: IndexState) -> Snapshot:
        """Return a state of the index in the newest types, which may be wider, of equal hashes."""
        seed = state.own.schema.hash_seed
        wide = index_schema(state.table.schema, self.column, hash_seed=seed)
        return Snapshot(self.store, replace(state.own, schema=wide))

    def _as_of(self, version: int, newest: IndexState) -> IndexState:
        """Return the newest state of the index that shows no later version of its table.

        By bisection: what an index shows only grows. If there is none that can be read, the one
        that shows the next version.
        """
        lower, upper = newest.own.since, newest.own.version
        latest_state, later = None, newest
        while lower < upper:
            middle = (lower + upper) // 2
            manifest = self.log.at(middle)
            at, state = shown(manifest), self._readable(manifest, newest.table)
            if at is not None and at.version > version:
                upper, later = middle, state or later
            else:
                lower, latest_state = middle + 1, state or latest_state
        return latest_state or later


class _Sum(NamedTuple):
    """The sums of a set of entries."""

    entries: int
    hashes: int


def check_index(index: Index) -> Iterator[Finding]:
    """Yield what is wrong with an index; one that is not built, or of no use, has no rows to be.

    Index and table are compared by entry count and hash sum per range, so that memory is bounded.
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
            _sum(snapshot, names) for snapshot in (table, Snapshot(index.store, index_head))
        )
    except (CorruptionError, DataLossError):
        return  # Of the table, or found above; or expired meanwhile.
    if expected != actual:
        yield Finding(
            place=f"{folder}, version {index_head.version}",
            expected=f"the {expected.entries} keys of version {usable.version} of the table",
            found=f"{actual.entries} keys, or others (build it anew: 'upsertflow index --rebuild')",
        )


def _sum(snapshot: Snapshot, names: tuple[str, ...]) -> _Sum:
    count = hashes = 0
    for batch in snapshot.read(names):
        rows = batch.filter(pc.is_valid(batch.column(names[0])))
        count += rows.num_rows
        if rows.num_rows:
            hashes += int(np.sum(hash_keys(rows.columns, seed=0), dtype=np.uint64))
    return _Sum(count, hashes % HASH_END)


KeyBatch: TypeAlias = pa.RecordBatch
"""Keys of a table, in the order of its key columns."""


def rows_at(
    index: Index | None,
    snapshot: Snapshot,
    newest: TableSchema,
    column: str,
    values: pa.Array,
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a version, in its own types, that have one of some values in a column.

    Memory holds the bridge and one piece of the keys, however many rows have a value. The table is
    read in the columns of the version, in types that hold also the keys that the index and the
    bridge have from other versions.
    """
    at = snapshot.manifest
    wide = at.schema.widened_to(newest)
    state = None if index is None else _state(index, near=at.version)
    if state is not None:
        wide = wide.widened_to(state.table.schema)
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


def _state(index: Index, *, near: int) -> IndexState | None:
    try:
        return index.state(near=near)
    except (DataLossError, CorruptionError):
        return None


def proposed(
    index: Index, state: IndexState, values: pa.Array, at: Manifest
) -> Iterator[KeyBatch] | None:
    """Return pieces of keys, each once, among which are those of all rows with a value."""
    between = keys_between(index, state.shows.version, at)
    return None if between is None else _bridged(index.keys_in(state, values), between)


def _bridged(pieces: Iterator[KeyBatch], between: KeyBatch) -> Iterator[KeyBatch]:
    """Yield the keys of the bridge, and those of an index that are none of it.

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


def keys_between(index: Index, shows: int, at: Manifest) -> KeyBatch | None:
    """Return the keys of the commands between two versions of the table, each once: the bridge.

    None where those do not tell what became of every key, or are more than the rows at the version.
    """
    lower, upper = sorted((shows, at.version))
    log, schema = index.table_log, at.schema
    head = log.head()
    if lower + 1 < head.first_changes:
        return None
    commits = [commit for commit in log.commits(lower + 1, upper + 1) if commit.is_epoch]
    rows = sum(slice_.file.rows for commit in commits for slice_ in commit.slices())
    if rows > max(at.live_rows, CHUNK_ROWS) or any(c.kind is Kind.OVERWRITE for c in commits):
        return None
    return distinct([_none(schema), *_keys_of(index, commits, at)])


def _keys_of(index: Index, commits: Sequence[Commit], at: Manifest) -> Iterator[KeyBatch]:
    slices = tuple(slice_ for commit in commits for slice_ in commit.slices())
    commands = Snapshot(index.table_store, replace(at, slices=slices))
    for part, _ in commands.parts():
        columns = Rows(at.schema, [part]).slice(0, at.schema.keys, 0, len(part))
        keys = pa.RecordBatch.from_arrays(columns, schema=_none(at.schema).schema)
        if at.schema.has_quarantine:
            # Null keys are those of errors: they never were rows.
            is_null = np.logical_and.reduce([np.asarray(column.is_null()) for column in columns])
            keys = keys.filter(pa.array(~is_null))
        yield keys


def _none(schema: TableSchema) -> KeyBatch:
    fields = pa.schema([schema.columns.field(name) for name in schema.keys])
    return pa.RecordBatch.from_pylist([], schema=fields)


def distinct(batches: Sequence[KeyBatch]) -> KeyBatch:
    """Return keys of several batches, each once, as keys are equal."""
    keys = pa.concat_batches(batches)
    [numbers] = codes(keys.columns)
    return keys.take(pa.array(firsts(numbers)))
