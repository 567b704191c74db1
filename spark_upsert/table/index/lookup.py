"""Rows with a column value at any version, by an index that shows another version.

The *bridge* is the keys of all commands between both versions; index and bridge together contain
the keys of all such rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError, DataLossError
from spark_upsert.plan.join_keys import codes, firsts, is_among
from spark_upsert.table.index.index import Index, IndexState
from spark_upsert.table.log.manifest import Commit, Kind, Manifest
from spark_upsert.table.run.rows import Rows
from spark_upsert.table.state.snapshot import CHUNK_ROWS, Snapshot

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
