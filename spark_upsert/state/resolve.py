"""Which of several entries of one key wins: the one place where entries are compared.

Entries are put in order by (key hash, key, precedence); the first of each key wins. The
precedence follows the table's scope, and where it is equal the earlier row stays:

========  ============================================================
scope     the winner of a key
========  ============================================================
table     the greatest order key; of equal ones the earliest row
epoch     the latest epoch, then the greatest order key, then the earliest row
arrival   the latest row
========  ============================================================

With the engine ``first-row`` it is the smallest order key and the earliest epoch instead.

"Earlier" is the order of the rows given, which callers line up by (epoch, task, position).
The rule is associative, so that a stash, a compaction and a read may each apply it to any
part of the entries, in any grouping that keeps this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.engines import Engine
from spark_upsert.schema import Scope
from spark_upsert.state.rows import Rows
from spark_upsert.state.run import Positions
from spark_upsert.words import Words, equal_rows, ordered_words, sort_words

Epochs = npt.NDArray[np.uint64]


class Arrangement(NamedTuple):
    """Rows in the order of their keys."""

    order: Positions
    """Row numbers sorted by (hash, key, precedence)."""
    begins: npt.NDArray[np.bool_]
    """Whether a place in ``order`` is the first of its key."""


class Resolution(NamedTuple):
    """Winners and losers of a set of entries."""

    winners: Positions
    """One row per key, sorted by (hash, key)."""
    losers: Positions
    beaten_by: Positions
    """The winner of each loser's key."""


def arrange(
    rows: Rows, chosen: Positions | None, precedence: Callable[[Positions], Sequence[Words]]
) -> Arrangement:
    """Sort rows by (hash, key, precedence, row number).

    Parameters
    ----------
    rows : Rows
    chosen : numpy.ndarray of int64 or None
        The row numbers to sort, ascending; None for all.
    precedence : callable
        Takes row numbers, returns words by which rows of one key are sorted, smallest
        first. It is asked only about rows that share their hash with another.
    """
    hashes = rows.hashes if chosen is None else rows.hashes[chosen]
    places = np.argsort(hashes)
    order: Positions = places if chosen is None else chosen[places]
    begins = _begins(hashes[places])
    if bool(begins.all()):
        return Arrangement(order, begins)

    shared = ~begins
    shared[:-1] |= ~begins[1:]
    group = np.cumsum(begins[shared])
    members = order[shared]
    words = [np.asarray(word) for word in precedence(members)]
    by_precedence = np.lexsort((members, *reversed(words), group))
    same = _same_key_as_before(rows, members[by_precedence], group)
    if not bool((same | _begins(group)).all()):
        # Different keys share a hash: sort by the keys themselves, too.
        keys = sort_words(rows.take(rows.schema.identity, members))
        by_precedence = np.lexsort((members, *reversed(words), *reversed(keys), group))
        same = _same_key_as_before(rows, members[by_precedence], group)
    order[shared] = members[by_precedence]
    begins[shared] = ~same
    return Arrangement(order, begins)


def _same_key_as_before(
    rows: Rows, members: Positions, group: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return for each row of a sorted sequence whether the row before it has the same key."""
    same = np.zeros(len(members), dtype=np.bool_)
    near = np.flatnonzero(group[1:] == group[:-1]) + 1
    if rows.schema.hash_is_identity:
        same[near] = True
        return same
    keys = rows.take(rows.schema.identity, members)
    before, after = pa.array(near - 1), pa.array(near)
    same[near] = equal_rows([key.take(before) for key in keys], [key.take(after) for key in keys])
    return same


def precedence_of(
    rows: Rows, epochs: Callable[[Positions], Epochs] | None = None
) -> Callable[[Positions], list[Words]]:
    """Return the precedence of rows under their table's scope, the winner first.

    Parameters
    ----------
    rows : Rows
    epochs : callable, optional
        Gives the epoch of each row; needed where the rows are of several epochs.
    """
    schema = rows.schema

    def words(chosen: Positions) -> list[Words]:
        first_wins = schema.engine.kind is Engine.FIRST_ROW
        if schema.scope is Scope.ARRIVAL:
            places = chosen.astype(np.uint64)
            return [places if first_wins else ~places]
        order = [
            word if first_wins else ~word
            for column in rows.take(schema.order_columns, chosen)
            for word in ordered_words(column)
        ]
        if schema.scope is Scope.EPOCH and epochs is not None:
            return [epochs(chosen) if first_wins else ~epochs(chosen), *order]
        return order

    return words


def resolve(
    rows: Rows,
    *,
    chosen: Positions | None = None,
    epochs: Callable[[Positions], Epochs] | None = None,
) -> Resolution:
    """Return the winning entry of each key, sorted by (hash, key), and the losers.

    Notes
    -----
    Rows that share no hash win at once. The others are not sorted by precedence: the best
    of each key is found in a few passes over them. Only where different keys share a hash
    are they sorted by key (`arrange`).
    """
    precedence = precedence_of(rows, epochs)
    hashes = rows.hashes if chosen is None else rows.hashes[chosen]
    places = np.argsort(hashes)
    order: Positions = places if chosen is None else chosen[places]
    begins = _begins(hashes[places])
    if bool(begins.all()):
        none = np.empty(0, dtype=np.int64)
        return Resolution(order, none, none)
    shared = ~begins
    shared[:-1] |= ~begins[1:]
    members = order[shared]
    group = np.cumsum(begins[shared])
    if not bool((_same_key_as_before(rows, members, group) | _begins(group)).all()):
        arranged = arrange(rows, chosen, precedence)
        return _split(arranged.order, arranged.begins)
    best = _best_of_groups(members, np.flatnonzero(_begins(group)), precedence(members))
    winner = best[group - 1]
    loses = members != winner
    order[begins & shared] = best
    return Resolution(order[begins], members[loses], winner[loses])


def _begins(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a sorted sequence has a value for the first time."""
    begins = np.ones(len(values), dtype=np.bool_)
    begins[1:] = values[1:] != values[:-1]
    return begins


def _split(order: Positions, begins: npt.NDArray[np.bool_]) -> Resolution:
    winner_of_place = order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
    return Resolution(order[begins], order[~begins], winner_of_place[~begins])


def _best_of_groups(
    members: Positions, firsts: Positions, precedence: Sequence[Words]
) -> Positions:
    """Return the member with the smallest precedence of each group, the earliest of equals."""
    counts = np.diff(firsts, append=len(members))
    candidate = np.ones(len(members), dtype=np.bool_)
    for word in precedence:
        masked = np.where(candidate, word, _LAST_WORD)
        candidate &= word == np.repeat(np.minimum.reduceat(masked, firsts), counts)
    masked_members = np.where(candidate, members, np.iinfo(np.int64).max)
    best: Positions = np.minimum.reduceat(masked_members, firsts)
    return best


_LAST_WORD = np.uint64(0xFFFFFFFFFFFFFFFF)


def epochs_by_part(rows: Rows, epochs: Sequence[int]) -> Callable[[Positions], Epochs]:
    """Return a function that gives the epoch of a row from the epoch of its part."""
    table = np.asarray(epochs, dtype=np.uint64)
    return lambda chosen: table[rows.part_of(chosen)]
