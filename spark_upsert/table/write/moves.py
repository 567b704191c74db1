"""Rows that move to another key take their values along (`Moves`; docs/adr/0110).

The delete of the old key carries them, as a put of the new key at its order: only the old key's
partition is known to be read that far. Carried values are weaker than those that the create sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.key_hash import hash_keys, order_of
from spark_upsert.core.keys import Mask, Positions, compare, equal_rows, ordered_words
from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.precedence import Precedence
from spark_upsert.core.schema import (
    DIFF,
    HASH,
    MOVED,
    PUT,
    TOMBSTONE,
    VALUE_CARRIED,
    VALUE_RECARRIED,
    VALUE_UNCHANGED,
    TableSchema,
    at_column,
    is_live,
    kept_column,
    moved_column,
)
from spark_upsert.table.run.remote import REMOTE_RUNS, Hashes
from spark_upsert.table.run.rows import BatchPart, Part, Rows, RunPart
from spark_upsert.table.state.lookup import iter_matches
from spark_upsert.table.state.registers import (
    CombinedPart,
    MarkKinds,
    MoveLimits,
    combine,
    have_values,
    kinds_of,
    mask_of,
    orders_and_strengths,
    strengths_of,
    without_values,
)
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.commands import moved_to_column


def without_moves(
    commands: pa.RecordBatch, schema: TableSchema
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """Return the commands without their moves, and the deletes of moved rows, or None.

    Only engines that choose a winner by an order carry values: without one, nothing tells which
    values came before the move.
    """
    names = list(map(moved_to_column, schema.keys))
    if names[0] not in commands.schema.names:
        return commands, None
    plain = commands.drop_columns(names)
    is_move = np.logical_or.reduce(
        [
            np.asarray(commands.column(name).is_valid().to_numpy(zero_copy_only=False), np.bool_)
            for name in names
        ]
    )
    if schema.engine.kind is not Engine.DEDUPLICATE or not schema.order or not is_move.any():
        return plain, None
    known = [HASH, *schema.identity, *schema.order_columns, *names]
    return plain, commands.select(known).filter(pa.array(is_move))


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves in one task's commands."""

    deletes: pa.RecordBatch
    """The deletes of the old keys, with the new keys."""
    states: pa.RecordBatch
    """The rows of the old keys among the task's commands, up to their moves."""
    of_state: Positions
    """The move of each state, ascending."""
    lost: Mapping[str, Mask]
    """By column, the states whose value may be lost."""

    @classmethod
    def of(
        cls,
        deletes: pa.RecordBatch,
        parts: Sequence[Part],
        schema: TableSchema,
        *,
        tasks: tuple[Sequence[int], Positions],
    ) -> Moves:
        """Return the moves of some deletes, with the old keys' rows in parts sorted by hash.

        Parts may lack rows that others of their key replaced. ``tasks`` has the task of each part and
        of each delete: what its own task replaced, a delete has taken or did not need.
        """
        rows = Rows(schema, parts)
        moves, members = _rows_of_keys(rows, deletes)
        begins = np.diff(moves, prepend=-1) != 0
        limits = MoveLimits(
            [deletes.column(name).take(pa.array(moves)) for name in schema.order_columns],
            are_limited=np.ones(len(members), dtype=np.bool_),
            are_stored=np.array(tasks[0])[rows.part_of(members)] != tasks[1][moves],
            lost={},
        )
        combination = combine(rows, members, begins, None, limits=limits, is_one_task=True)
        lasts = np.flatnonzero(np.append(begins[1:], True))[: begins.sum()]
        part = combination.part(lasts, is_below=True)
        columns = part.take(schema.run.names, np.arange(len(part)))
        # The move itself wins; what its row was before is a put.
        columns[schema.run.get_field_index(DIFF)] = pa.array(np.full(len(part), PUT, np.int8))
        states = pa.RecordBatch.from_arrays(columns, schema=schema.run)
        lost = {name: where[begins] for name, where in combination.lost.items()}
        return cls(deletes, states, moves[begins], lost)

    @property
    def are_lost(self) -> Mask:
        """The states with a column whose value may be lost."""
        none = np.zeros(len(self.of_state), dtype=np.bool_)
        return np.logical_or.reduce([none, *self.lost.values()])

    def lost_in(self, name: str) -> Mask:
        """Return the states whose value of a column may be lost."""
        return self.lost.get(name, np.zeros(len(self.of_state), dtype=np.bool_))

    def carried(
        self, snapshot: Snapshot, schema: TableSchema, notes: pa.RecordBatch | None = None
    ) -> pa.RecordBatch:
        """Return the puts of the new keys with the values that their rows had under the old ones.

        With them the deletes of the old keys, which note what they took; all sorted by hash. Moves
        are applied in the order of their orders, also from key to key. With the ``notes`` of all
        tasks, deletes by hash, the puts have those values only that are newer than what tasks took.
        """
        deletes = self.deletes
        old, new = deletes.column(HASH).to_numpy(), _target_hashes(deletes, schema)
        ranks = _ranks(deletes, schema)
        stored, of_stored = _stored(snapshot, deletes, schema)
        carried = pa.RecordBatch.from_pylist([], schema=schema.run)
        waiting = np.ones(len(old), dtype=np.bool_)
        while waiting.any():
            # A move waits for an earlier one that ends at its old key.
            left = np.flatnonzero(waiting)
            by_target = left[np.lexsort([ranks[left], new[left]])]
            first = np.searchsorted(new[by_target], old[left], side="left")
            has_target = first < len(by_target)
            earliest = by_target[np.minimum(first, len(by_target) - 1)]
            waits = has_target & (new[earliest] == old[left]) & (ranks[earliest] < ranks[left])
            now = left if bool(waits.all()) else left[~waits]
            waiting[now] = False
            batch = self._carry(now, stored, of_stored, carried, schema, notes)
            carried = pa.concat_batches([carried, batch])
            carried = carried.take(pa.array(order_of(carried.column(HASH).to_numpy())))
        return carried

    def _carry(
        self,
        now: Positions,
        stored: pa.RecordBatch,
        of_stored: Positions,
        carried: pa.RecordBatch,
        schema: TableSchema,
        notes: pa.RecordBatch | None,
    ) -> pa.RecordBatch:
        """Return the puts for some moves, from the table, the task and the moves before."""
        rows = Rows(schema, [BatchPart(stored), BatchPart(self.states), BatchPart(carried)])
        of_carried, at_carried = _rows_of_keys(
            Rows(schema, [BatchPart(carried)]), self.deletes.take(pa.array(now))
        )
        moves = np.concatenate([of_stored, self.of_state, now[of_carried]])
        members = np.concatenate(
            [
                np.arange(len(of_stored)),
                rows.starts[1] + np.arange(len(self.of_state)),
                rows.starts[2] + at_carried,
            ]
        )
        chosen = np.isin(moves, now)
        moves, members = moves[chosen], members[chosen]
        order = np.lexsort([members, moves])
        moves, members = moves[order], members[order]
        begins = np.diff(moves, prepend=-1) != 0
        is_state = (members >= rows.starts[1]) & (members < rows.starts[2])
        state = np.where(is_state, members - rows.starts[1], 0)
        are_new = members >= rows.starts[1]
        limits = MoveLimits(
            [self.deletes.column(name).take(pa.array(moves)) for name in schema.order_columns],
            are_limited=are_new | Precedence.of(schema).compares_order_across_epochs,
            are_stored=~are_new,
            lost={name: is_state & lost[state] for name, lost in self.lost.items() if len(lost)},
        )
        combination = combine(
            rows,
            members,
            begins,
            lambda at: (at >= rows.starts[1]).astype(np.uint64),
            is_one_task=True,
            limits=limits,
        )
        lasts = np.flatnonzero(np.append(begins[1:], True))[: begins.sum()]
        part, own = (
            combination.part(lasts, is_below=True),
            self.deletes.take(pa.array(moves[lasts])),
        )
        taken = None if notes is None else _taken_by_tasks(own, notes, schema)
        puts, are_newer = _puts(part, own, schema, taken)
        deletes = _noting_deletes(part, own, schema)
        return pa.concat_batches([puts, deletes.filter(pa.array(are_newer))])


def puts_and_deletes(carried: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Divide carried entries, each in their order."""
    is_put = pa.array(is_live(carried.column(DIFF)))
    return carried.filter(is_put), carried.filter(pc.invert(is_put))


def for_commit(carried: pa.RecordBatch) -> pa.RecordBatch:
    """Return the deletes among carried entries, and the puts whose keys have several of them."""
    puts, deletes = puts_and_deletes(carried)
    hashes = puts.column(HASH).to_numpy()
    is_next_equal = np.append(hashes[1:] == hashes[:-1], False)[: len(hashes)]
    is_equal = is_next_equal | np.append(False, is_next_equal)[: len(hashes)]
    return pa.concat_batches([puts.filter(pa.array(is_equal)), deletes])


def in_order_of_hashes(batches: Sequence[pa.RecordBatch], schema: TableSchema) -> pa.RecordBatch:
    """Return entries of several batches in one, with the marks of all columns."""
    rows = Rows(schema, [BatchPart(each) for each in batches])
    columns = rows.take(schema.run.names, order_of(rows.hashes))
    return pa.RecordBatch.from_arrays(columns, schema=schema.run)


def entries_that_add(
    carried: pa.RecordBatch, parts: Sequence[Part], schema: TableSchema
) -> pa.RecordBatch:
    """Return carried entries, the puts with the values alone that their keys lack in parts.

    Parts are sorted by hash.
    """
    puts, deletes = puts_and_deletes(carried)
    rows = Rows(schema, [BatchPart(puts), *parts])
    keys, members = _rows_of_keys(rows, puts)
    begins = np.diff(keys, prepend=-1) != 0
    combination = combine(rows, members, begins, None, is_one_task=True)
    # Each put comes before the parts' entries of its key, so that an equal one of these holds.
    firsts, own = np.flatnonzero(begins), np.flatnonzero(members == keys)
    lasts = np.append(firsts[1:], len(begins))[: len(firsts)] - 1
    sources = [combination.sources[name][lasts] for name in schema.unchanged]
    adds = np.column_stack([source == own for source in sources])
    adding = without_values(rows, np.arange(puts.num_rows), ~adds)
    columns = adding.take(schema.run.names, np.arange(puts.num_rows))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.run)
    return pa.concat_batches([batch.filter(pa.array(adds.any(axis=1))), deletes])


def joined(moves: Sequence[Moves], schema: TableSchema) -> Moves:
    """Return the moves of several command batches, in order, with the marks of all columns."""
    starts = np.cumsum([0, *(each.deletes.num_rows for each in moves)])
    states = Rows(schema, [BatchPart(each.states) for each in moves])
    columns = states.take(schema.run.names, np.arange(len(states)))
    return Moves(
        pa.concat_batches([each.deletes for each in moves]),
        pa.RecordBatch.from_arrays(columns, schema=schema.run),
        np.concatenate([each.of_state + start for each, start in zip(moves, starts, strict=False)]),
        {name: np.concatenate([each.lost_in(name) for each in moves]) for name in schema.unchanged},
    )


def _rows_of_keys(rows: Rows, deletes: pa.RecordBatch) -> tuple[Positions, Positions]:
    """Return pairs of a delete and a row of its key, by delete, then by row.

    The rows of each part are sorted by hash; a run has one row of a key.
    """
    by_hash = order_of(deletes.column(HASH).to_numpy())
    hashes = deletes.column(HASH).to_numpy()[by_hash]
    keys = [deletes.column(name).take(pa.array(by_hash)) for name in rows.schema.identity]
    found, members = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    in_runs = [part for part in rows.parts if isinstance(part, RunPart)]
    REMOTE_RUNS.prefetch(in_runs, hashes, rows.schema.run.names)
    for start, part in zip(rows.starts, rows.parts, strict=False):
        alone = Rows(rows.schema, [part])
        if isinstance(part, RunPart):
            pairs = [(each.probes, each.rows) for each in iter_matches(alone, hashes, keys)]
        else:
            pairs = [_rows_in_memory(alone, hashes, keys)]
        for probes, positions in pairs:
            found.append(by_hash[probes])
            members.append(start + positions)
    moves, at = np.concatenate(found), np.concatenate(members)
    order = np.lexsort([at, moves])
    return moves[order], at[order]


def _rows_in_memory(
    rows: Rows, hashes: Hashes, keys: Sequence[pa.Array]
) -> tuple[Positions, Positions]:
    """Return pairs of a probe and a row of its key; rows are sorted by hash, of any number."""
    low = np.searchsorted(rows.hashes, hashes, side="left")
    counts = np.searchsorted(rows.hashes, hashes, side="right") - low
    probes = np.repeat(np.arange(len(hashes)), counts)
    before = np.cumsum(counts) - counts
    positions = np.repeat(low - before, counts) + np.arange(int(counts.sum()))
    if not len(positions):
        return probes, positions
    stored = rows.take(rows.schema.identity, positions)
    same = equal_rows(stored, [key.take(pa.array(probes)) for key in keys])
    return probes[same], positions[same]


def hashes_of_moves(deletes: pa.RecordBatch, schema: TableSchema) -> Hashes:
    """Return the hashes of the old and the new keys, ascending."""
    return np.unique(
        np.concatenate([deletes.column(HASH).to_numpy(), _target_hashes(deletes, schema)])
    )


def _target_hashes(deletes: pa.RecordBatch, schema: TableSchema) -> Hashes:
    keys = [deletes.column(moved_to_column(key)) for key in schema.keys]
    return hash_keys(keys, seed=schema.hash_seed, prefix=schema.hash_prefix)


def _ranks(deletes: pa.RecordBatch, schema: TableSchema) -> Positions:
    """Return the deletes' places in their order."""
    columns = [deletes.column(name) for name in schema.order_columns]
    words = [word for column in columns for word in ordered_words(column)]
    ranks = np.empty(deletes.num_rows, dtype=np.int64)
    ranks[np.lexsort(words[::-1]) if words else slice(None)] = np.arange(deletes.num_rows)
    return ranks


def _stored(
    snapshot: Snapshot, deletes: pa.RecordBatch, schema: TableSchema
) -> tuple[pa.RecordBatch, Positions]:
    """Return the table's entries of the old keys, and the move of each."""
    hashes = deletes.column(HASH).to_numpy()
    order = order_of(hashes)
    keys = [deletes.column(name) for name in schema.identity]
    is_new = np.ones(len(order), dtype=np.bool_)
    near = [column.take(pa.array(order)) for column in keys]
    is_new[1:] = ~equal_rows([c.slice(1) for c in near], [c.slice(0, len(c) - 1) for c in near])
    firsts = order[is_new]
    found = snapshot.find(hashes[firsts], [key.take(pa.array(firsts)) for key in keys])
    at = found.at[np.cumsum(is_new) - 1]
    hit = np.flatnonzero(at >= 0)
    columns = found.rows.take(schema.run.names, at[hit])
    return pa.RecordBatch.from_arrays(columns, schema=schema.run), order[hit]


def _taken_by_tasks(
    deletes: pa.RecordBatch, notes: pa.RecordBatch, schema: TableSchema
) -> tuple[Positions, pa.RecordBatch]:
    """Return pairs of a move and a task's note of what it took (`_noting_deletes`)."""
    moves, at = _rows_of_keys(Rows(schema, [BatchPart(notes)]), deletes)
    noted = notes.column(MOVED).take(pa.array(at)).flatten()
    order = [deletes.column(name).take(pa.array(moves)) for name in schema.order_columns]
    same = compare(noted, order) == 0
    return moves[same], notes.take(pa.array(at[same]))


def _kinds_beside_tasks(
    states: MarkKinds, at: pa.Array, name: str, taken: tuple[Positions, pa.RecordBatch]
) -> MarkKinds:
    """Return the kinds of the values that moves carry beside what tasks took.

    ``states`` and ``at`` have the kinds and orders of the values.

    A newer value replaces that of the task.
    """
    moves, notes = taken
    kinds = np.full(len(at), VALUE_RECARRIED, dtype=np.int8)
    noted = notes.column(moved_column(name))
    known = np.flatnonzero(mask_of(noted.is_valid()))
    chosen = moves[known]
    own = [*at.take(pa.array(chosen)).flatten(), strengths_of(states[chosen])]
    is_newer = compare(own, orders_and_strengths(noted.take(pa.array(known)))) > 0
    kinds[chosen[~is_newer]] = VALUE_UNCHANGED
    return kinds


def _puts(
    part: CombinedPart,
    deletes: pa.RecordBatch,
    schema: TableSchema,
    taken: tuple[Positions, pa.RecordBatch] | None,
) -> tuple[pa.RecordBatch, Mask]:
    """Return the puts of moves' new keys with the values of their states, without empty ones.

    With ``taken``, what tasks have taken already, with the others alone. And the moves with any value
    that is newer.
    """
    columns = {}
    has_any, has_newer = (np.full(len(part), value) for value in (False, taken is None))
    all_rows = np.arange(len(part))
    for name in schema.values:
        columns[name], kept, at = part.take([name, kept_column(name), at_column(name)], all_rows)
        states = kinds_of(kept)
        carried = VALUE_CARRIED if taken is None else _kinds_beside_tasks(states, at, name, taken)
        kinds = np.where(have_values(states), carried, VALUE_UNCHANGED).astype(np.int8)
        columns[kept_column(name)] = pa.array(kinds)
        has_any |= kinds != VALUE_UNCHANGED
        has_newer |= kinds == VALUE_RECARRIED
    columns |= {key: deletes.column(moved_to_column(key)) for key in schema.keys}
    columns[HASH] = pa.array(_target_hashes(deletes, schema))
    puts = _entries(deletes, PUT, columns, schema).filter(pa.array(has_any))
    return puts, has_newer


def _noting_deletes(
    part: CombinedPart, deletes: pa.RecordBatch, schema: TableSchema
) -> pa.RecordBatch:
    """Return the deletes of moves' old keys, with the orders of what decided their values."""
    order = [deletes.column(name) for name in schema.order_columns]
    fields = list(schema.run_marks[MOVED].type)
    columns = {MOVED: pa.StructArray.from_arrays(order, fields=fields)}
    for name in schema.values:
        kept, at = part.take([kept_column(name), at_column(name)], np.arange(len(part)))
        # Below the move, so the order is never the state's own, and is given.
        kinds = kinds_of(kept)
        columns[moved_column(name)] = pa.StructArray.from_arrays(
            [*at.flatten(), pa.array(kinds)],
            fields=list(schema.run_marks[moved_column(name)].type),
            mask=pa.array(kinds == VALUE_UNCHANGED),
        )
    columns |= {name: deletes.column(name) for name in (HASH, *schema.identity)}
    return _entries(deletes, TOMBSTONE, columns, schema)


def _entries(
    deletes: pa.RecordBatch, diff: int, columns: Mapping[str, pa.Array], schema: TableSchema
) -> pa.RecordBatch:
    """Return entries at moves' orders, with some columns; the others are null."""
    count = deletes.num_rows
    known = {name: deletes.column(name) for name in schema.order_columns} | dict(columns)
    known[DIFF] = pa.array(np.full(count, diff, dtype=np.int8))
    arrays = [
        known[field.name] if field.name in known else pa.nulls(count, field.type)
        for field in schema.run
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.run)
