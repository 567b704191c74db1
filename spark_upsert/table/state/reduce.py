"""Merge mechanisms: how several entries of a key become one (`merge_function_for`; docs/adr/0007).

Choosing engines (`resolve`) work on row numbers and move no value; folding engines (`fold`) make
new entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.keys import Mask, Positions, Words, compare, compare_words, ordered_words
from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.precedence import NEW_CONTENTS, NONE, EpochOf, Precedence, PrecedenceResult
from spark_upsert.core.schema import DIFF, HASH, PUT, TableSchema
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.fold import fold, fold_arranged
from spark_upsert.table.state.registers import (
    CombinedPart,
    are_open,
    are_strayed,
    are_unknown,
    combine,
    contradict,
    have_moved,
    reach_below,
    shown_diffs,
)
from spark_upsert.table.state.resolve import (
    are_winners,
    arrange,
    content_words,
    decide_between_parts,
    epochs_by_part,
    equal_contents,
    have_reasons,
    pick_winners,
    resolve,
)

ABSENT = NONE


@dataclass(frozen=True, slots=True)
class EntryMatches:
    """The position of the table's entry for each probed key."""

    rows: Rows
    """All rows in the searched state."""
    at: Positions
    """For each key, the row number in ``rows``, or `ABSENT`."""

    @property
    def present(self) -> Mask:
        """Whether the table has an entry: a row, a tombstone or an error."""
        return self.at != ABSENT


class RowsByKey(NamedTuple):
    """Rows for the requested keys."""

    rows: pa.RecordBatch
    """Each matching row, once, in key hash order."""
    at: Positions
    """For each key, its row's position, or `ABSENT`."""


LookUp = Callable[[npt.NDArray[np.uint64], Sequence[pa.Array]], EntryMatches]
"""Finds entries by key, from the ascending key hashes (`table.state.lookup`)."""


class History(NamedTuple):
    """Each key's entries before and after every epoch affecting it, grouped by key."""

    rows: Rows
    old: Positions
    """The entry before, or `ABSENT`."""
    new: Positions
    """The entry after."""
    epochs: npt.NDArray[np.int64]
    begins: Mask
    """Whether the row is its key's first."""


def chosen_history(commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> History:
    """Return the effect of the winning commands on the entries; losing commands have none."""
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
    """Append the state's entries for the given keys; also return their positions, or `ABSENT`."""
    schema = commands.schema
    hashes = commands.hashes[probes]
    matches = look_up(hashes, commands.take(schema.identity, probes))
    # The matches are copied once, with all columns: they are scattered over many files.
    hit = np.flatnonzero(matches.present)
    names = [name for name in schema.run.names if name != HASH]
    columns = [pa.array(hashes[hit]), *matches.rows.take(names, matches.at[hit])]
    state_part = BatchPart(pa.RecordBatch.from_arrays(columns, names=[HASH, *names]))
    base = np.full(len(matches.at), ABSENT, dtype=np.int64)
    base[hit] = np.arange(len(hit)) + len(commands)
    # In one part, so all further reads are one call each.
    return Rows(schema, [*commands.parts, state_part]).gathered(schema.run.names), base


def _winners_by_epoch(commands: Rows, epoch_of: EpochOf) -> tuple[Positions, Positions]:
    """Return the winning command per (key, epoch), in that order, and the key's number."""
    order, begins = arrange(commands, None, lambda members: [epoch_of(members)])
    key_index = np.cumsum(begins) - 1
    if bool(begins.all()):
        return order, key_index
    epochs = epoch_of(order)
    keep = begins.copy()
    keep[1:] |= epochs[1:] != epochs[:-1]
    if bool(keep.all()):
        return order, key_index
    return pick_winners(commands, order, np.flatnonzero(keep)), key_index[keep]


def _effective(rows: Rows, chosen: Positions, key_index: Positions, base: Positions) -> Mask:
    """Return a mask: the commands effective over all earlier ones for their key.

    All keys advance in parallel, one epoch per step: the number of steps is the busiest key's
    epoch count.
    """
    precedence = Precedence.of(rows.schema)
    effective = np.ones(len(chosen), dtype=np.bool_)
    if precedence.newest_wins:
        return effective
    hit = np.flatnonzero(base != ABSENT)
    # The commands, followed by the table's previous entries.
    entries = np.concatenate([chosen, base[hit]])
    names = rows.schema.order_columns if precedence.compares_order_across_epochs else ()
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
        effective[met] = precedence.compare_with_older(order, same).win
        wins = now[effective[now]]
        best[key_index[wins]] = wins
    return effective


def folded_history(commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> History:
    """Fold the commands into the state, one epoch per key at a time.

    The number of steps is the busiest key's epoch count; each step recreates its keys' entries.
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
    matches = look_up(commands.hashes[probes], commands.take(schema.identity, probes))
    parts = [*commands.parts, *matches.rows.parts]
    current = np.where(matches.present, matches.at + len(commands), ABSENT)
    old, new = (np.full(int(pair[-1]) + 1, ABSENT, dtype=np.int64) for _ in range(2))
    for now in range(int(turn.max()) + 1):
        row_indices = np.flatnonzero(turn == now)
        keys = np.unique(key_index[row_indices])
        rows = Rows(schema, parts)
        current_rows, sent = current[keys], np.sort(order[row_indices])
        folded = _folded_into(rows, current_rows[current_rows != ABSENT], sent)
        pairs = first_pair[keys] + now
        old[pairs] = current_rows
        # Folded entries and keys are both in the order of (hash, key).
        current[keys] = np.arange(len(folded)) + len(rows)
        new[pairs] = current[keys]
        parts += folded.parts
    rows = Rows(schema, parts)
    return History(rows, old, new, row_epochs[is_new_epoch], begins[is_new_epoch])


def _folded_into(rows: Rows, known: Positions, sent: Positions) -> Rows:
    """Fold one epoch's commands into the older state entries."""
    schema = rows.schema
    both = Rows(schema, [BatchPart(_take_batch(rows, chosen)) for chosen in (known, sent)])
    return fold(both, epochs=epochs_by_part(both, [0, 1])).rows


def _take_batch(rows: Rows, chosen: Positions) -> pa.RecordBatch:
    """Return the chosen rows with all columns, as one batch."""
    names = rows.schema.run.names
    return pa.RecordBatch.from_arrays(rows.take(names, chosen), schema=rows.schema.run)


class ReducedEntries(NamedTuple):
    """One entry per key."""

    rows: Rows
    """Rows containing the entries: the input rows, or newly created ones."""
    at: Positions
    """Entry positions in ``rows``, sorted by (hash, key)."""
    losers: Positions
    """Positions of the losing rows, if an entry was chosen."""
    beaten_by: Positions
    """The winner for each loser's key."""
    folded: int = 0
    """Number of rows folded into other entries, if none was chosen."""

    def batch(self) -> pa.RecordBatch:
        """Return the entries as a batch."""
        rows, schema = self.rows, self.rows.schema.run
        if len(rows.parts) == 1 and np.array_equal(self.at, np.arange(len(rows))):
            columns = rows.slice(0, schema.names, 0, len(rows))
        else:
            columns = rows.take(schema.names, self.at)
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class KeyMatches(NamedTuple):
    """The probed keys in one part."""

    part: int
    probes: Positions
    """The keys, as positions among the probes."""
    rows: Positions
    """Their entries."""


class StoredComparison(NamedTuple):
    """The effect of newer entries on older ones with the same keys."""

    was: pa.Array
    """The older entries' `DIFF`."""
    becomes: pa.Array
    """The resulting entries' `DIFF`, where the newer ones take effect."""
    standing: PrecedenceResult
    becomes_unknown: Mask
    """Whether the newer entry leaves a row with a value that no command has set (`registers`)."""
    completes: Mask
    """Whether the older entry is such a row, and the result is not."""
    are_filled: Mask
    """Whether the newer entry takes effect below the older one's order."""
    are_strayed: Mask
    """Whether the newer entry came after its row had moved to another key with older values."""
    reaches_below: Mask
    """Whether the newer entry is below the older one, and nothing is known of what it sets."""


class MergeFunction(Protocol):
    """A merge engine's operations on a key's entries."""

    def reduce(
        self,
        rows: Rows,
        *,
        chosen: Positions | None = None,
        epochs: EpochOf | None = None,
        is_one_task: bool = False,
    ) -> ReducedEntries:
        """Reduce each key's rows to one entry."""
        ...

    def mark_winners(self, rows: Rows, epochs: Sequence[int]) -> tuple[Rows, Mask]:
        """Return rows and a mask selecting one row per key.

        For a read, which needs no order and passes on complete parts: most keys have one row.
        """
        ...

    def gather(
        self, rows: Rows, epochs: Sequence[int], hits: Iterable[KeyMatches], count: int
    ) -> EntryMatches:
        """Return the entry for each of ``count`` probed keys."""
        ...

    def compare_with_stored(
        self, newer: Rows, newer_positions: Positions, older: Rows, older_positions: Positions
    ) -> StoredComparison:
        """Return the effect of newer entries on stored older entries with the same keys.

        The positions select one entry per key in their rows: the n-th newer and the n-th older
        position have the same key. Both are sorted by (hash, key).
        """
        ...

    def history(self, commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> History:
        """Return the effect of several epochs' commands on the entries found by a look-up."""
        ...


def merge_function_for(schema: TableSchema) -> MergeFunction:
    """Return the merge function with which a table's engine reduces entries."""
    if schema.engine.folds:
        return Aggregating()
    kind = RegisterWise if schema.has_registers else LastWriteWins
    return kind(Precedence.of(schema))


@dataclass(frozen=True, slots=True)
class LastWriteWins:
    """Selects one entry unchanged as the winner."""

    precedence: Precedence

    def reduce(
        self,
        rows: Rows,
        *,
        chosen: Positions | None = None,
        epochs: EpochOf | None = None,
        is_one_task: bool = False,
    ) -> ReducedEntries:
        resolved = resolve(rows, chosen=chosen, epochs=epochs, is_one_task=is_one_task)
        return ReducedEntries(rows, *resolved)

    def mark_winners(self, rows: Rows, epochs: Sequence[int]) -> tuple[Rows, Mask]:
        return rows, are_winners(rows, epochs)

    def gather(
        self, rows: Rows, epochs: Sequence[int], hits: Iterable[KeyMatches], count: int
    ) -> EntryMatches:
        at = np.full(count, ABSENT, dtype=np.int64)
        probes, chosen_rows = _concat_matches(hits)
        contested = (np.bincount(probes, minlength=count) > 1)[probes]
        at[probes[~contested]] = chosen_rows[~contested]
        probes, chosen_rows = probes[contested], chosen_rows[contested]
        if len(probes):
            # Parts come in the order of time, and each is sorted: this merges them.
            order = np.argsort(probes, kind="stable")
            probes, members = probes[order], chosen_rows[order]
            firsts = np.flatnonzero(np.append(True, probes[1:] != probes[:-1]))
            at[probes[firsts]] = self.precedence.pick_winners(
                members,
                firsts,
                # Read part by part, as they were found, and then put in order.
                order=lambda _: [
                    column.take(pa.array(order))
                    for column in rows.take(rows.schema.order_columns, chosen_rows)
                ],
                epochs=epochs_by_part(rows, epochs),
                contents=partial(content_words, rows),
            )
        return EntryMatches(rows, at)

    def compare_with_stored(
        self, newer: Rows, newer_positions: Positions, older: Rows, older_positions: Positions
    ) -> StoredComparison:
        compares_order = self.precedence.compares_order_across_epochs
        names = newer.schema.order_columns if compares_order else ()
        diffs, was = shown_diffs(newer, newer_positions), shown_diffs(older, older_positions)
        order, order_then = newer.take(names, newer_positions), older.take(names, older_positions)
        signs = (
            compare(order, order_then) if order else np.zeros(len(newer_positions), dtype=np.int8)
        )
        standing = self.precedence.compare_with_older(
            signs,
            lambda equal: equal_contents(
                newer, newer_positions[equal], older, older_positions[equal]
            ),
            lambda other: have_reasons(
                newer, newer_positions[other], older, older_positions[other]
            ),
        )
        unknown, was_unknown = (
            are_unknown(rows, at)
            for rows, at in ((newer, newer_positions), (older, older_positions))
        )
        nothing = np.zeros(len(signs), dtype=np.bool_)
        return StoredComparison(
            was,
            diffs,
            standing,
            becomes_unknown=unknown & ~was_unknown & standing.win,
            completes=was_unknown & ~unknown & standing.win,
            are_filled=nothing,
            are_strayed=nothing,
            reaches_below=nothing,
        )

    def history(self, commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> History:
        return chosen_history(commands, epoch_of, look_up)


@dataclass(frozen=True, slots=True)
class RegisterWise(LastWriteWins):
    """Selects a winner, and combines the entries of keys whose winner has marks (`registers`)."""

    def reduce(
        self,
        rows: Rows,
        *,
        chosen: Positions | None = None,
        epochs: EpochOf | None = None,
        is_one_task: bool = False,
    ) -> ReducedEntries:
        reduced = LastWriteWins.reduce(
            self, rows, chosen=chosen, epochs=epochs, is_one_task=is_one_task
        )
        contested = np.unique(reduced.beaten_by)
        moved = np.unique(reduced.beaten_by[have_moved(rows, reduced.losers)])
        contested = contested[are_open(rows, contested) | np.isin(contested, moved)]
        if not len(contested):
            return reduced
        by_row = np.argsort(reduced.at)
        entries = by_row[np.searchsorted(reduced.at[by_row], contested)]
        loses = np.flatnonzero(np.isin(reduced.beaten_by, contested))
        of_loser = entries[np.searchsorted(contested, reduced.beaten_by[loses])]
        members = np.concatenate([contested, reduced.losers[loses]])
        combined, keys = _combined(
            rows, members, np.concatenate([entries, of_loser]), epochs, is_one_task=is_one_task
        )
        at = reduced.at.copy()
        at[keys] = len(rows) + np.arange(len(keys))
        return reduced._replace(rows=Rows(rows.schema, [*rows.parts, combined]), at=at)

    def mark_winners(self, rows: Rows, epochs: Sequence[int]) -> tuple[Rows, Mask]:
        wins = np.ones(len(rows), dtype=np.bool_)
        decided = decide_between_parts(rows, epochs)
        if decided is None:
            return rows, wins
        wins[decided.members] = False
        wins[decided.best] = True
        is_open = are_open(rows, decided.best)
        if not is_open.any():
            return rows, wins
        counts = np.diff(decided.groups, append=len(decided.members))
        members = decided.members[np.repeat(is_open, counts)]
        key_of = np.repeat(np.flatnonzero(is_open), counts[is_open])
        combined, _ = _combined(rows, members, key_of, epochs_by_part(rows, epochs))
        wins[members] = False
        rows = Rows(rows.schema, [*rows.parts, combined])
        return rows, np.append(wins, np.ones(len(combined), dtype=np.bool_))

    def gather(
        self, rows: Rows, epochs: Sequence[int], hits: Iterable[KeyMatches], count: int
    ) -> EntryMatches:
        hits = list(hits)
        matches = LastWriteWins.gather(self, rows, epochs, hits, count)
        probes, members = _concat_matches(hits)
        several = np.flatnonzero(np.bincount(probes, minlength=count) > 1)
        moved = probes[have_moved(rows, members)]
        several = several[are_open(rows, matches.at[several]) | np.isin(several, moved)]
        if not len(several):
            return matches
        is_member = np.isin(probes, several)
        combined, keys = _combined(
            rows, members[is_member], probes[is_member], epochs_by_part(rows, epochs)
        )
        at = matches.at.copy()
        at[keys] = len(rows) + np.arange(len(keys))
        return EntryMatches(Rows(rows.schema, [*rows.parts, combined]), at)

    def compare_with_stored(
        self, newer: Rows, newer_positions: Positions, older: Rows, older_positions: Positions
    ) -> StoredComparison:
        compared = LastWriteWins.compare_with_stored(
            self, newer, newer_positions, older, older_positions
        )
        is_open = are_open(older, older_positions) | are_open(newer, newer_positions)
        pairs = np.flatnonzero(is_open)
        if len(pairs):
            compared = _compared_by_register(
                compared, pairs, newer, newer_positions[pairs], older, older_positions[pairs]
            )
        strayed = are_strayed(newer, newer_positions, older, older_positions)
        return compared._replace(are_strayed=strayed & ~compared.standing.are_duplicates)

    def history(self, commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> History:
        return register_history(commands, epoch_of, look_up)


def _combined(
    rows: Rows,
    members: Positions,
    key_of: Positions,
    epochs: EpochOf | None,
    *,
    is_one_task: bool = False,
) -> tuple[CombinedPart, Positions]:
    """Return the combined entries of some keys, and these keys, ascending.

    Parameters
    ----------
    rows : Rows
    members : numpy.ndarray of int64
        All entries of the keys.
    key_of : numpy.ndarray of int64
        Each member's key, by any number.
    """
    order = np.lexsort([members, key_of])
    members, key_of = members[order], key_of[order]
    begins = np.diff(key_of, prepend=-1) != 0
    combination = combine(rows, members, begins, epochs, is_one_task=is_one_task)
    lasts = np.flatnonzero(np.append(begins[1:], True))
    return combination.part(lasts), key_of[begins]


def _compared_by_register(
    compared: StoredComparison,
    pairs: Positions,
    newer: Rows,
    newer_positions: Positions,
    older: Rows,
    older_positions: Positions,
) -> StoredComparison:
    """Return a comparison in which some pairs of entries, as given, are compared by register."""
    both = Rows(newer.schema, [*older.parts, *newer.parts])
    members = np.stack([older_positions, newer_positions + len(older)], axis=1).ravel()
    is_first = np.arange(len(members)) % 2 == 0

    def is_newer(rows: Positions) -> Words:
        return (rows >= len(older)).astype(np.uint64)

    combination = combine(both, members, is_first, is_newer)
    before = np.flatnonzero(is_first)
    after = before + 1
    entries = Rows(both.schema, [combination.part(after)])
    at = np.arange(len(entries))
    changes = combination.changes_from(after, before)
    order = [
        rows.take(newer.schema.order_columns, positions)
        for rows, positions in ((newer, newer_positions), (older, older_positions))
    ]
    signs = compare(*order) if order[0] else np.ones(len(pairs), dtype=np.int8)
    precedence = Precedence.of(newer.schema)
    standing = precedence.compare_with_older(
        signs,
        lambda equal: (
            ~changes[equal]
            & ~contradict(newer, newer_positions[equal], older, older_positions[equal])
        ),
        lambda others: (
            have_reasons(newer, newer_positions[others], older, older_positions[others])
            | ~contradict(newer, newer_positions[others], older, older_positions[others])
        ),
    )
    wins = changes & ~standing.are_duplicates
    are_late = (signs < 0) & precedence.compares_order_across_epochs
    is_below = (signs <= 0) & precedence.compares_order_across_epochs
    becomes = compared.becomes.to_numpy().copy()
    becomes[pairs] = shown_diffs(entries, at).to_numpy()
    fills = is_below & wins & (becomes[pairs] == PUT) & combination.fills_below(after, before)
    unknown, was_unknown = are_unknown(entries, at), are_unknown(older, older_positions)

    def merged(mask: Mask, values: Mask) -> Mask:
        result = mask.copy()
        result[pairs] = values
        return result

    total = compared.standing
    return StoredComparison(
        compared.was,
        pa.array(becomes),
        PrecedenceResult(
            merged(total.win, wins),
            merged(total.are_duplicates, standing.are_duplicates),
            merged(total.are_tied, standing.are_tied),
        ),
        merged(compared.becomes_unknown, unknown & ~was_unknown & wins),
        merged(compared.completes, was_unknown & ~unknown & wins),
        merged(compared.are_filled, fills),
        compared.are_strayed,
        merged(
            compared.reaches_below,
            are_late & wins & reach_below(newer, newer_positions, older, older_positions),
        ),
    )


def register_history(commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> History:
    """Return the effect of the commands on the entries, register by register."""
    order, begins = arrange(commands, None, lambda members: [epoch_of(members)])
    rows, base = _with_state(commands, order[begins], look_up)
    key_of, is_base = np.cumsum(begins) - 1, base != ABSENT
    # Each key's entry in the state comes before its commands.
    members = np.concatenate([base[is_base], order])
    keys = np.concatenate([np.flatnonzero(is_base), key_of])
    by_key = np.argsort(keys, kind="stable")
    members, keys = members[by_key], keys[by_key]
    row_epochs = np.zeros(len(rows), dtype=np.uint64)
    row_epochs[order] = epoch_of(order) + np.uint64(1)
    begins = np.diff(keys, prepend=-1) != 0
    combination = combine(rows, members, begins, lambda at: row_epochs[at])
    # One state for each epoch of a key, and for the entry before them.
    epochs = row_epochs[members]
    is_last = np.append((keys[1:] != keys[:-1]) | (epochs[1:] != epochs[:-1]), True)[: len(keys)]
    states = np.flatnonzero(is_last)
    is_first = np.diff(keys[states], prepend=-1) != 0
    follows = np.flatnonzero(~is_first)
    changed = is_first.copy()
    changed[follows] = combination.changes_from(states[follows], states[follows - 1])
    positions = len(rows) + np.arange(len(states))
    old = np.full(len(states), ABSENT, dtype=np.int64)
    old[follows] = positions[follows - 1]
    effective = np.flatnonzero(changed & (epochs[states] > 0))
    rows = Rows(rows.schema, [*rows.parts, combination.part(states)])
    key_of = keys[states][effective]
    return History(
        rows,
        old[effective],
        positions[effective],
        (epochs[states][effective] - np.uint64(1)).astype(np.int64),
        np.diff(key_of, prepend=-1) != 0,
    )


class Aggregating:
    """Folds all entries into a new one."""

    def reduce(
        self,
        rows: Rows,
        *,
        chosen: Positions | None = None,
        epochs: EpochOf | None = None,
        is_one_task: bool = False,
    ) -> ReducedEntries:
        if epochs is None and not is_one_task:
            epochs = epochs_by_part(rows, [0] * len(rows.parts))
        folded = fold(rows, chosen, epochs).rows
        count = len(rows) if chosen is None else len(chosen)
        return ReducedEntries(
            folded, np.arange(len(folded)), _NOTHING, _NOTHING, count - len(folded)
        )

    def mark_winners(self, rows: Rows, epochs: Sequence[int]) -> tuple[Rows, Mask]:
        if len(rows.parts) > 1:
            rows = fold(rows, epochs=epochs_by_part(rows, epochs)).rows
        return rows, np.ones(len(rows), dtype=np.bool_)

    def gather(
        self, rows: Rows, epochs: Sequence[int], hits: Iterable[KeyMatches], count: int
    ) -> EntryMatches:
        probes, chosen_rows = _concat_matches(hits)
        at = np.full(count, ABSENT, dtype=np.int64)
        if rows.schema.order:
            order = np.argsort(chosen_rows)
            probes, chosen_rows = probes[order], chosen_rows[order]
            folded = fold(rows, chosen_rows, epochs_by_part(rows, epochs))
            at[probes[np.searchsorted(chosen_rows, folded.firsts)]] = np.arange(len(folded.rows))
        else:
            # Parts come in the order of time, and each is sorted: this merges them.
            order = np.argsort(probes, kind="stable")
            probes, chosen_rows = probes[order], chosen_rows[order]
            begins = np.diff(probes, prepend=ABSENT) != 0
            folded = fold_arranged(rows, chosen_rows, begins)
            at[probes[begins]] = np.arange(len(folded.rows))
        return EntryMatches(folded.rows, at)

    def compare_with_stored(
        self, newer: Rows, newer_positions: Positions, older: Rows, older_positions: Positions
    ) -> StoredComparison:
        [was] = older.take([DIFF], older_positions)
        both = Rows(newer.schema, [*older.parts, *newer.parts])
        # Each older entry is followed by the newer one with its key, so no sort is needed.
        order = np.stack([older_positions, newer_positions + len(older)], axis=1).ravel()
        folded = fold_arranged(both, order, np.arange(len(order)) % 2 == 0)
        [becomes] = folded.rows.take([DIFF], np.arange(len(folded.rows)))
        nothing = np.zeros(len(newer_positions), dtype=np.bool_)
        standing = PrecedenceResult(~nothing, nothing, nothing)
        return StoredComparison(was, becomes, standing, *[nothing] * 5)

    def history(self, commands: Rows, epoch_of: EpochOf, look_up: LookUp) -> History:
        return folded_history(commands, epoch_of, look_up)


def _concat_matches(hits: Iterable[KeyMatches]) -> tuple[Positions, Positions]:
    """Return all parts' probes, concatenated in part order, and their entries."""
    parts = list(hits)
    probes = np.concatenate([_NOTHING, *(part.probes for part in parts)])
    return probes, np.concatenate([_NOTHING, *(part.rows for part in parts)])


REPLACING: MergeFunction = LastWriteWins(NEW_CONTENTS)
"""MergeFunction between an overwrite and the replaced entries, for any engine."""

_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Row counts for one epoch, or a part of it, by outcome. Unit: rows.

        rows   = inserts + updates + deletes + absent + quarantined        (eligible)
                 + superseded + duplicates + stale + rejected + skipped    (ignored)
        output = inserts + 2 * updates + deletes + displaced + retracted + restored
        live   = live before + inserts - deletes - displaced - retracted + restored

    ``displaced`` is a subset of ``quarantined``; ``tied``, ``late``, ``filled``, ``unknown``,
    ``strayed`` and ``completed`` overlap the others. A put
    clearing an error entry is an insert, a delete doing so is ``absent``. An event moving a row to
    another key counts as two rows. Unchanged updates count as updates.

    Source: Materialize, ``DrainStats`` in ``upsert_continual_feedback_v2.rs``.
    """

    rows: int = 0
    """Input rows."""
    inserts: int = 0
    """Keys without a row before and with a row after the epoch."""
    updates: int = 0
    """Keys with a row before and after the epoch."""
    deletes: int = 0
    """Keys with a row before, deleted by a command."""
    absent: int = 0
    """Deletes for keys without a row."""
    superseded: int = 0
    """Superseded by another row with the same key in the same epoch, or folded into it."""
    duplicates: int = 0
    """Equal in order and content to a row in the same epoch, or to the committed entry."""
    stale: int = 0
    """Older than the key's committed entry; with `Ties.FIRST`, or tied with it."""
    rejected: int = 0
    """Left out: unknown key, and so old that its delete may be forgotten."""
    skipped: int = 0
    """Rows without a command: redundant to another row, or without a key."""
    retracted: int = 0
    """Rows whose keys an overwrite left out; for a restore, all previous rows."""
    restored: int = 0
    """Rows brought back from the old version by a restore; not part of the input."""
    quarantined: int = 0
    """Rows that could not be applied and became their key's error entry."""
    displaced: int = 0
    """Rows removed because a row with the same key was quarantined."""
    tied: int = 0
    """Rows with the same key and order key as another row, but other content."""
    late: int = 0
    """Rows with unknown keys, applied although deletes of their age are forgotten."""
    filled: int = 0
    """Rows below their key's newest entry that set a value of it."""
    unknown: int = 0
    """Keys whose rows came to lack a value, because no command has set it."""
    strayed: int = 0
    """Rows that came after their key's row had moved to another key, with older values."""
    completed: int = 0
    """Keys whose rows lacked such a value, and have it now or are deleted."""

    def __add__(self, other: Counters) -> Counters:
        return Counters(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in _FIELDS})

    def __sub__(self, other: Counters) -> Counters:
        return Counters(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in _FIELDS})

    @property
    def eligible(self) -> int:
        """Commands that took effect or deleted nothing."""
        return self.inserts + self.updates + self.deletes + self.absent + self.quarantined

    @property
    def result_count(self) -> int:
        """Eligible commands for a key with a previous row."""
        return self.updates + self.deletes + self.displaced

    @property
    def output_count(self) -> int:
        """Changelog row count, including unchanged pairs."""
        gone = self.deletes + self.displaced + self.retracted
        return self.inserts + 2 * self.updates + gone + self.restored

    @property
    def live_delta(self) -> int:
        """By how many rows the snapshot grew."""
        gone = self.deletes + self.displaced + self.retracted
        return self.inserts + self.restored - gone

    @property
    def is_balanced(self) -> bool:
        """Whether every input row is accounted for."""
        ignored = self.superseded + self.duplicates + self.stale + self.rejected + self.skipped
        return self.rows == self.eligible + ignored

    def to_json(self) -> dict[str, int]:
        """Return the log representation; the newest counters only if they are not zero."""
        record = asdict(self)
        return {n: count for n, count in record.items() if count or n not in _NEWEST_COUNTERS}

    @classmethod
    def from_json(cls, record: Mapping[str, int]) -> Counters:
        """Rebuild counters from a log record; missing counters are zero."""
        field_names = {f.name for f in _FIELDS}
        return cls(**{name: value for name, value in record.items() if name in field_names})


_FIELDS = fields(Counters)
_NEWEST_COUNTERS = ("filled", "unknown", "strayed", "completed")
EMPTY = Counters()

STALE_MIN = 10
"""Minimum rows in an epoch, or consecutive epochs, before an all-stale input is reported: a
few late rows can also arrive in small batches.
"""


def count_all_stale(counters: Counters, schema: TableSchema) -> int:
    """Return an epoch's stale row count if no row took effect for that reason, else 0.

    A duplicate among them indicates a replay of rows already in the table. With the
    merge engine ``first-row``, all rows except a key's first are stale by design.
    """
    others = counters.eligible + counters.duplicates + counters.rejected
    is_usual = schema.engine.kind is Engine.FIRST_ROW
    return 0 if others or is_usual else counters.stale
