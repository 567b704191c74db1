"""The changelog: what epochs did to a state, as retractions and insertions.

    changes(state, commands) -> pairs of an old and a new entry

Pure: the same rows in, the same changes out, so that every reader, and every retry of a reader,
sees the same. Many epochs are computed in one pass: commands are arranged by (key, epoch), the
state is looked up once per key, and from there each command that takes effect retracts what the
one before it inserted.

For every ``e``: folding the changes of ``[0, e]`` from empty gives the snapshot at ``e``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.precedence import EpochOf, Precedence
from spark_upsert.model.schema import DIFF, HASH, TableSchema, is_live
from spark_upsert.model.words import Words, compare_words, ordered_words
from spark_upsert.state.content import equal_contents
from spark_upsert.state.fold import fold
from spark_upsert.state.lookup import ABSENT, Found
from spark_upsert.state.mechanism import Reduced, mechanism_of
from spark_upsert.state.resolve import (
    arrange,
    best_of_groups,
    epochs_by_part,
)
from spark_upsert.state.run.rows import BatchPart, Part, Rows

Entries = Sequence[tuple[Part, int]]
"""Parts with their epochs, in the order of the epochs."""

LookUp = Callable[[npt.NDArray[np.uint64], Sequence[pa.Array]], Found]
"""Finds the entries of keys in the state before the commands (`Snapshot.find`)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Pairs of old and new entries; row numbers into ``rows``, or `ABSENT`."""

    rows: Rows
    old: Positions
    """The row to retract."""
    new: Positions
    """The row to insert."""
    epochs: npt.NDArray[np.int64]


def changes_of_commands(
    commands: Entries, look_up: LookUp, *, schema: TableSchema, net: bool
) -> Changes:
    """Return what commands change in a state.

    Parameters
    ----------
    commands : sequence of (Part, epoch)
        One command per key and task in each epoch.
    look_up : LookUp
    schema : TableSchema
    net : bool
        Whether the changes of a key over all epochs make one, at the last of them.
    """
    parts = Rows(schema, [part for part, _ in commands])
    if not commands:
        return Changes(parts, _NONE, _NONE, _NONE)
    row_epochs = np.repeat([epoch for _, epoch in commands], np.diff(parts.starts))
    rows = parts.gathered(schema.run.names)

    def epoch_of(chosen: Positions) -> Words:
        return row_epochs[chosen].astype(np.uint64)

    compute = _folded_changes if schema.engine.folds else _chosen_changes
    changes, begins = compute(rows, epoch_of, look_up)
    return _of_rows(_net(changes, begins) if net else changes)


def changes_of_overwrite(
    before: Entries, after: Entries, *, schema: TableSchema, version: int
) -> Changes:
    """Return how one content differs from another; all changes are of one version."""
    sides = [_reduced(side, schema) for side in (before, after)]
    rows = Rows(schema, [part for side in sides for part in side.rows.parts])
    border = len(sides[0].rows)

    def side_of(members: Positions) -> list[Words]:
        return [(members >= border).astype(np.uint64)]

    entries = np.concatenate([sides[0].at, sides[1].at + border])
    order, begins = arrange(rows, np.sort(entries), side_of)
    key_index = np.cumsum(begins) - 1
    old, new = (np.full(int(begins.sum()), ABSENT, dtype=np.int64) for _ in range(2))
    is_new = order >= border
    old[key_index[~is_new]] = order[~is_new]
    new[key_index[is_new]] = order[is_new]
    return _of_rows(Changes(rows, old, new, np.full(len(old), version, dtype=np.int64)))


def _reduced(entries: Entries, schema: TableSchema) -> Reduced:
    """Return one entry per key of one side of a comparison."""
    rows = Rows(schema, [part for part, _ in entries])
    epochs = epochs_by_part(rows, [epoch for _, epoch in entries])
    return mechanism_of(schema).reduce(rows, epochs=epochs)


# -- engines that choose an entry -----------------------------------------------------


def _chosen_changes(commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> tuple[Changes, Mask]:
    """Return the changes by commands that win, key by key, and where each key begins."""
    chosen, key_index = _winners_by_epoch(commands, epoch_of)
    firsts = np.flatnonzero(np.diff(key_index, prepend=-1))
    rows, base = _with_state(commands, chosen[firsts], look_up)
    effective = _effective(rows, chosen, key_index, base)
    chosen, key_index = chosen[effective], key_index[effective]
    begins = np.diff(key_index, prepend=-1) != 0
    old = np.empty_like(chosen)
    old[1:] = chosen[:-1]
    old[begins] = base[key_index[begins]]
    return Changes(rows, old, chosen, epoch_of(chosen).astype(np.int64)), begins


def _with_state(commands: Rows, probes: Positions, look_up: LookUp) -> tuple[Rows, Positions]:
    """Add what the state holds of some keys; return also where, or `ABSENT`."""
    schema = commands.schema
    found = look_up(commands.hashes[probes], commands.take(schema.identity, probes))
    # What was found is gathered once, whole: it lies scattered over many files.
    hit = np.flatnonzero(found.present)
    names = [name for name in schema.run.names if name != HASH]
    known = pa.RecordBatch.from_arrays(found.rows.take(names, found.at[hit]), names=names)
    base = np.full(len(found.at), ABSENT, dtype=np.int64)
    base[hit] = np.arange(len(hit)) + len(commands)
    return Rows(schema, [*commands.parts, BatchPart(known)]), base


def _winners_by_epoch(commands: Rows, epoch_of: EpochOf) -> tuple[Positions, Positions]:
    """Return the winning command of each (key, epoch), in that order, and the key's number."""
    order, begins = arrange(commands, None, lambda members: [epoch_of(members)])
    key_index = np.cumsum(begins) - 1
    if bool(begins.all()):
        return order, key_index
    epochs = epoch_of(order)
    keep = begins.copy()
    keep[1:] |= epochs[1:] != epochs[:-1]
    if bool(keep.all()):
        return order, key_index
    return best_of_groups(commands, order, np.flatnonzero(keep)), key_index[keep]


def _effective(rows: Rows, chosen: Positions, key_index: Positions, base: Positions) -> Mask:
    """Return which commands take effect against all that came before them for their key.

    Keys advance together, one epoch of each at a time: as many steps as the busiest key has
    epochs.
    """
    precedence = Precedence.of(rows.schema)
    effective = np.ones(len(chosen), dtype=np.bool_)
    if precedence.newest_wins:
        return effective
    hit = np.flatnonzero(base != ABSENT)
    # The commands, and behind them what the table held before them.
    entries = np.concatenate([chosen, base[hit]])
    names = rows.schema.order_columns if precedence.order_reaches_back else ()
    words = [word for column in rows.take(names, entries) for word in ordered_words(column)]
    best = np.full(len(base), ABSENT, dtype=np.int64)
    best[hit] = len(chosen) + np.arange(len(hit))
    firsts = np.flatnonzero(np.diff(key_index, prepend=-1))
    turn = np.arange(len(chosen)) - firsts[key_index]
    by_turn = np.argsort(turn, kind="stable")
    ends = np.searchsorted(turn[by_turn], np.arange(int(turn.max(initial=-1)) + 2))
    for low, high in pairwise(ends):
        now = by_turn[low:high]
        met = now[best[key_index[now]] != ABSENT]
        older = best[key_index[met]]

        def same(equal: Positions, met: Positions = met, older: Positions = older) -> Mask:
            return equal_contents(rows, chosen[met[equal]], rows, entries[older[equal]])

        order = compare_words([(word[met], word[older]) for word in words], len(met))
        effective[met] = precedence.against_older(order, same).win
        wins = now[effective[now]]
        best[key_index[wins]] = wins
    return effective


# -- engines that fold entries ----------------------------------------------------------


def _folded_changes(commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> tuple[Changes, Mask]:
    """Fold the commands into the state, one epoch of each key at a time.

    As many steps as the busiest key has epochs; each makes the entries of its keys anew.
    """
    schema = commands.schema
    order, begins = arrange(commands, None, lambda members: [epoch_of(members)])
    key_index = np.cumsum(begins) - 1
    row_epochs = epoch_of(order).astype(np.int64)
    is_new_epoch = begins.copy()
    is_new_epoch[1:] |= row_epochs[1:] != row_epochs[:-1]
    pair = np.cumsum(is_new_epoch) - 1
    first_pair = pair[begins]
    turn = pair - first_pair[key_index]
    probes = order[begins]
    found = look_up(commands.hashes[probes], commands.take(schema.identity, probes))
    parts = [*commands.parts, *found.rows.parts]
    current = np.where(found.present, found.at + len(commands), ABSENT)
    old, new = (np.full(int(pair[-1]) + 1, ABSENT, dtype=np.int64) for _ in range(2))
    for now in range(int(turn.max()) + 1):
        places = np.flatnonzero(turn == now)
        keys = np.unique(key_index[places])
        rows = Rows(schema, parts)
        known, sent = current[keys], np.sort(order[places])
        folded = _folded_into(rows, known[known != ABSENT], sent)
        pairs = first_pair[keys] + now
        old[pairs] = known
        # Folded entries and keys are both in the order of (hash, key).
        current[keys] = np.arange(len(folded)) + len(rows)
        new[pairs] = current[keys]
        parts += folded.parts
    changes = Changes(Rows(schema, parts), old, new, row_epochs[is_new_epoch])
    return changes, begins[is_new_epoch]


def _folded_into(rows: Rows, known: Positions, sent: Positions) -> Rows:
    """Fold commands of one epoch into entries of the state, which are older."""
    schema = rows.schema
    both = Rows(schema, [BatchPart(_batch(rows, chosen)) for chosen in (known, sent)])
    return fold(both, epochs=epochs_by_part(both, [0, 1])).rows


def _batch(rows: Rows, chosen: Positions) -> pa.RecordBatch:
    names = rows.schema.run.names
    return pa.RecordBatch.from_arrays(rows.take(names, chosen), schema=rows.schema.run)


# -- pairs ------------------------------------------------------------------------------


def _net(changes: Changes, begins: Mask) -> Changes:
    """Make one pair of all pairs of a key: the first old entry and the last new one."""
    firsts = np.flatnonzero(begins)
    lasts = np.append(firsts[1:], len(begins))[: len(firsts)] - 1
    return Changes(changes.rows, changes.old[firsts], changes.new[lasts], changes.epochs[lasts])


def _of_rows(changes: Changes) -> Changes:
    """Replace entries that are no rows by `ABSENT` and drop the pairs in which nothing is left."""
    old, new = _live_only(changes.rows, changes.old), _live_only(changes.rows, changes.new)
    real = (old != ABSENT) | (new != ABSENT)
    return Changes(changes.rows, old[real], new[real], changes.epochs[real])


def _live_only(rows: Rows, chosen: Positions) -> Positions:
    hit = np.flatnonzero(chosen != ABSENT)
    live = chosen.copy()
    live[hit[~is_live(rows.take([DIFF], chosen[hit])[0])]] = ABSENT
    return live


_NONE = np.empty(0, dtype=np.int64)
