"""Options by which a row sets some columns only (`UpdateRule`; docs/envelopes.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.core.casts import to_readable
from spark_upsert.core.keys import Mask
from spark_upsert.core.names import find_columns
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError, SchemaError

_ALL = "ignoreNullUpdates"
_LIST = "ignoreNullUpdatesColumnList"
_EXCEPT = "ignoreNullUpdatesExceptColumnList"


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """Selects the value columns that a row leaves unchanged. Pickled to the tasks.

    The names and meanings are AUTO CDC's.
    """

    ignored_nulls: frozenset[str] = frozenset()
    """Value columns in which null leaves the old value (``ignoreNullUpdates``)."""
    list_column: str | None = None
    """Column in the rows with the names of the columns to set (``columnsToUpdate``); null: all."""
    known_names: frozenset[str] = frozenset()
    """Column names that a list may contain, in lower case."""
    mark_columns: Mapping[str, str] = field(default_factory=dict)
    """Boolean column in the rows for each value column in it; true leaves the value unchanged."""

    @classmethod
    def of(
        cls,
        schema: TableSchema,
        rows: pa.Schema,
        *,
        ignores_nulls: bool,
        columns: Iterable[str],
        except_columns: Iterable[str],
        list_column: str | None,
    ) -> UpdateRule:
        """Return the rule for writes with these options; raise for unsuitable columns.

        ``rows`` has all columns in the rows, stored or not.
        """
        columns, except_columns = tuple(columns), tuple(except_columns)
        ignored: tuple[str, ...] = ()
        if columns:
            ignored = _value_columns(schema, _LIST, columns)
        elif ignores_nulls or except_columns:
            excluded = _value_columns(schema, _EXCEPT, except_columns)
            ignored = tuple(n for n in _all_value_columns(schema) if n not in excluded)
        option = _LIST if columns else _EXCEPT if except_columns else _ALL
        for name in ignored:
            _refuse_struct(schema, option, name)
        known = {name.lower() for name in (*schema.columns.names, *rows.names)}
        return cls(
            ignored_nulls=frozenset(ignored),
            list_column=list_column,
            known_names=frozenset(known) if list_column is not None else frozenset(),
        )

    @classmethod
    def of_marks(
        cls, schema: TableSchema, rows: pa.Schema, mark_columns: Mapping[str, str]
    ) -> UpdateRule:
        """Return the rule for rows with boolean columns marking unchanged values."""
        names = _value_columns(schema, "unchanged", tuple(mark_columns))
        marks = find_columns(mark_columns.values(), rows.names, role="column of 'unchanged'")
        for mark in marks:
            if not pa.types.is_boolean(storage_type(rows.field(mark).type)):
                raise SchemaError(
                    f"the column '{mark}' of 'unchanged' must be boolean, found "
                    f"{rows.field(mark).type}.",
                    hint="give a boolean for each row: true leaves the value unchanged.",
                    column=mark,
                )
        return cls(mark_columns=dict(zip(names, marks, strict=True)))

    def unchanged(
        self,
        schema: TableSchema,
        columns: Mapping[str, pa.Array],
        lists: pa.Array | None,
        marks: Mapping[str, pa.Array],
    ) -> tuple[dict[str, Mask], pa.Array | None]:
        """Return rows with unchanged values by column, and why a list is invalid.

        Parameters
        ----------
        schema : TableSchema
        columns : mapping of str to pyarrow.Array
            The table's columns in the rows; others are null in every row. Length n.
        lists : pyarrow.Array or None
            The column `list_column`; None without one. Length n.
        marks : mapping of str to pyarrow.Array
            The columns `mark_columns`; null is false. Length n.
        """
        count = len(next(iter(columns.values())))
        masks = {
            name: _mask(to_readable(column)[0].fill_null(False)) for name, column in marks.items()
        }
        for name in self.ignored_nulls:
            column = columns.get(name)
            if column is None:
                masks[name] = np.ones(count, dtype=np.bool_)
            elif column.null_count:
                masks[name] = _mask(column.is_null())
        if lists is None:
            return masks, None
        names, rows = _names_in(lists)
        values = _all_value_columns(schema)
        lower_names = pa.array([name.lower() for name in values], pa.string())
        columns_of_names = np.asarray(pc.index_in(names, lower_names).fill_null(-1))
        by_column = np.argsort(columns_of_names, kind="stable")
        starts = np.searchsorted(columns_of_names[by_column], np.arange(len(values) + 1))
        has_list = _mask(lists.is_valid())
        for index, name in enumerate(values):
            is_unset = has_list.copy()
            is_unset[rows[by_column[starts[index] : starts[index + 1]]]] = False
            if is_unset.any():
                masks[name] = masks[name] | is_unset if name in masks else is_unset
        return masks, self._unknown_names(names, rows, count)

    def _unknown_names(self, names: pa.Array, rows: np.ndarray, count: int) -> pa.Array | None:
        """Return reasons for rows with a list that names no column."""
        is_known = pc.is_in(names, pa.array(sorted(self.known_names), pa.string()))
        unknown = np.flatnonzero(~_mask(is_known))
        if not len(unknown):
            return None
        bad_rows, first = np.unique(rows[unknown], return_index=True)
        shown = names.take(pa.array(unknown[first])).fill_null("null")
        reasons = pc.binary_join_element_wise(
            f"the columnsToUpdate column '{self.list_column}' names '",
            shown,
            "', which is no column",
            "",
        )
        row_indices = np.zeros(count, dtype=np.int64)
        is_bad = np.zeros(count, dtype=np.bool_)
        row_indices[bad_rows], is_bad[bad_rows] = np.arange(len(bad_rows)), True
        return reasons.take(pa.array(row_indices, mask=~is_bad))


WHOLE_ROWS = UpdateRule()
"""Every row sets all columns."""


def require_name_lists(name: str, type_: pa.DataType) -> None:
    """Raise `SchemaError` unless a column can list column names."""
    stored = storage_type(type_)
    if not (pa.types.is_list(stored) and pa.types.is_string(stored.value_type)):
        raise SchemaError(
            f"the columnsToUpdate column '{name}' must be ARRAY<STRING>, found {type_}.",
            hint="give a column with the names of the columns that each row sets.",
            column=name,
        )


def _names_in(lists: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return the listed names in lower case, and the row of each."""
    lists = to_readable(lists)[0]
    return pc.utf8_lower(lists.flatten()), np.asarray(pc.list_parent_indices(lists))


def _all_value_columns(schema: TableSchema) -> tuple[str, ...]:
    """Return the columns that a row may leave unchanged."""
    fixed = {schema.error_column, *(field.name for field in schema.order)}
    return tuple(name for name in schema.values if name not in fixed)


def _value_columns(schema: TableSchema, option: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Resolve the names in an option; keys and order columns are refused."""
    order = {field.name.lower() for field in schema.order}
    for name in names:
        if name.lower() in order:
            _refuse_name(option, f"the order column '{name}'")
    found = find_columns(names, schema.columns.names, role=f"column of '{option}'")
    for name in found:
        if name in schema.keys:
            _refuse_name(option, f"the key column '{name}'")
    return found


def _refuse_name(option: str, column: str) -> None:
    raise OptionError.refused(
        option, f"names {column}, which each row sets", hint="name other columns."
    )


def _refuse_struct(schema: TableSchema, option: str, name: str) -> None:
    type_ = schema.columns.field(name).type
    if pa.types.is_struct(type_):
        raise OptionError.refused(
            option,
            f"includes the column '{name}', which is a STRUCT: a null in one of its fields would "
            "not leave that field unchanged",
            hint=f"exclude it: give '{_EXCEPT}' with '{name}', or '{_LIST}' without it.",
        )


def _mask(values: pa.Array) -> Mask:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)
