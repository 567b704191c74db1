"""Entries without a known order: they take their place by arrival.

A change event that cannot be read is the newest word on its key, and its order is lost with
everything else in it. The event *adopts* the greatest order of what its key held when it came: it
replaces that entry, any greater order is newer than it, and older entries stay older. A record that
says only that its key is gone (a tombstone of Kafka) adopts likewise, but only where an error
stands: elsewhere the delete that it follows has been applied, and the row may be a newer one.

The earlier entry of the key is looked for among the earlier commands of the same task (`in_task`),
and else in the table (`in_table`). Where there is none, there is no order to adopt. Then the
entry's order stays unknown: it sorts before all others, and cannot tell whether a delete of its key
was forgotten.

From then on an entry has one order, as all have, and all code that compares entries works as for
any other.

Rejected: errors of unknown order at the bytes of their key, apart from it. No later word of the key
took them away, the row stayed, and a delete that could not be read was cleared by its tombstone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.schema import DIFF, ERROR, HASH, ORDER_KNOWN, TOMBSTONE, TableSchema
from spark_upsert.model.words import ordered_words
from spark_upsert.table.entries.lookup import find
from spark_upsert.table.entries.resolve import arrange
from spark_upsert.table.entries.snapshot import Snapshot
from spark_upsert.table.run.rows import BatchPart, Part, Rows

_NONE = -1


def are_unplaced(commands: pa.RecordBatch, schema: TableSchema) -> Mask:
    """Return which commands have a key and no order.

    Commands may be of a writer that began before the table kept errors: all of these have one.
    """
    if ORDER_KNOWN not in schema.order_columns or ORDER_KNOWN not in commands.schema.names:
        return np.zeros(commands.num_rows, dtype=np.bool_)
    unknown = ~_mask(commands.column(ORDER_KNOWN))
    if not unknown.any():
        return unknown
    keys = [_mask(commands.column(key).is_valid()) for key in schema.keys]
    return unknown & np.logical_or.reduce(keys)


def in_task(
    commands: pa.RecordBatch, schema: TableSchema, before: Sequence[Part]
) -> pa.RecordBatch:
    """Return commands of which some have adopted the order of what came before them.

    Parameters
    ----------
    commands : pyarrow.RecordBatch
        Columns as `TableSchema.run`, in the order in which the task saw them.
    schema : TableSchema
    before : sequence of Part
        What is left of the commands that came earlier: one of each key in each part, sorted by
        hash.

    Notes
    -----
    O(n log n) of the rows that share a key with an unplaced one; the others are not touched.
    """
    unplaced = np.flatnonzero(are_unplaced(commands, schema))
    if not len(unplaced):
        return commands
    hashes = np.asarray(commands.column(HASH))
    chosen = np.flatnonzero(np.isin(hashes, hashes[unplaced]))
    own = commands.take(pa.array(chosen))
    rows = Rows(schema, [BatchPart(_held(own, schema, before)), BatchPart(own)])
    adopted = _adopted(rows)
    takes = np.flatnonzero(adopted != _NONE)
    takes = takes[takes >= rows.starts[1]]
    at = chosen[takes - rows.starts[1]]
    return _with_order(commands, schema, at, rows.take(schema.order_columns, adopted[takes]))


def in_table(commands: pa.RecordBatch, snapshot: Snapshot, schema: TableSchema) -> pa.RecordBatch:
    """Return commands of which some have adopted the order of what the table holds.

    Parameters
    ----------
    commands : pyarrow.RecordBatch
        One of each key, sorted by hash.
    snapshot : Snapshot
        The table when the epoch was planned.
    schema : TableSchema
        That of the commands, which may have more columns.
    """
    unplaced = np.flatnonzero(are_unplaced(commands, schema))
    if not len(unplaced):
        return commands
    own = commands.take(pa.array(unplaced))
    manifest = replace(snapshot.manifest, schema=schema)
    found = Snapshot(snapshot.store, manifest).find(
        np.asarray(own.column(HASH)), [own.column(name) for name in schema.identity]
    )
    hit = np.flatnonzero(found.present)
    is_error = np.asarray(own.column(DIFF))[hit] == ERROR
    stands = np.asarray(found.rows.take([DIFF], found.at[hit])[0]) == ERROR
    hit = hit[is_error | stands]
    order = found.rows.take(schema.order_columns, found.at[hit])
    return _with_order(commands, schema, unplaced[hit], order)


def _held(own: pa.RecordBatch, schema: TableSchema, before: Sequence[Part]) -> pa.RecordBatch:
    """Return the entries that the keys of some commands had before them, one of each."""
    rows = Rows(schema, [BatchPart(own)])
    order, begins = arrange(rows, None, lambda _: ())
    firsts = order[begins]
    keys = rows.take(schema.identity, firsts)
    found = find(schema, [(part, 0) for part in before], rows.hashes[firsts], keys)
    columns = found.rows.take(schema.run.names, found.at[found.present])
    return pa.RecordBatch.from_arrays(columns, schema=schema.run)


def _adopted(rows: Rows) -> Positions:
    """Return for each row the row from which it adopts the order, or `_NONE`.

    Rows of a key are taken in their order of arrival. After each, one of them *stands*: the last
    row that no other had beaten when it came.
    """
    order, begins = arrange(rows, None, lambda _: ())
    [diffs] = rows.take([DIFF], order)
    [is_known] = rows.take([ORDER_KNOWN], order)
    known, kinds = _mask(is_known), np.asarray(diffs)
    group = np.cumsum(begins, dtype=np.int64)
    ranks = np.where(known, 1 + _ranks(rows, order), 0)
    keys = group * (int(ranks.max(initial=0)) + 1) + ranks
    leads = known & (keys == np.maximum.accumulate(keys))
    stands = leads | (~known & (kinds == ERROR))
    leader = _last(leads, group)
    # What stood before a row, for a tombstone takes nothing but an error away.
    stood = _last(stands, group, before=True)
    behind_error = (stood != _NONE) & (kinds[np.maximum(stood, 0)] == ERROR)
    adopts = ~known & (leader != _NONE) & ((kinds != TOMBSTONE) | behind_error)
    adopted = np.full(len(rows), _NONE, dtype=np.int64)
    adopted[order[adopts]] = order[leader[adopts]]
    return adopted


def _ranks(rows: Rows, order: Positions) -> npt.NDArray[np.int64]:
    """Return the place of each row's order key among all of them; equal ones have the same."""
    words = [
        np.asarray(word)
        for column in rows.take(rows.schema.order_columns, order)
        for word in ordered_words(column)
    ]
    places = np.lexsort(words[::-1])
    differs = np.logical_or.reduce([np.diff(word[places], prepend=0) != 0 for word in words])
    differs[:1] = False
    ranks = np.empty(len(places), dtype=np.int64)
    ranks[places] = np.cumsum(differs)
    return ranks


def _last(where: Mask, group: npt.NDArray[np.int64], *, before: bool = False) -> Positions:
    """Return for each place the last one of its group up to there, or before it, or `_NONE`."""
    places = np.where(where, np.arange(len(where)), _NONE)
    last = np.maximum.accumulate(places)
    if before:
        last = np.concatenate([[_NONE], last[:-1]])
    return np.where((last != _NONE) & (group[np.maximum(last, 0)] == group), last, _NONE)


def _with_order(
    commands: pa.RecordBatch, schema: TableSchema, at: Positions, order: Sequence[pa.Array]
) -> pa.RecordBatch:
    """Return commands, some of them with another order."""
    if not len(at):
        return commands
    places = np.arange(commands.num_rows)
    places[at] = commands.num_rows + np.arange(len(at))
    for name, column in zip(schema.order_columns, order, strict=True):
        index = commands.schema.get_field_index(name)
        mixed = pa.concat_arrays([commands.column(index), column]).take(pa.array(places))
        commands = commands.set_column(index, commands.schema.field(index), mixed)
    return commands


def _mask(array: pa.Array) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)
