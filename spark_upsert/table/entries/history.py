"""The entries that commands make of older ones, one epoch of each key after the other.

Once for engines that choose an entry and once for those that fold them: the first compare
order keys and move nothing, the others make each entry anew.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.precedence import EpochOf, Precedence
from spark_upsert.model.schema import HASH
from spark_upsert.model.words import compare_words, ordered_words
from spark_upsert.table.entries.content import equal_contents
from spark_upsert.table.entries.fold import fold
from spark_upsert.table.entries.found import ABSENT, LookUp
from spark_upsert.table.entries.resolve import arrange, best_of_groups, epochs_by_part
from spark_upsert.table.run.rows import BatchPart, Rows


class History(NamedTuple):
    """The entries of keys before and after each epoch that does something to them, key by key."""

    rows: Rows
    old: Positions
    """The entry before, or `ABSENT`."""
    new: Positions
    """The entry after."""
    epochs: npt.NDArray[np.int64]
    begins: Mask
    """Whether it is the first of its key."""


def chosen_history(commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> History:
    """Return what the commands that win make of the entries; those that lose do nothing."""
    chosen, key_index = _winners_by_epoch(commands, epoch_of)
    firsts = np.flatnonzero(np.diff(key_index, prepend=-1))
    rows, base = _with_state(commands, chosen[firsts], look_up)
    effective = _effective(rows, chosen, key_index, base)
    chosen, key_index = chosen[effective], key_index[effective]
    begins = np.diff(key_index, prepend=-1) != 0
    old = np.empty_like(chosen)
    old[1:] = chosen[:-1]
    old[begins] = base[key_index[begins]]
    return History(rows, old, chosen, epoch_of(chosen).astype(np.int64), begins)


def _with_state(commands: Rows, probes: Positions, look_up: LookUp) -> tuple[Rows, Positions]:
    """Add what the state holds of some keys; return also where, or `ABSENT`."""
    schema = commands.schema
    hashes = commands.hashes[probes]
    found = look_up(hashes, commands.take(schema.identity, probes))
    # What was found is gathered once, whole: it lies scattered over many files.
    hit = np.flatnonzero(found.present)
    names = [name for name in schema.run.names if name != HASH]
    columns = [pa.array(hashes[hit]), *found.rows.take(names, found.at[hit])]
    known = BatchPart(pa.RecordBatch.from_arrays(columns, names=[HASH, *names]))
    base = np.full(len(found.at), ABSENT, dtype=np.int64)
    base[hit] = np.arange(len(hit)) + len(commands)
    # In one part, so that all further looks at them are one call each.
    return Rows(schema, [*commands.parts, known]).gathered(schema.run.names), base


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


def folded_history(commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> History:
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
    rows = Rows(schema, parts)
    return History(rows, old, new, row_epochs[is_new_epoch], begins[is_new_epoch])


def _folded_into(rows: Rows, known: Positions, sent: Positions) -> Rows:
    """Fold commands of one epoch into entries of the state, which are older."""
    schema = rows.schema
    both = Rows(schema, [BatchPart(_batch(rows, chosen)) for chosen in (known, sent)])
    return fold(both, epochs=epochs_by_part(both, [0, 1])).rows


def _batch(rows: Rows, chosen: Positions) -> pa.RecordBatch:
    names = rows.schema.run.names
    return pa.RecordBatch.from_arrays(rows.take(names, chosen), schema=rows.schema.run)
