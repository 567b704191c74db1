"""Doubtful orders: ties, late and stale rows, and rows without an order key (docs/adr/0016).

A row without an order *adopts* the greatest order of its key's entries on arrival (docs/adr/0009).
Where a policy continues, the commit counts such rows and logs one warning per type.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.keys import Mask, Positions, compare, ordered_words
from spark_upsert.core.lru import LruMap
from spark_upsert.core.precedence import Precedence
from spark_upsert.core.schema import (
    DIFF,
    ERROR,
    HASH,
    ORDER_KNOWN,
    PUT,
    TOMBSTONE,
    OnUnknown,
    TableSchema,
    Ties,
)
from spark_upsert.errors import DataError, setting
from spark_upsert.table.log.manifest import Commit, Manifest
from spark_upsert.table.log.properties import LateRows, decode_mark
from spark_upsert.table.run.rows import BatchPart, Part, Rows
from spark_upsert.table.state.lookup import find
from spark_upsert.table.state.reduce import STALE_MIN, Counters, ReducedEntries, count_all_stale
from spark_upsert.table.state.registers import (
    adds_nothing,
    contradict,
    first_unknown_column,
)
from spark_upsert.table.state.resolve import arrange, equal_contents, have_reasons
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.outcomes import Outcomes

Examples = Mapping[str, str]
"""Examples by counter (``tied``, ``late``): one such row's key."""

_LOGGER = logging.getLogger(__name__)


def key_text(rows: Rows, row: int) -> str:
    """Return a row's key for a message: ``id=7``."""
    keys = rows.schema.keys
    values = rows.take(keys, np.array([row]))
    return ", ".join(f"{k}={v[0].as_py()!r}" for k, v in zip(keys, values, strict=True))


def count_losers(rows: Rows, reduced: ReducedEntries) -> tuple[Counters, Examples]:
    """Count beaten commands: equal to their winner, tied with it, or plainly superseded.

    Those folded into others are superseded, too.
    """
    losers, winners = reduced.losers, reduced.beaten_by
    precedence = Precedence.of(rows.schema)
    if not (len(losers) and precedence.has_order):
        return Counters(superseded=len(losers) + reduced.folded), {}
    names = rows.schema.order_columns
    is_register = rows.schema.has_registers
    same = adds_nothing if is_register else equal_contents
    equals = precedence.equals(
        compare(rows.take(names, losers), rows.take(names, winners)),
        lambda equal: same(rows, losers[equal], rows, winners[equal]),
        lambda other: (
            have_reasons(rows, losers[other], rows, winners[other])
            | (is_register & ~contradict(rows, losers[other], rows, winners[other]))
        ),
    )
    duplicates = int(equals.are_duplicates.sum())
    tied = losers[equals.are_tied]
    counters = Counters(superseded=len(losers) - duplicates, duplicates=duplicates, tied=len(tied))
    return counters, _tied_examples(rows, tied)


def examples_of(rows: Rows, chosen: Positions, outcomes: Outcomes, late_rows: LateRows) -> Examples:
    """Return example keys for tied and late commands, one per type."""
    examples = dict(_tied_examples(rows, chosen[outcomes.are_tied]))
    late = chosen[outcomes.are_late]
    if len(late):
        late = late[rows.take([DIFF], late)[0].to_numpy() == PUT]
    if len(late):
        if late_rows is LateRows.FAIL:
            raise _late_error(rows, late)
        examples["late"] = key_text(rows, int(late[0]))
    unknown = chosen[outcomes.become_unknown]
    if len(unknown):
        examples["unknown"] = _unknown_text(rows, int(unknown[0]))
    strayed = chosen[outcomes.are_strayed]
    if len(strayed):
        examples["strayed"] = place_text(rows, int(strayed[0]))
    return examples


def _unknown_text(rows: Rows, row: int) -> str:
    """Return a row with an unknown value, as column and place: ``'x'|id=7, order 10``."""
    return f"{first_unknown_column(rows, row)!r}|{place_text(rows, row)}"


def place_text(rows: Rows, row: int) -> str:
    """Return a row's key and order for a message: ``id=7, order 10``."""
    order = [column[0].as_py() for column in rows.take(_order_names(rows.schema), np.array([row]))]
    return f"{key_text(rows, row)}, order {', '.join(map(str, order))}"


def _order_names(schema: TableSchema) -> tuple[str, ...]:
    """Return the stored order columns of ``sequenceBy``."""
    return schema.order_columns[len(schema.order_columns) - len(schema.order) :]


def require_known(counters: Counters, examples: Examples, schema: TableSchema) -> None:
    """Raise if rows came to lack a value that no command has set, and the table allows none."""
    if schema.on_unknown is not OnUnknown.FAIL:
        return
    if counters.strayed > 0:
        raise DataError(
            f"{counters.strayed} rows came after the row of their key had moved to another key "
            f"(for example {examples.get('strayed', '?')}): the values that moved are older. "
            "Nothing was committed.",
            hint="read the changes of a key in their order, or take a new snapshot of the source. "
            "A table with another rule for unknown values counts such rows, and goes on.",
            example=examples.get("strayed"),
        )
    if counters.unknown <= 0:
        return
    column, _, place = examples.get("unknown", "?|?").partition("|")
    raise DataError(
        f"column {column} of {counters.unknown} rows was never sent (for example {place}): no row "
        "of the key sets it, or a delete came since. Nothing was committed.",
        hint="begin with a snapshot of the source, so that each row comes whole once; for a row "
        "whose key changed, read the records with their headers, or set the source table's REPLICA "
        "IDENTITY to FULL. A table may also keep such rows apart until their values come "
        f"({setting('onUnknown', 'quarantine')}), or show null there "
        f"({setting('onUnknown', 'null')}).",
        example=examples.get("unknown"),
    )


def _tied_examples(rows: Rows, tied: Positions) -> Examples:
    if not len(tied):
        return {}
    key = key_text(rows, int(tied[0]))
    if rows.schema.ties is Ties.FAIL:
        raise DataError(
            f"{len(tied)} rows have the order key of another row of their key but other values, "
            f"and nothing says which is the later one (for example {key}). Nothing was committed.",
            hint=f"order by more columns, so that {_order(rows.schema)} and they are never equal "
            "for two changes of a key (for a database's log its position, then the place within "
            f"the transaction); or write into a table with {setting('ties', 'last')}.",
            example=key,
        )
    return {"tied": key}


def _late_error(rows: Rows, late: Positions) -> DataError:
    key = key_text(rows, int(late[0]))
    return DataError(
        f"{len(late)} rows are late (for example {key}): the table does "
        f"not know their keys, and their order keys ({_order(rows.schema)}) are at or below its "
        "low-water mark, up to which deletes are forgotten. So they may have been deleted since. "
        "Nothing was committed.",
        hint="if none of them was, as in a backfill of what never was here, give "
        f"{setting('lateRows', 'apply')}; {setting('lateRows', 'reject')} leaves them out and "
        "counts them. Deletes are remembered for longer with a longer 'tombstoneRetention'.",
        example=key,
    )


def _order(schema: TableSchema) -> str:
    return "sequenceBy=" + ",".join(field.name for field in schema.order)


def mark_text(schema: TableSchema, mark: str) -> str:
    """Return a low-water mark for a message: ``seq=5``."""
    values = decode_mark(mark, schema)[-len(schema.order) :]
    pairs = zip(schema.order, values, strict=True)
    return ", ".join(f"{field.name}={value[0].as_py()!r}" for field, value in pairs)


def warn(commit: Commit, head: Manifest, examples: Examples) -> None:
    """Log user-facing warnings about an epoch, once per type."""
    schema = head.schema
    counters = Counters.from_json(commit.counters)
    _warn_of_stale(commit, head, counters)
    if counters.tied:
        taken = "earlier" if schema.ties is Ties.FIRST else "later"
        _LOGGER.warning(
            "version %d: %d rows are tied: another row of their key has the same %s and other "
            "values (for example %s); the %s one was taken. A total order tells them apart.",
            commit.version,
            counters.tied,
            _order(schema),
            examples.get("tied", "?"),
            taken,
        )
    if counters.unknown:
        done = "kept apart" if schema.on_unknown is OnUnknown.QUARANTINE else "shown as null"
        _LOGGER.warning(
            "version %d: %d rows have a value that no row of their key has set (for example %s); "
            "it is %s until one does (onUnknown).",
            commit.version,
            counters.unknown,
            examples.get("unknown", "?|?").partition("|")[2],
            done,
        )
    if counters.strayed:
        _LOGGER.warning(
            "version %d: %d rows came after the row of their key had moved to another key (for "
            "example %s): the values that moved are older.",
            commit.version,
            counters.strayed,
            examples.get("strayed", "?"),
        )
    if "late" in examples:
        done = "applied" if counters.late else "left out"
        # If the past was replaced meanwhile, their low-water mark is gone.
        mark = f" up to {mark_text(schema, head.low_water)}" if head.low_water else ""
        _LOGGER.warning(
            "version %d: %d rows were %s (lateRows): the table does not know their keys, and "
            "deletes so old are forgotten%s (for example %s).",
            commit.version,
            counters.late or counters.rejected,
            done,
            mark,
            examples["late"],
        )


_STREAKS: LruMap[str, int] = LruMap(1024)
"""Epochs in a row whose rows were all stale, by table, as far as this process committed them."""

_STREAKS_LOCK = threading.Lock()


def _warn_of_stale(commit: Commit, head: Manifest, counters: Counters) -> None:
    """Log that all rows in an epoch were stale, if such rows or epochs are many (`STALE_MIN`)."""
    stale = count_all_stale(counters, head.schema)
    with _STREAKS_LOCK:
        epochs = (_STREAKS.get(head.table_id) or 0) + 1 if stale else 0
        if epochs:
            _STREAKS.put(head.table_id, epochs)
        else:
            _STREAKS.pop(head.table_id)
    if max(epochs, stale) >= STALE_MIN:
        _LOGGER.warning(
            "version %d: all %d rows are stale, and nothing was applied, in %d epochs in a row: "
            "their %s is below that of the rows in the table. A replay catches up by itself. If "
            "the order of the source has restarted, as after a database was restored, take a new "
            "snapshot into a new table.",
            commit.version,
            stale,
            epochs,
            _order(head.schema),
        )


def require_order(rows: Rows, reduced: ReducedEntries) -> None:
    """Raise if one key has two different commands and nothing orders their tasks.

    Two deletes or two error entries for one key are no conflict: both have the same meaning.
    """
    if Precedence.of(rows.schema).has_order or not len(reduced.losers):
        return
    equal = equal_contents(rows, reduced.losers, rows, reduced.beaten_by)
    lost, won = (
        rows.take([DIFF], side)[0].to_numpy() for side in (reduced.losers, reduced.beaten_by)
    )
    equal |= (lost == won) & (lost != PUT)
    if bool(equal.all()):
        return
    key = key_text(rows, int(reduced.losers[~equal][0]))
    raise DataError(
        f"{int((~equal).sum())} keys have different values in several tasks of one epoch, and "
        f"nothing says which is the later one (for example {key}). Nothing was committed.",
        hint=f"give an order, {setting('sequenceBy')}, or repartition the rows by key before the "
        f"write, or accept any of them by {setting('allowUnordered', 'true')}.",
        example=key,
    )


_NONE = -1


def are_unplaced(commands: pa.RecordBatch, schema: TableSchema) -> Mask:
    """Return a mask: the commands with a key and without an order.

    Commands from a writer that began before the table had a quarantine all have an order.
    """
    if ORDER_KNOWN not in schema.order_columns or ORDER_KNOWN not in commands.schema.names:
        return np.zeros(commands.num_rows, dtype=np.bool_)
    unknown = ~_mask(commands.column(ORDER_KNOWN))
    if not unknown.any():
        return unknown
    keys = [_mask(commands.column(key).is_valid()) for key in schema.keys]
    return unknown & np.logical_or.reduce(keys)


def adopt_order_within_task(
    commands: pa.RecordBatch, schema: TableSchema, before: Sequence[Part]
) -> pa.RecordBatch:
    """Return the commands, some with the order adopted from earlier commands in the task.

    Notes
    -----
    O(n log n) in the rows sharing a key with an unplaced one; the others are not touched.
    """
    unplaced = np.flatnonzero(are_unplaced(commands, schema))
    if not len(unplaced):
        return commands
    hashes = np.asarray(commands.column(HASH))
    chosen = np.flatnonzero(np.isin(hashes, hashes[unplaced]))
    ties = commands.take(pa.array(chosen))
    rows = Rows(schema, [BatchPart(_held(ties, schema, before)), BatchPart(ties)])
    adopted = _adopted(rows)
    takes = np.flatnonzero(adopted != _NONE)
    takes = takes[takes >= rows.starts[1]]
    at = chosen[takes - rows.starts[1]]
    return _with_order(commands, schema, at, rows.take(schema.order_columns, adopted[takes]))


def adopt_order_from_table(
    commands: pa.RecordBatch, snapshot: Snapshot, schema: TableSchema
) -> pa.RecordBatch:
    """Return the commands, some with the order adopted from the table's entries."""
    unplaced = np.flatnonzero(are_unplaced(commands, schema))
    if not len(unplaced):
        return commands
    unplaced_rows = commands.take(pa.array(unplaced))
    manifest = replace(snapshot.manifest, schema=schema)
    stored_rows = Snapshot(snapshot.store, manifest).find(
        np.asarray(unplaced_rows.column(HASH)),
        [unplaced_rows.column(name) for name in schema.identity],
        columns=(),
    )
    hit = np.flatnonzero(stored_rows.present)
    is_error = np.asarray(unplaced_rows.column(DIFF))[hit] == ERROR
    stands = np.asarray(stored_rows.rows.take([DIFF], stored_rows.at[hit])[0]) == ERROR
    hit = hit[is_error | stands]
    order = stored_rows.rows.take(schema.order_columns, stored_rows.at[hit])
    return _with_order(commands, schema, unplaced[hit], order)


def _held(own: pa.RecordBatch, schema: TableSchema, before: Sequence[Part]) -> pa.RecordBatch:
    """Return the previous entries for the commands' keys, one per key."""
    rows = Rows(schema, [BatchPart(own)])
    order, begins = arrange(rows, None, lambda _: ())
    firsts = order[begins]
    keys = rows.take(schema.identity, firsts)
    stored_rows = find(schema, [(part, 0) for part in before], rows.hashes[firsts], keys)
    columns = stored_rows.rows.take(schema.run.names, stored_rows.at[stored_rows.present])
    return pa.RecordBatch.from_arrays(columns, schema=schema.run)


def _adopted(rows: Rows) -> Positions:
    """Return for each row the row whose order it adopts, or `_NONE`.

    A key's rows are processed in arrival order. After each step one row is *current*: the last one
    unbeaten on arrival.
    """
    order, begins = arrange(rows, None, lambda _: ())
    [diffs] = rows.take([DIFF], order)
    [is_known] = rows.take([ORDER_KNOWN], order)
    has_order, kinds = _mask(is_known), np.asarray(diffs)
    group = np.cumsum(begins, dtype=np.int64)
    ranks = np.where(has_order, 1 + _ranks(rows, order), 0)
    keys = group * (int(ranks.max(initial=0)) + 1) + ranks
    leads = has_order & (keys == np.maximum.accumulate(keys))
    is_current = leads | (~has_order & (kinds == ERROR))
    leader = _last(leads, group)
    # A tombstone replaces only an error, so the current row before it decides.
    current = _last(is_current, group, before=True)
    follows_error = (current != _NONE) & (kinds[np.maximum(current, 0)] == ERROR)
    adopts = ~has_order & (leader != _NONE) & ((kinds != TOMBSTONE) | follows_error)
    adopted = np.full(len(rows), _NONE, dtype=np.int64)
    adopted[order[adopts]] = order[leader[adopts]]
    return adopted


def _ranks(rows: Rows, order: Positions) -> npt.NDArray[np.int64]:
    """Return each row's order key rank; equal order keys have equal ranks."""
    words = [
        np.asarray(word)
        for column in rows.take(rows.schema.order_columns, order)
        for word in ordered_words(column)
    ]
    sorted_rows = np.lexsort(words[::-1])
    differs = np.logical_or.reduce([np.diff(word[sorted_rows], prepend=0) != 0 for word in words])
    differs[:1] = False
    ranks = np.empty(len(sorted_rows), dtype=np.int64)
    ranks[sorted_rows] = np.cumsum(differs)
    return ranks


def _last(where: Mask, group: npt.NDArray[np.int64], *, before: bool = False) -> Positions:
    """Return for each index the group's last marked index up to it, or before it, or `_NONE`."""
    row_indices = np.where(where, np.arange(len(where)), _NONE)
    last = np.maximum.accumulate(row_indices)
    if before:
        last = np.concatenate([[_NONE], last[:-1]])
    return np.where((last != _NONE) & (group[np.maximum(last, 0)] == group), last, _NONE)


def _with_order(
    commands: pa.RecordBatch, schema: TableSchema, at: Positions, order: Sequence[pa.Array]
) -> pa.RecordBatch:
    """Return the commands, with the order replaced at the given positions."""
    if not len(at):
        return commands
    row_indices = np.arange(commands.num_rows)
    row_indices[at] = commands.num_rows + np.arange(len(at))
    for name, column in zip(schema.order_columns, order, strict=True):
        index = commands.schema.get_field_index(name)
        mixed = pa.concat_arrays([commands.column(index), column]).take(pa.array(row_indices))
        commands = commands.set_column(index, commands.schema.field(index), mixed)
    return commands


def _mask(array: pa.Array) -> Mask:
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)
