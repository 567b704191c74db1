"""Registers: rows whose commands left columns unchanged (docs/adr/0110).

A row's existence is decided by its winning entry, each column by the greatest entry that set or
reset it. Marks in an entry (`core.schema.kept_column`) say which columns it did not set; only keys
whose winner has marks are combined, by row numbers, and values are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import (
    Mask,
    Positions,
    Words,
    compare,
    identical_rows,
    ordered_words,
)
from spark_upsert.core.precedence import NONE, ContentOf, EpochOf, OrderOf, Precedence
from spark_upsert.core.schema import (
    DIFF,
    ERROR,
    HASH,
    MOVED,
    PUT,
    REASON,
    TOMBSTONE,
    VALUE_CARRIED,
    VALUE_DELETED,
    VALUE_RECARRIED,
    VALUE_SET,
    VALUE_UNCHANGED,
    TableSchema,
    at_column,
    is_live,
    kept_column,
    moved_column,
)
from spark_upsert.table.run.rows import ChosenPart, Rows
from spark_upsert.table.state.resolve import content_words, value_words

MarkKinds = npt.NDArray[np.int8]
"""`VALUE_SET` and its neighbours, one per entry."""

_STRENGTHS = np.zeros(6, dtype=np.int8)
"""Which kind wins at an equal order: a set value over a carried one over a create's reset.

A delete and a value that is set are tied, so that `Ties` decides.
"""
_STRENGTHS[[VALUE_SET, VALUE_RECARRIED, VALUE_CARRIED, VALUE_DELETED]] = 3, 2, 1, 3

CARRIED_KINDS = (VALUE_CARRIED, VALUE_RECARRIED)


def strengths_of(kinds: MarkKinds) -> pa.Array:
    """Return the strengths of kinds, which decide at an equal order."""
    return pa.array(_STRENGTHS[kinds])


def orders_and_strengths(moved: pa.Array) -> list[pa.Array]:
    """Return the orders of the values in a `moved_column`, and their strengths."""
    *order, kinds = moved.flatten()
    return [*order, strengths_of(kinds_of(kinds))]


def have_values(kinds: MarkKinds) -> Mask:
    """Return which entries have a value in a column, by its kinds."""
    result: Mask = np.isin(kinds, [VALUE_SET, *CARRIED_KINDS])
    return result


def has_marks(rows: Rows) -> bool:
    """Return whether any entry may have marks, by the stored columns alone."""
    return any(part.has(mark) for part in rows.parts for mark in rows.schema.run_marks)


def are_open(rows: Rows, chosen: Positions) -> Mask:
    """Return a mask: the puts with marks, to which older entries of their keys may contribute."""
    is_open = np.zeros(len(chosen), dtype=np.bool_)
    if not len(chosen) or not has_marks(rows):
        return is_open
    diffs, *marks = rows.take([DIFF, *rows.schema.run_marks], chosen)
    for name, mark in zip(rows.schema.run_marks, marks, strict=True):
        is_kept = name in map(kept_column, rows.schema.unchanged)
        is_open |= kinds_of(mark) != VALUE_SET if is_kept else mask_of(mark.is_valid())
    return is_open & (diffs.to_numpy() == PUT)


def have_moved(rows: Rows, chosen: Positions) -> Mask:
    """Return a mask: the entries of keys from which a row has moved to another key."""
    if not rows.schema.has_moves or not len(chosen) or not any(p.has(MOVED) for p in rows.parts):
        return np.zeros(len(chosen), dtype=np.bool_)
    [moved] = rows.take([MOVED], chosen)
    return mask_of(moved.is_valid())


def are_unknown(rows: Rows, chosen: Positions) -> Mask:
    """Return a mask: the puts with a column that no entry has set; each key's entry is complete."""
    unknown = np.zeros(len(chosen), dtype=np.bool_)
    if not len(chosen) or not has_marks(rows):
        return unknown
    for name in rows.schema.unchanged:
        unknown |= unknown_in(rows, name, chosen)
    [diffs] = rows.take([DIFF], chosen)
    return unknown & (diffs.to_numpy() == PUT)


def unknown_in(rows: Rows, name: str, chosen: Positions) -> Mask:
    """Return a mask: the puts in which no entry has set a column (`are_unknown`)."""
    [kept] = rows.take([kept_column(name)], chosen)
    return ~have_values(kinds_of(kept))


def first_unknown_column(rows: Rows, row: int) -> str:
    """Return the first column that an entry does not set; the first with marks if it sets all."""
    names = rows.schema.unchanged
    unset = (name for name in names if unknown_in(rows, name, np.array([row]))[0])
    return next(unset, names[0])


def shown_diffs(rows: Rows, chosen: Positions) -> pa.Array:
    """Return the entries' `DIFF`; rows hidden because a value is unknown count as errors."""
    [diffs] = rows.take([DIFF], chosen)
    if not rows.schema.hides_unknown:
        return diffs
    hidden = are_unknown(rows, chosen)
    if not hidden.any():
        return diffs
    return pa.array(np.where(hidden, np.int8(ERROR), diffs.to_numpy()))


def are_rows(rows: Rows, chosen: Positions, diffs: pa.Array | None = None) -> Mask:
    """Return a mask: the entries that are table rows (`is_live`), and not hidden.

    ``diffs``: the entries' `DIFF`, if they are read already.
    """
    if diffs is None or rows.schema.hides_unknown:
        diffs = shown_diffs(rows, chosen)
    return is_live(diffs)


class CombinedPart(ChosenPart):
    """Entries put together from several stored entries of their keys (`table.run.rows.Part`)."""

    def __init__(
        self,
        rows: Rows,
        winners: Positions,
        sources: Mapping[str, Positions],
        marks: Mapping[str, pa.Array],
    ) -> None:
        self._rows = rows
        self._winners = winners
        self._sources = sources
        self._marks = marks

    def __len__(self) -> int:
        return len(self._winners)

    def hashes_at(self, positions: Positions) -> npt.NDArray[np.uint64]:
        [hashes] = self._rows.take([HASH], self._winners[positions])
        own: npt.NDArray[np.uint64] = hashes.to_numpy()
        return own

    def has(self, name: str) -> bool:
        return name in self._marks or any(part.has(name) for part in self._rows.parts)

    def take(self, names: Sequence[str], positions: Positions) -> list[pa.Array]:
        whole = [name for name in names if name not in self._sources and name not in self._marks]
        columns = dict(zip(whole, self._rows.take(whole, self._winners[positions]), strict=True))
        for name in names:
            if name in self._sources:
                columns[name] = _take_or_null(self._rows, name, self._sources[name][positions])
            elif name in self._marks:
                columns[name] = self._marks[name].take(pa.array(positions))
        return [columns[name] for name in names]

    def slice(self, names: Sequence[str], start: int, stop: int) -> list[pa.Array]:
        return self.take(names, np.arange(start, stop))


def _take_or_null(rows: Rows, name: str, chosen: Positions) -> pa.Array:
    """Return a column for rows, null for `NONE`."""
    present = chosen != NONE
    [values] = rows.take([name], chosen[present])
    if bool(present.all()):
        return values
    row_indices = np.cumsum(present) - 1
    return values.take(pa.array(row_indices, mask=~present))


class _Register:
    """One column of some entries: what each of them says of it."""

    def __init__(self, name: str, kinds: MarkKinds, at: list[pa.Array]) -> None:
        self.name = name
        self.kinds = kinds
        self.at = at
        """The order key for which an entry says it, by order column."""

    @property
    def are_candidates(self) -> Mask:
        """The entries that set or reset the column."""
        return self.kinds != VALUE_UNCHANGED

    def order(self, indices: Positions) -> list[pa.Array]:
        """Return the order of what some entries say, the strength of its kind last."""
        chosen = pa.array(indices)
        return [*(column.take(chosen) for column in self.at), strengths_of(self.kinds[indices])]


def _registers(rows: Rows, members: Positions) -> tuple[list[pa.Array], Mask, dict[str, _Register]]:
    """Return some entries' order columns, which are puts, and their registers by column."""
    schema = rows.schema
    names = [*schema.run_marks]
    taken = rows.take([DIFF, *schema.order_columns, *names], members)
    is_put = taken[0].to_numpy() == PUT
    order = taken[1 : 1 + len(schema.order_columns)]
    marks = dict(zip(names, taken[1 + len(order) :], strict=True))
    registers = {}
    for name in schema.unchanged:
        kinds = np.where(is_put, kinds_of(marks[kept_column(name)]), np.int8(VALUE_DELETED))
        at = marks.get(at_column(name))
        ranks = (
            order
            if at is None or at.null_count == len(at)
            else [pc.coalesce(*pair) for pair in zip(at.flatten(), order, strict=True)]
        )
        registers[name] = _Register(name, kinds, ranks)
    return order, is_put, registers


@dataclass(frozen=True)
class MoveLimits:
    """The orders below which the entries of old keys count for the rows that move from them.

    A stored entry may have replaced others of its key. If it sets or resets a column for an order
    above the limit, the value below the limit may be lost, and none of the key's values counts.
    """

    order: Sequence[pa.Array]
    """For each member, an order by column: what is said for this order or above is ignored."""
    are_limited: Mask
    """The members with a limit."""
    are_stored: Mask
    """The members that may have replaced others."""
    lost: Mapping[str, Mask]
    """By column, the members whose value may be lost."""

    def apply(self, name: str, register: _Register, group: Positions) -> Mask:
        """Change the kinds in a register; returns the members of keys whose value may be lost."""
        signs = compare(register.at, self.order)
        # What is carried to a key is worked out again with the moves.
        says = register.are_candidates & ~np.isin(register.kinds, CARRIED_KINDS)
        is_lost = self.are_stored & self.are_limited & says & (signs > 0)
        if name in self.lost:
            is_lost |= self.lost[name]
        is_lost = np.isin(group, group[is_lost])
        register.kinds[is_lost | (self.are_limited & (signs >= 0))] = VALUE_UNCHANGED
        return is_lost


@dataclass(frozen=True)
class Combination:
    """Entries of several keys, and each key's state after each of its entries.

    Arrays are by entry, in the order of ``members``: by key, then by time.
    """

    rows: Rows
    members: Positions
    """Row numbers."""
    winners: Positions
    """The member that wins up to this one."""
    sources: Mapping[str, Positions]
    """By column, the member that decides its value up to this one, or `NONE`."""
    moves: Mapping[str, Positions]
    """By `MOVED` and `moved_column`, the member whose note of the newest move to another key holds.

    Or `NONE`. Of several notes of one move, which tasks and replays make, that with the newest value.
    """
    order: Sequence[pa.Array]
    """Each member's order columns."""
    is_put: Mask
    registers: Mapping[str, _Register]
    lost: Mapping[str, Mask]
    """By column, the members of keys whose value below their limit may be lost (`MoveLimits`)."""

    def part(self, indices: Positions, *, is_below: bool = False) -> CombinedPart:
        """Return the states after some members, as entries.

        With ``is_below``, what is below a winning delete, for a row that moves to another key.
        """
        winners = self.winners[indices]
        chosen, marks = {}, {}
        own_order = [column.take(pa.array(winners)) for column in self.order]
        # A delete or an error resets all columns, and has no marks.
        is_put = self.is_put[winners] | is_below
        for name, register in self.registers.items():
            source = np.where(is_put, self.sources[name][indices], winners)
            is_said = source != NONE
            kinds = np.where(is_said, register.kinds[source], np.int8(VALUE_UNCHANGED))
            kinds[~is_put] = VALUE_SET
            chosen[name] = np.where(have_values(kinds), self.members[source], NONE)
            marks[kept_column(name)] = pa.array(kinds.astype(np.int8), mask=kinds == VALUE_SET)
            if self.order:
                marks[at_column(name)] = self._at(name, source, own_order)
        if self.rows.schema.has_moves:
            for name, move in self.moves.items():
                at = move[indices]
                chosen[name] = np.where(at == NONE, NONE, self.members[at])
        return CombinedPart(self.rows, self.members[winners], chosen, marks)

    def _at(self, name: str, source: Positions, own_order: Sequence[pa.Array]) -> pa.Array:
        """Return the order of what decides a column; null where it is the entry's own order."""
        type_ = self.rows.schema.run_marks[at_column(name)].type
        is_own = source == NONE
        at = [column.take(pa.array(np.maximum(source, 0))) for column in self.registers[name].at]
        is_own |= compare(at, own_order) == 0
        return pa.StructArray.from_arrays(at, fields=list(type_), mask=pa.array(is_own))

    def fills_below(self, indices: Positions, before: Positions) -> Mask:
        """Return which members give a value for an order below the entry that they follow.

        Or one that its row had under another key.
        """
        fills = np.zeros(len(indices), dtype=np.bool_)
        if not self.order:
            return fills
        own = [column.take(pa.array(self.winners[before])) for column in self.order]
        for name, source in self.sources.items():
            register = self.registers[name]
            gives = np.flatnonzero(source[indices] == indices)
            kinds = register.kinds[indices[gives]]
            at = [column.take(pa.array(indices[gives])) for column in register.at]
            is_below = compare(at, [column.take(pa.array(gives)) for column in own]) < 0
            fills[gives] |= np.isin(kinds, CARRIED_KINDS) | ((kinds == VALUE_SET) & is_below)
        return fills

    def changes_from(self, indices: Positions, before: Positions) -> Mask:
        """Return whether states differ from the key's earlier ones; a repeated command does not."""
        was, now = self.winners[before], self.winners[indices]
        moved = {"": (was, now)}
        for name, source in self.sources.items():
            moved[name] = source[before], source[indices]
        changed = np.zeros(len(indices), dtype=np.bool_)
        compares_order = Precedence.of(self.rows.schema).compares_order_across_epochs
        for name, (one, other) in moved.items():
            pairs = np.flatnonzero(one != other)
            if compares_order:
                pairs = pairs[~self._are_repeated(name, one[pairs], other[pairs])]
            changed[pairs] = True
        return changed

    def _are_repeated(self, name: str, one: Positions, other: Positions) -> Mask:
        """Return which pairs of members say the same of a column, or of the row, for one order."""
        repeated = (one != NONE) & (other != NONE)
        pairs = np.flatnonzero(repeated)
        one, other = one[pairs], other[pairs]
        at = self.registers[name].at if name else self.order
        sides = [[column.take(pa.array(side)) for column in at] for side in (one, other)]
        same = compare(*sides) == 0
        left, right = one[same], other[same]
        if name:
            kinds = self.registers[name].kinds
            equal = kinds[left] == kinds[right]
            equal &= ~have_values(kinds[left]) | self._equal([name], left, right)
        else:
            diffs = self.rows.take([DIFF], self.members)[0].to_numpy()
            always = always_set(self.rows.schema)
            equal = diffs[left] == diffs[right]
            equal &= (diffs[left] == TOMBSTONE) | self._equal(always, left, right)
        repeated[pairs[~same]] = False
        repeated[pairs[same]] = equal
        return repeated

    def _equal(self, names: Sequence[str], one: Positions, other: Positions) -> Mask:
        if not names:
            return np.ones(len(one), dtype=np.bool_)
        sides = [self.rows.take(names, self.members[side]) for side in (one, other)]
        return identical_rows(*sides)


def without_values(rows: Rows, chosen: Positions, late: npt.NDArray[np.bool_]) -> Rows:
    """Return entries with some values taken out, as if their commands had left them unchanged.

    Parameters
    ----------
    rows : Rows
    chosen : numpy.ndarray of int64
        The entries to return.
    late : numpy.ndarray of bool, shape (entries, unchanged columns)
        The values to take out.
    """
    sources, marks = {}, {}
    for index, name in enumerate(rows.schema.unchanged):
        out = late[:, index]
        [kept], [at] = (rows.take([mark(name)], chosen) for mark in (kept_column, at_column))
        kinds = np.where(out, VALUE_UNCHANGED, kinds_of(kept)).astype(np.int8)
        sources[name] = np.where(out, NONE, chosen)
        marks[kept_column(name)] = pa.array(kinds, mask=kinds == VALUE_SET)
        marks[at_column(name)] = pc.if_else(pa.array(out), pa.scalar(None, at.type), at)
    return Rows(rows.schema, [CombinedPart(rows, chosen, sources, marks)])


def says_below(rows: Rows, chosen: Positions, name: str) -> tuple[list[pa.Array], Mask]:
    """Return the order of what entries say of a column below their own order, and which do."""
    [at] = rows.take([at_column(name)], chosen)
    return at.flatten(), mask_of(at.is_valid())


def know_nothing_below(rows: Rows, chosen: Positions, name: str) -> Mask:
    """Return which entries leave a column to what is below them."""
    [kept], diffs = rows.take([kept_column(name)], chosen), rows.take([DIFF], chosen)[0]
    result: Mask = (kinds_of(kept) == VALUE_UNCHANGED) & (diffs.to_numpy() == PUT)
    return result


def always_set(schema: TableSchema) -> list[str]:
    """Return the columns beside `DIFF` that every entry sets, and that tell two entries apart."""
    reasons = [REASON] if schema.has_quarantine else []
    return [*(name for name in schema.contents if name not in schema.unchanged), *reasons]


def combine(
    rows: Rows,
    members: Positions,
    begins: Mask,
    epochs: EpochOf | None,
    *,
    is_one_task: bool = False,
    limits: MoveLimits | None = None,
) -> Combination:
    """Combine the entries of some keys, by the table's precedence in each register.

    Parameters
    ----------
    rows : Rows
    members : numpy.ndarray of int64
        All entries of these keys, by key, then by time.
    begins : numpy.ndarray of bool
        Whether a member is its key's first.
    epochs : callable, optional
        Returns the epochs for some rows; None: one epoch.
    is_one_task : bool
        Whether the later row wins among equal orders; otherwise the greater content.
    limits : MoveLimits, optional
    """
    precedence = Precedence.of(rows.schema)
    group = np.cumsum(begins) - 1
    order, is_put, registers = _registers(rows, members)
    lost = {}
    if limits is not None and len(members):
        lost = {name: limits.apply(name, each, group) for name, each in registers.items()}

    def epochs_at(indices: Positions) -> Words:
        assert epochs is not None
        return epochs(members[indices])

    def latest(candidates: Mask, order_at: OrderOf, contents: ContentOf) -> Positions:
        indices = np.flatnonzero(candidates)
        words = precedence.rank_words(indices, order_at, None if epochs is None else epochs_at)
        return _latest_so_far(
            indices,
            group,
            list(words),
            None if is_one_task else contents,
            later_wins=precedence.later_wins_ties,
        )

    winners = latest(
        np.ones(len(members), dtype=np.bool_),
        lambda at: [column.take(pa.array(at)) for column in order],
        lambda at: content_words(rows, members[at]),
    )
    sources = {
        name: latest(
            register.are_candidates, register.order, partial(_contents, rows, members, register)
        )
        for name, register in registers.items()
    }
    moves = _newest_moves(rows, members, group) if rows.schema.has_moves else {}
    return Combination(rows, members, winners, sources, moves, order, is_put, registers, lost)


def _newest_moves(rows: Rows, members: Positions, group: Positions) -> dict[str, Positions]:
    """Return `Combination.moves`."""
    names = [name for name in rows.schema.run_marks if name.startswith(MOVED)]
    indices = np.flatnonzero(have_moved(rows, members))
    if not len(indices):
        return dict.fromkeys(names, np.full(len(members), NONE))
    columns = dict(zip(names, rows.take(names, members[indices]), strict=True))
    words = [word for field in columns[MOVED].flatten() for word in ordered_words(field)]
    moves = {MOVED: _latest_so_far(indices, group, words, None, later_wins=False)}
    for name in names:
        if name != MOVED:
            is_known = columns[name].is_valid()
            taken = [is_known, *orders_and_strengths(columns[name])]
            more = [w for each in taken for w in ordered_words(each)]
            more = [np.where(mask_of(is_known), word, np.uint64(0)) for word in more]
            moves[name] = _latest_so_far(indices, group, [*words, *more], None, later_wins=False)
    return moves


def _contents(
    rows: Rows, members: Positions, register: _Register, indices: Positions
) -> list[Words]:
    """Return sort words for what some members say of a column: a value over a delete."""
    kinds = register.kinds[indices]
    [values] = rows.take([register.name], members[indices])
    return [(kinds != VALUE_DELETED).astype(np.uint64), *value_words(values)]


def _latest_so_far(
    indices: Positions,
    group: Positions,
    words: Sequence[Words],
    contents: ContentOf | None,
    *,
    later_wins: bool,
) -> Positions:
    """Return for each member the greatest candidate of its key up to it, or `NONE`.

    Parameters
    ----------
    indices : numpy.ndarray of int64
        The candidates among the members, ascending.
    group : numpy.ndarray of int64
        Each member's key, ascending.
    words : sequence of numpy.ndarray of uint64
        The candidates' ranks, most significant first.
    contents : callable, optional
        Returns words for candidates with equal ranks.
    later_wins : bool
        Whether the later of equal candidates wins.
    """
    places = np.arange(len(indices)) if later_wins else -np.arange(len(indices))
    keys: list[npt.NDArray[Any]] = [group[indices], *words]
    order = np.lexsort([places, *reversed(keys)])
    if contents is not None and len(indices):
        same = np.logical_and.reduce([word[order[1:]] == word[order[:-1]] for word in keys])
        tied = np.unique(order[np.flatnonzero(np.append(same, False) | np.append(False, same))])
        if len(tied):
            for word in contents(indices[tied]):
                keys.append(np.zeros(len(indices), dtype=np.uint64))
                keys[-1][tied] = word
            order = np.lexsort([places, *reversed(keys)])
    ranks = np.full(len(group), NONE, dtype=np.int64)
    ranks[indices[order]] = np.arange(len(order))
    greatest = np.maximum.accumulate(ranks)
    result = np.where(greatest == NONE, NONE, indices[order[greatest]]) if len(order) else greatest
    # A key without a candidate so far: the greatest one belongs to a key before it.
    result[(result != NONE) & (group[result] != group)] = NONE
    return result


def kinds_of(kept: pa.Array) -> MarkKinds:
    """Return the kinds in a `kept_column`."""
    return np.asarray(kept.fill_null(VALUE_SET), dtype=np.int8)


def mask_of(array: pa.Array) -> Mask:
    """Return booleans as a mask."""
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.bool_)


def adds_nothing(one: Rows, chosen: Positions, other: Rows, against: Positions) -> Mask:
    """Return which entries say only what others of the same order say, too: duplicates."""
    return _compared(one, chosen, other, against)[0]


def contradict(one: Rows, chosen: Positions, other: Rows, against: Positions) -> Mask:
    """Return which entries of one order set some column to different values, or one deletes."""
    return _compared(one, chosen, other, against)[1]


def are_strayed(one: Rows, chosen: Positions, other: Rows, against: Positions) -> Mask:
    """Return which entries say something of a column that their row took along to another key.

    They are below the move, and above the value that moved; a value that is sent is above one of
    its order that the row had carried. None if a later epoch wins.
    """
    strayed = np.zeros(len(chosen), dtype=np.bool_)
    pairs = np.flatnonzero(have_moved(other, against))
    if not len(pairs) or not Precedence.of(one.schema).compares_order_across_epochs:
        return strayed
    chosen, against = chosen[pairs], against[pairs]
    diffs, *order = one.take([DIFF, *one.schema.order_columns], chosen)
    [moved] = other.take([MOVED], against)
    is_below = compare(order, moved.flatten()) < 0
    is_put = diffs.to_numpy() == PUT
    says = np.zeros(len(pairs), dtype=np.bool_)
    for name in one.schema.unchanged:
        kept, at = one.take([kept_column(name), at_column(name)], chosen)
        [taken] = other.take([moved_column(name)], against)
        # What a task has folded into the entry may be older than the entry.
        ranks = [pc.coalesce(*pair) for pair in zip(at.flatten(), order, strict=True)]
        is_above = ~mask_of(taken.is_valid())
        known = np.flatnonzero(~is_above)
        indices = pa.array(known)
        sides = [*(rank.take(indices) for rank in ranks), strengths_of(kinds_of(kept)[known])]
        is_above[known] = compare(sides, orders_and_strengths(taken.take(indices))) > 0
        says |= (~is_put | (kinds_of(kept) != VALUE_UNCHANGED)) & is_above
    strayed[pairs] = is_below & says
    return strayed


def reach_below(one: Rows, chosen: Positions, other: Rows, against: Positions) -> Mask:
    """Return which entries say something of a column of which the others know nothing below."""
    reaches = np.zeros(len(chosen), dtype=np.bool_)
    [diffs] = one.take([DIFF], chosen)
    is_put = diffs.to_numpy() == PUT
    for name in one.schema.unchanged:
        [ours], [theirs] = (
            rows.take([kept_column(name)], at) for rows, at in ((one, chosen), (other, against))
        )
        says = ~is_put | (kinds_of(ours) != VALUE_UNCHANGED)
        reaches |= says & (kinds_of(theirs) == VALUE_UNCHANGED)
    return reaches


def _compared(one: Rows, chosen: Positions, other: Rows, against: Positions) -> tuple[Mask, Mask]:
    schema = one.schema
    diffs, theirs = (
        rows.take([DIFF], at)[0].to_numpy() for rows, at in ((one, chosen), (other, against))
    )
    same = diffs == theirs
    always = always_set(schema)
    if always and len(chosen):
        same &= identical_rows(one.take(always, chosen), other.take(always, against))
    same |= (diffs == TOMBSTONE) & (theirs == TOMBSTONE)
    conflict = ~same
    puts = np.flatnonzero(same & (diffs == PUT))
    sides = (one, chosen[puts]), (other, against[puts])
    for name in schema.unchanged:
        (ours, is_own), (other_kinds, is_own_there) = (
            _kinds_and_own(rows, name, at) for rows, at in sides
        )
        both = np.flatnonzero(
            (ours == VALUE_SET) & is_own & (other_kinds == VALUE_SET) & is_own_there
        )
        equal = np.zeros(len(puts), dtype=np.bool_)
        equal[both] = identical_rows(*([rows.take([name], at[both])[0]] for rows, at in sides))
        conflict[puts[both]] |= ~equal[both]
        is_covered = is_own_there & (_STRENGTHS[other_kinds] >= _STRENGTHS[ours])
        is_covered &= (ours != VALUE_SET) & (other_kinds != VALUE_UNCHANGED)
        same[puts] &= (ours == VALUE_UNCHANGED) | ~is_own | is_covered | equal
    return same, conflict


def _kinds_and_own(rows: Rows, name: str, chosen: Positions) -> tuple[MarkKinds, Mask]:
    """Return what entries say of a column, and whether for their own order."""
    [kept] = rows.take([kept_column(name)], chosen)
    is_own = np.ones(len(chosen), dtype=np.bool_)
    if at_column(name) in rows.schema.run_marks:
        [at] = rows.take([at_column(name)], chosen)
        is_own = mask_of(at.is_null())
    return kinds_of(kept), is_own
