"""Which of several entries of one key wins.

Entries are put in order by (key hash, key, precedence); the first of each key wins. The
precedence follows the table's scope and its `Ties`:

========  =================================================================================
scope     the winner of a key
========  =================================================================================
table     the greatest order key; of equal ones that of the latest epoch, then as below
epoch     that of the latest epoch, then the greatest order key, then as below
arrival   the latest row
========  =================================================================================

Of equal order keys in one epoch the later row of a task wins; between tasks, where nothing is
later, the greatest content does (`state.content`), so that a retry decides the same. With
`Ties.FIRST` the earliest epoch and the earliest row win instead, and with the engine
``first-row`` it is the smallest order key and the earliest epoch.

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

from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.engines import Engine
from spark_upsert.model.schema import Scope, Ties
from spark_upsert.model.words import Words, equal_rows, ordered_words, sort_words
from spark_upsert.state.content import content_words
from spark_upsert.state.run.rows import Rows

Epochs = npt.NDArray[np.uint64]


class Arrangement(NamedTuple):
    """Rows in the order of their keys."""

    order: Positions
    """Row numbers sorted by (hash, key, precedence)."""
    begins: Mask
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
    order, begins = _grouped(rows, chosen)
    if not bool(begins.all()):
        shared = _shared(begins)
        members, group = order[shared], np.cumsum(begins[shared])
        words = [np.asarray(word) for word in precedence(members)]
        order[shared] = members[np.lexsort((members, *reversed(words), group))]
    return Arrangement(order, begins)


def _same_key_as_before(rows: Rows, members: Positions, group: npt.NDArray[Any]) -> Mask:
    """Return for each row of a sorted sequence whether the row before it has the same key."""
    same = np.zeros(len(members), dtype=np.bool_)
    near = np.flatnonzero(group[1:] == group[:-1]) + 1
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
    first_wins = schema.engine.kind is Engine.FIRST_ROW

    def words(chosen: Positions) -> list[Words]:
        if schema.scope is Scope.ARRIVAL:
            places = chosen.astype(np.uint64)
            return [places if first_wins else ~places]
        order = [
            word if first_wins else ~word
            for column in rows.take(schema.order_columns, chosen)
            for word in ordered_words(column)
        ]
        if epochs is None:
            return order
        age = epochs(chosen)
        if schema.scope is Scope.EPOCH:
            return [age if first_wins else ~age, *order]
        return [*order, age if schema.ties is Ties.FIRST else ~age]

    return words


def resolve(
    rows: Rows,
    *,
    chosen: Positions | None = None,
    epochs: Callable[[Positions], Epochs] | None = None,
    contents: Rows | None = None,
    is_one_task: bool = False,
) -> Resolution:
    """Return the winning entry of each key, sorted by (hash, key), and the losers.

    Parameters
    ----------
    rows : Rows
    chosen : numpy.ndarray of int64, optional
        Row numbers, ascending; all by default.
    epochs : callable, optional
        Gives the epoch of each row; needed where the rows are of several epochs.
    contents : Rows, optional
        The same rows with all columns, where ``rows`` has only those of keys and order.
    is_one_task : bool
        Whether the rows are in the order in which one task saw them: that breaks ties.

    Notes
    -----
    Rows that share no hash win at once. The others are not sorted by precedence: the best
    of each key is found in a few passes over them. Only where different keys share a hash
    are they sorted by key.
    """
    order, begins = _grouped(rows, chosen)
    if bool(begins.all()):
        none = np.empty(0, dtype=np.int64)
        return Resolution(order, none, none)
    shared = _shared(begins)
    members = order[shared]
    firsts = np.flatnonzero(begins[shared])
    precedence = precedence_of(rows, epochs)
    whole = rows if contents is None else contents
    best = best_of_groups(whole, members, firsts, precedence, is_one_task=is_one_task)
    winner = np.repeat(best, np.diff(firsts, append=len(members)))
    loses = members != winner
    order[begins & shared] = best
    return Resolution(order[begins], members[loses], winner[loses])


def _grouped(rows: Rows, chosen: Positions | None) -> Arrangement:
    """Return rows sorted by (hash, key), those of one key in any order."""
    hashes = rows.hashes if chosen is None else rows.hashes[chosen]
    places = np.argsort(hashes)
    order: Positions = places if chosen is None else chosen[places]
    begins = _begins(hashes[places])
    if bool(begins.all()) or rows.schema.hash_is_identity:
        return Arrangement(order, begins)
    shared = _shared(begins)
    members, group = order[shared], np.cumsum(begins[shared])
    same = _same_key_as_before(rows, members, group)
    if not bool((same | _begins(group)).all()):
        # Different keys share a hash.
        keys = sort_words(rows.take(rows.schema.identity, members))
        members = members[np.lexsort((*reversed(keys), group))]
        order[shared] = members
        begins[shared] = ~_same_key_as_before(rows, members, group)
    return Arrangement(order, begins)


def _begins(values: npt.NDArray[Any]) -> Mask:
    """Return where a sorted sequence has a value for the first time."""
    begins = np.ones(len(values), dtype=np.bool_)
    begins[1:] = values[1:] != values[:-1]
    return begins


def _shared(begins: Mask) -> Mask:
    """Return which places are of groups of more than one."""
    shared = ~begins
    shared[:-1] |= ~begins[1:]
    return shared


def best_of_groups(
    rows: Rows,
    members: Positions,
    firsts: Positions,
    precedence: Callable[[Positions], Sequence[Words]],
    *,
    is_one_task: bool = False,
) -> Positions:
    """Return the winner of each group of rows.

    Parameters
    ----------
    rows : Rows
        With the columns of their contents.
    members : numpy.ndarray of int64
        Row numbers, group by group, in any order within a group.
    firsts : numpy.ndarray of int64
        Where each group begins among the members.
    precedence : callable
        As of `precedence_of`.
    is_one_task : bool
        Whether the later row breaks a tie, or with `Ties.FIRST` the earlier; else the content.
    """
    counts = np.diff(firsts, append=len(members))
    candidate = np.ones(len(members), dtype=np.bool_)
    for word in precedence(members):
        masked = np.where(candidate, word, _LAST_WORD)
        candidate &= word == np.repeat(np.minimum.reduceat(masked, firsts), counts)
        if np.count_nonzero(candidate) == len(firsts):
            decided: Positions = members[candidate]
            return decided
    if is_one_task and rows.schema.ties is not Ties.FIRST:
        latest: Positions = np.maximum.reduceat(np.where(candidate, members, -1), firsts)
        return latest
    if not is_one_task:
        _keep_greatest_contents(rows, members, firsts, candidate)
    masked_members = np.where(candidate, members, np.iinfo(np.int64).max)
    earliest: Positions = np.minimum.reduceat(masked_members, firsts)
    return earliest


def _keep_greatest_contents(
    rows: Rows, members: Positions, firsts: Positions, candidate: Mask
) -> None:
    """Leave those candidates of each group whose content is the greatest."""
    counts = np.diff(firsts, append=len(members))
    tied = np.repeat(np.add.reduceat(candidate.astype(np.int64), firsts) > 1, counts) & candidate
    if not bool(tied.any()):
        return
    for word in content_words(rows, members[tied]):
        full = np.zeros(len(members), dtype=np.uint64)
        full[tied] = np.where(candidate[tied], word, np.uint64(0))
        greatest = np.repeat(np.maximum.reduceat(full, firsts), counts)[tied]
        candidate[tied] &= word == greatest


_LAST_WORD = np.uint64(0xFFFFFFFFFFFFFFFF)


def by_content_in_epochs(
    rows: Rows, epochs: Callable[[Positions], Epochs]
) -> Callable[[Positions], list[Words]]:
    """Return words that put the rows of a key in the order of time: the oldest epoch first.

    Rows of one epoch come from several tasks, between which nothing is later: they are put
    in the order of their contents.
    """

    def words(members: Positions) -> list[Words]:
        ages = epochs(members)
        hashes = rows.hashes[members]
        order = np.lexsort((ages, hashes))
        again = np.zeros(len(members), dtype=np.bool_)
        again[1:] = (np.diff(hashes[order]) == 0) & (np.diff(ages[order]) == 0)
        again[:-1] |= again[1:].copy()
        ranks = np.zeros(len(members), dtype=np.uint64)
        unordered = order[again]
        if len(unordered):
            contents = content_words(rows, members[unordered])
            ranked = np.lexsort(contents[::-1])
            ranks[unordered[ranked]] = np.arange(len(unordered), dtype=np.uint64)
        return [ages, ranks]

    return words


def epochs_by_part(rows: Rows, epochs: Sequence[int]) -> Callable[[Positions], Epochs]:
    """Return a function that gives the epoch of a row from the epoch of its part."""
    table = np.asarray(epochs, dtype=np.uint64)
    return lambda chosen: table[rows.part_of(chosen)]
