"""Entry folding (`fold`): one entry per key for aggregating engines, by whole columns.

Folding is associative by extra columns per entry (docs/adr/0007). In a table of contributions an
all-zero entry is deleted (docs/adr/0037).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.keys import (
    Mask,
    Positions,
    Words,
    compare,
    keep_greatest,
    ordered_words,
    validity,
)
from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.precedence import NONE, EpochOf, Precedence
from spark_upsert.core.schema import (
    DEAD,
    DIFF,
    HASH,
    PUT,
    TOMBSTONE,
    TableSchema,
    at_column,
    older_column,
    row_at_column,
)
from spark_upsert.errors import CorruptionError, DataError
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.resolve import arrange, content_words
from spark_upsert.table.state.sums import exact_sums, sums_that_fit


def without_sums(schema: TableSchema) -> TableSchema:
    """Return the schema without the sums not needed to detect rows.

    In a table of contributions, a complete entry with count zero has only zero sums, so the other
    sums need not be read. Any other table's schema is returned unchanged.
    """
    engine = schema.engine
    if engine.multiplicity is None:
        return schema
    dropped = {
        name
        for name in schema.values
        if engine.rule(name) is Rule.SUM and name != engine.multiplicity
    }
    rules = {name: rule for name, rule in engine.rules.items() if name not in dropped}
    columns = pa.schema([field for field in schema.columns if field.name not in dropped])
    return replace(schema, columns=columns, engine=replace(engine, rules=rules))


def vanished(schema: TableSchema, columns: Mapping[str, pa.Array]) -> Mask:
    """Return a mask: the all-zero entries in a table of contributions.

    A merge of any runs may omit them. An entry with count zero and other non-zero sums must stay: a
    later run completes it.
    """
    return _are_zero(schema, columns, schema.values)


def impossible(schema: TableSchema, columns: Mapping[str, pa.Array]) -> Mask:
    """Return a mask: impossible entries (negative count, or sums without rows)."""
    name = schema.engine.multiplicity
    assert name is not None
    counts = np.asarray(columns[name].fill_null(0), dtype=np.int64)
    others = [value for value in schema.values if schema.engine.rule(value) is not Rule.SUM]
    is_entry = _are_zero(schema, columns, others)  # The marker counts nothing.
    empty = (counts == 0) & is_entry & ~vanished(schema, columns)
    is_impossible: Mask = (counts < 0) | empty
    return is_impossible


def require_possible(schema: TableSchema, columns: Mapping[str, pa.Array], url: str) -> None:
    """Raise if an entry with nothing older below it cannot result from any rows."""
    wrong = np.flatnonzero(impossible(schema, columns))
    if not len(wrong):
        return
    first = describe_entry(schema, columns, int(wrong[0]))
    raise CorruptionError(
        f"the table at '{url}' is of contributions, so that each of its entries must be of one row "
        f"or more; found {len(wrong)} that are not (the first: {first}).",
        hint="something was retracted that was never added, or added to another table. Make the "
        "table anew from its view ('keep' into another path); nothing was changed.",
        path=url,
    )


def describe_entry(schema: TableSchema, columns: Mapping[str, pa.Array], at: int) -> str:
    """Return an entry in words, for errors."""
    names = [*schema.keys, *schema.values]
    return f"{', '.join(f'{name}={columns[name][at].as_py()!r}' for name in names):.400}"


def _are_zero(
    schema: TableSchema, columns: Mapping[str, pa.Array], names: tuple[str, ...] | list[str]
) -> Mask:
    result: Mask | None = None
    for name in names:
        column = columns[name]
        if schema.engine.rule(name) is Rule.SUM:
            zero = pa.scalar(0, column.type)
            is_zero = pc.equal(column, zero).fill_null(True)
        else:
            is_zero = column.is_null()
        mask: Mask = np.asarray(is_zero.to_numpy(zero_copy_only=False), dtype=np.bool_)
        result = mask if result is None else result & mask
    if result is None:
        length = len(next(iter(columns.values())))
        return np.ones(length, dtype=np.bool_)
    return result


class FoldedEntries(NamedTuple):
    """One folded entry per key."""

    rows: Rows
    """The entries, sorted by (hash, key), as one part in memory."""
    firsts: Positions
    """For each entry, one contributing row."""


def fold(
    rows: Rows, chosen: Positions | None = None, epochs: EpochOf | None = None
) -> FoldedEntries:
    """Fold each key's entries into one.

    Extra columns: ``__at_<c>`` (order key of the value), ``__dead`` (greatest order key of a
    delete, or whether a delete is below), and for columns with their own order ``__row_at_<c>``
    (row order of the value) and ``__older_<c>`` (possible replacements after a late delete).
    """
    schema = rows.schema
    in_time = _in_time(rows, epochs) if epochs and schema.order else lambda _: []
    return fold_arranged(rows, *arrange(rows, chosen, in_time))


def fold_arranged(rows: Rows, order: Positions, begins: Mask) -> FoldedEntries:
    """Fold entries arranged by key (`resolve.Arrangement`): the second step of `fold`."""
    schema = rows.schema
    columns = dict(zip(schema.run.names, rows.take(schema.run.names, order), strict=True))
    if not bool(begins.all()):
        columns = _Groups(schema, columns, begins).folded()
    if schema.engine.multiplicity is not None:
        columns[DIFF] = pa.array(
            np.where(vanished(schema, columns), TOMBSTONE, PUT).astype(np.int8)
        )
    batch = pa.RecordBatch.from_arrays(
        [columns[name] for name in schema.run.names], schema=schema.run
    )
    return FoldedEntries(Rows(schema, [BatchPart(batch)]), order[begins])


class _Groups:
    """Entries sorted by key, the groups with equal keys, and the fold rules for them."""

    def __init__(self, schema: TableSchema, columns: dict[str, pa.Array], begins: Mask) -> None:
        self._schema = schema
        self._columns = columns
        self._firsts = np.flatnonzero(begins)
        self._counts = np.diff(self._firsts, append=len(begins))
        self._group = np.cumsum(begins) - 1
        self._puts = np.asarray(columns[DIFF]) > 0
        self._precedence = Precedence.of(schema)
        self._has_order = self._precedence.has_order

    def folded(self) -> dict[str, pa.Array]:
        """Return the columns with one entry per group."""
        schema = self._schema
        result = {name: self._first(name) for name in (HASH, *schema.keys)}
        alive = self._alive(result)
        for name in schema.values:
            rule = schema.engine.rule(name)
            if name in schema.engine.column_order:
                self._fold_own(name, result)
            elif rule is Rule.LAST:
                self._fold_last(name, alive, result)
            elif rule is Rule.COLLECT:
                result[name] = self._collect(name)
            else:
                result[name] = self._aggregate(name, rule)
        self._fold_existence(alive, result)
        return result

    def _first(self, name: str) -> pa.Array:
        return self._columns[name].take(pa.array(self._firsts))

    def _alive(self, result: dict[str, pa.Array]) -> Callable[[list[pa.Array] | None], Mask]:
        """Fold the deletes; return a predicate for the surviving order keys."""
        everything = np.ones(len(self._group), dtype=np.bool_)
        if self._schema.engine.kind is not Engine.PARTIAL_UPDATE:
            return lambda _: everything
        dead = self._columns[DEAD]
        if not self._has_order:
            marks = np.asarray(dead.to_numpy(zero_copy_only=False), dtype=np.bool_)
            row_indices = np.where(marks, np.arange(len(marks)), NONE)
            last = np.maximum.reduceat(row_indices, self._firsts)
            result[DEAD] = pa.array(last != NONE)
            survivors = np.arange(len(marks)) >= np.repeat(last, self._counts)
            return lambda _: survivors
        best = self._greatest(dead, everything)
        result[DEAD] = _take(dead, best)
        limit = [_take(dead, np.repeat(best, self._counts)).field(i) for i in range(self._width)]
        limited = np.repeat(best != NONE, self._counts)

        def alive(order: list[pa.Array] | None) -> Mask:
            assert order is not None
            return ~limited | _greater_where(order, limit, limited)

        return alive

    @property
    def _width(self) -> int:
        return len(self._schema.order)

    def _fold_last(
        self,
        name: str,
        alive: Callable[[list[pa.Array] | None], Mask],
        result: dict[str, pa.Array],
    ) -> None:
        """Choose the last value not forgotten by a delete; null only where it was set (``__at_``)."""
        column = self._columns[name]
        if not self._has_order:
            if column.null_count == len(column):
                result[name] = pa.nulls(len(self._firsts), column.type)
                return
            candidate = _are_valid(column) & alive(None) & self._puts
            row_indices = np.where(candidate, np.arange(len(column)), NONE)
            result[name] = _take(column, np.maximum.reduceat(row_indices, self._firsts))
            return
        # Where there is an order, there is a value, which may be null.
        at = self._columns[at_column(name)]
        candidate = _are_valid(at)
        rows = np.flatnonzero(candidate)
        candidate[rows] = alive([at.field(i) for i in range(self._width)])[rows]
        best = self._greatest(at, candidate)
        result[name] = _take(column, best)
        result[at_column(name)] = _take(at, best)

    def _fold_own(self, name: str, result: dict[str, pa.Array]) -> None:
        """Choose a column's greatest value by the column's order, and retain its replacements."""
        values = self._values_of(name)
        group = self._group[values.entry]
        deletes, has_delete = result[DEAD].field(0), np.asarray(result[DEAD].is_valid())
        is_left = ~has_delete[group]
        at_risk = np.flatnonzero(has_delete[group])
        limits = deletes.take(pa.array(group[at_risk]))
        is_left[at_risk] = compare([values.row_at.take(pa.array(at_risk))], [limits]) > 0
        later = values.entry if self._precedence.later_wins_ties else -values.entry
        ranks = _words(values.at)
        order = np.lexsort([values.place, -later, *(~word for word in ranks[::-1]), group])
        order = order[is_left[order]]
        # The greatest first: a value stays if its row is after the rows of all greater ones.
        row_ranks = _dense_ranks(_words(values.row_at))
        keys = group[order] * (len(row_ranks) + 1) + row_ranks[order]
        reached = np.maximum.accumulate(keys)
        last_rows = order[np.append(True, keys[1:] > reached[:-1])[: len(keys)]]
        begins = np.diff(group[last_rows], prepend=-1) != 0
        first = np.full(len(self._firsts), NONE)
        first[group[last_rows[begins]]] = last_rows[begins]
        result[name] = _take(values.value, first)
        for column, source in ((at_column, values.at), (row_at_column, values.row_at)):
            fields = list(self._schema.order_type)
            taken = pa.StructArray.from_arrays([_take(source, first)], fields=fields)
            result[column(name)] = _take(
                taken, np.where(first == NONE, NONE, np.arange(len(first)))
            )
        result[older_column(name)] = self._older(name, values, last_rows[~begins], group)

    def _values_of(self, name: str) -> _Values:
        """Return a column's values in all entries: the visible ones first, then the older ones."""
        column, at, row_at, older = (
            self._columns[column_name]
            for column_name in (name, at_column(name), row_at_column(name), older_column(name))
        )
        [own_row] = (self._columns[order_column] for order_column in self._schema.order_columns)
        shown = np.flatnonzero(np.asarray(pc.and_(column.is_valid(), at.is_valid())))
        chosen = pa.array(shown)
        nested, owners = older.flatten(), np.asarray(pc.list_parent_indices(older))
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        offsets = np.arange(len(owners)) - np.repeat(starts, np.diff(starts, append=len(owners)))
        row_at = pc.coalesce(pc.struct_field(row_at, [0]), own_row)
        sides = (
            (at.field(0).take(chosen), pc.struct_field(nested, [0, 0])),
            (row_at.take(chosen), pc.struct_field(nested, [1, 0])),
            (column.take(chosen), pc.struct_field(nested, [2])),
        )
        return _Values(
            np.concatenate([shown, owners]),
            np.concatenate([np.zeros(len(shown), dtype=np.int64), 1 + offsets]),
            *(pa.concat_arrays(side) for side in sides),
        )

    def _older(self, name: str, values: _Values, kept: Positions, group: Positions) -> pa.Array:
        """Return values, group by group, as lists; null for none."""
        type_ = self._schema.older_type(name)
        chosen = pa.array(kept)
        order_types = list(self._schema.order_type)
        parts = [
            pa.StructArray.from_arrays([order_struct.take(chosen)], fields=order_types)
            for order_struct in (values.at, values.row_at)
        ]
        records = pa.StructArray.from_arrays(
            [*parts, values.value.take(chosen)], fields=list(type_.value_type)
        )
        counts = np.bincount(group[kept], minlength=len(self._firsts))
        offsets = np.append(0, np.cumsum(counts)).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(offsets), records, type=type_, mask=pa.array(counts == 0)
        )

    def _greatest(self, keys: pa.Array, candidate: Mask) -> Positions:
        """Return each group's candidate with the greatest order key, equal ones by `Ties`."""
        valid = validity(keys)
        candidate = candidate if valid is None else candidate & valid
        words = (word for index in range(self._width) for word in _words(keys.field(index)))
        greatest = keep_greatest(words, self._firsts, candidate)
        row_indices = np.arange(len(candidate))
        return self._precedence.pick_among_tied(row_indices, greatest, self._firsts)

    def _fold_existence(
        self, alive: Callable[[list[pa.Array] | None], Mask], result: dict[str, pa.Array]
    ) -> None:
        """Decide whether there is a row, and the entry's order key."""
        names = self._schema.order_columns
        if self._schema.engine.multiplicity is not None:
            return  # Its sums decide (`multiplicity.vanished`).
        if not self._has_order:
            exists = np.maximum.reduceat((self._puts & alive(None)).astype(np.int8), self._firsts)
            result[DIFF] = pa.array(np.where(exists > 0, 1, -1).astype(np.int8))
            return
        order = [self._columns[name] for name in names]
        live = self._puts & alive(order)
        struct = pa.StructArray.from_arrays(order, names=list(names))
        best = self._greatest(struct, live)
        anyone = self._greatest(struct, np.ones(len(live), dtype=np.bool_))
        chosen = np.where(best == NONE, anyone, best)
        for name, column in zip(names, order, strict=True):
            result[name] = column.take(pa.array(chosen))
        result[DIFF] = pa.array(np.where(best == NONE, -1, 1).astype(np.int8))

    def _aggregate(self, name: str, rule: Rule) -> pa.Array:
        """Return each group's sum, maximum or minimum, by the rule."""
        column = self._columns[name]
        if rule is Rule.SUM and not pa.types.is_floating(column.type):
            try:
                return exact_sums(column, self._firsts)
            except OverflowError as error:
                if self._schema.engine.has_null_for_overflow:
                    return sums_that_fit(column, self._firsts)
                raise DataError(
                    f"a sum of column '{name}' does not fit into {column.type}.",
                    hint="write into a table with a wider type for the column, or drop the row "
                    "that is too large.",
                    column=name,
                ) from error
        table = pa.table({"group": self._group, "value": column})
        grouped = table.group_by("group", use_threads=False).aggregate([("value", rule.value)])
        ordered = grouped.sort_by("group").column(f"value_{rule.value}").combine_chunks()
        return ordered.cast(column.type)

    def _collect(self, name: str) -> pa.Array:
        """Return the sorted set of all list elements in each group."""
        column = self._columns[name]
        parents = pc.list_parent_indices(column)
        elements = pa.table(
            {"group": pa.array(self._group).take(parents), "value": pc.list_flatten(column)}
        )
        unique = elements.group_by(["group", "value"], use_threads=False).aggregate([])
        unique = unique.filter(pc.is_valid(unique["value"]))
        unique = unique.sort_by([("group", "ascending"), ("value", "ascending")])
        sizes = np.bincount(np.asarray(unique["group"]), minlength=len(self._firsts))
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        valid = np.maximum.reduceat(np.asarray(column.is_valid()).astype(np.int8), self._firsts)
        values = unique["value"].combine_chunks()
        lists = pa.ListArray.from_arrays(pa.array(offsets), values, type=column.type)
        return pc.if_else(pa.array(valid > 0), lists, pa.nulls(len(lists), column.type))


class _Values(NamedTuple):
    """Values in a column with a column order, with their entries."""

    entry: Positions
    place: Positions
    """Rank within the entry, the greatest by the column's order first."""
    at: pa.Array
    """Order key by the column's order."""
    row_at: pa.Array
    """Order key by the row order."""
    value: pa.Array


def _dense_ranks(words: Sequence[Words]) -> Positions:
    """Return each word sequence's rank among the distinct ones."""
    order = np.lexsort(words[::-1])
    differs = np.zeros(len(order), dtype=np.bool_)
    for word in words:
        differs[1:] |= word[order[1:]] != word[order[:-1]]
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.cumsum(differs)
    return ranks


def _are_valid(column: pa.Array) -> Mask:
    valid = validity(column)
    return np.ones(len(column), dtype=np.bool_) if valid is None else valid.copy()


def _take(column: pa.Array, places: Positions) -> pa.Array:
    """Take values; `NONE` gives null."""
    return column.take(pa.array(places, mask=places == NONE))


def _words(column: pa.Array) -> list[Words]:
    """Return a column's ordered words; words for nulls are arbitrary."""
    if column.null_count:
        filler = column.drop_null()[:1]
        if not len(filler):
            return [np.zeros(len(column), dtype=np.uint64)]
        column = column.fill_null(filler[0])
    return ordered_words(column)


def _greater_where(left: Sequence[pa.Array], right: Sequence[pa.Array], where: Mask) -> Mask:
    """Return where ``where`` holds, both sides are not null and the left one is greater."""
    both = where.copy()
    for column in (*left, *right):
        valid = validity(column)
        both = both if valid is None else both & valid
    rows = np.flatnonzero(both)
    result = np.zeros(len(where), dtype=np.bool_)
    if len(rows):
        at = pa.array(rows)
        sides = [[column.take(at) for column in side] for side in (left, right)]
        result[rows] = compare(sides[0], sides[1]) > 0
    return result


def _in_time(rows: Rows, epochs: EpochOf) -> Callable[[Positions], list[Words]]:
    """Return sort words ordering a key's rows by time, the oldest epoch first.

    Rows in one epoch come from several tasks without a time order between them: they are
    ordered by content.
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


def contributions(
    schema: TableSchema,
    columns: Mapping[str, pa.Array],
    order: Sequence[pa.Array],
    diffs: npt.NDArray[np.int8],
    own_order: Mapping[str, pa.Array],
    are_set: Mapping[str, Mask] | None = None,
) -> list[pa.Array]:
    """Return the additional run columns in a folding table.

    ``are_set``: by column the rows that set it, also to null; None: those that are not null.
    """
    deletes = diffs == TOMBSTONE
    if not schema.engine.takes_deletes and bool(deletes.any()):
        raise DataError(
            f"{int(deletes.sum())} rows are deletes, which mergeEngine="
            f"{schema.engine.kind.value} cannot apply.",
            hint="filter them out before the write, or use mergeEngine=deduplicate.",
        )

    def has_no_value(name: str) -> pa.Array:
        is_unset = columns[name].is_null() if are_set is None else pa.array(~are_set[name])
        return pc.or_(is_unset, pa.array(deletes))

    contributed = []
    for name in schema.last_columns:
        column_order = own_order.get(name)
        keys = list(order) if column_order is None else [column_order]
        no_value = has_no_value(name)
        if column_order is not None:
            _require_own_order(name, schema.engine, column_order, no_value)
        contributed.append(_keys(keys, no_value, schema))
    for name in schema.engine.column_order:
        contributed.append(_keys(order, has_no_value(name), schema))
        contributed.append(pa.nulls(len(deletes), schema.older_type(name)))
    if schema.engine.kind is Engine.PARTIAL_UPDATE:
        contributed.append(_keys(order, pa.array(~deletes), schema) if order else pa.array(deletes))
    return contributed


def _keys(order: Sequence[pa.Array], absent: pa.Array, schema: TableSchema) -> pa.Array:
    """Return order keys as one column, null where there is none."""
    return pa.StructArray.from_arrays(list(order), fields=list(schema.order_type), mask=absent)


def _require_own_order(name: str, engine: MergeEngine, own: pa.Array, no_value: pa.Array) -> None:
    unordered = pc.and_not(own.is_null(), no_value)
    count = pc.sum(unordered).as_py() or 0
    if count:
        raise DataError(
            f"{count} values of column '{name}' have no order key: '{engine.column_order[name]}' "
            "is null beside them.",
            hint=f"fill '{engine.column_order[name]}', or set '{name}' to null there.",
            column=name,
        )


def as_collected(columns: pa.Schema, engine: MergeEngine) -> pa.Schema:
    """Return a schema in which collected columns are lists of the rows' types."""
    fields = [
        field.with_type(pa.list_(pa.field("element", field.type)))
        if engine.rule(field.name) is Rule.COLLECT
        else field
        for field in columns
    ]
    return pa.schema(fields)


def collected(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return each value as a one-element list with the field's element type, null as null."""
    offsets = pa.array(np.arange(len(values) + 1, dtype=np.int32))
    mask = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(offsets, values, type=field.type, mask=mask)
