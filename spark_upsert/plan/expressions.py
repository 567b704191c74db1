"""SQL expressions over a batch's columns (`bind`), and the pins in a condition (`pins_of`).

Semantics are Spark's in ANSI mode and UTC; docs/tasks.md lists the differences. Errors count only
where SQL evaluates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.arrow_types import storage_type
from spark_upsert.core.casts import UnfitError, convert
from spark_upsert.core.durations import Fields
from spark_upsert.core.names import find_in_schema, has_column
from spark_upsert.errors import DataError, PlanError, SchemaError
from spark_upsert.plan.casts import Datum, cast, kind_of, nearest
from spark_upsert.plan.functions import (
    apply,
    boolean,
    choose_values,
    equal,
    in_own_digits,
    is_true,
    negated,
    refused,
    to_common_type,
)
from spark_upsert.plan.sql import (
    IMPURE,
    Call,
    Case,
    Cast,
    ColumnName,
    Literal,
    Tree,
    children,
    double_quoted,
    not_row_function_error,
    parse_sql,
)

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BoundExpression:
    """An expression bound to one schema.

    Parameters
    ----------
    text : str
        The original text.
    columns : tuple of str
        Columns that it reads, in schema order.
    type : pyarrow.DataType
        Result type.
    """

    text: str
    columns: tuple[str, ...]
    type: pa.DataType
    _evaluate: Callable[[pa.RecordBatch], Datum]

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Return one value per row; raises `DataError` if a row has no value."""
        try:
            result = self._evaluate(batch)
        except (pa.ArrowException, OverflowError) as error:
            raise _no_value(self.text, error) from error
        except RecursionError as error:
            raise _too_deep(self.text) from error
        return _as_array(result, batch.num_rows)

    def true_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with a TRUE value; FALSE and NULL rows are dropped."""
        return batch.filter(self(batch), null_selection_behavior="drop")


def bind(condition: str | pc.Expression, schema: pa.Schema) -> BoundExpression:
    """Bind an expression to a schema.

    Raises
    ------
    PlanError
        The SQL is invalid or not supported by `sql`, a column is missing, or an operator does not
        accept its argument types.
    """
    text = condition if isinstance(condition, str) else str(condition)
    try:
        return _bind(text, condition, schema)
    except (pa.ArrowException, KeyError, OverflowError) as error:
        raise PlanError(
            f"'{text}' cannot be computed: {error}.",
            hint="its part without columns has no value: write another there, or NULL.",
        ) from error
    except RecursionError as error:
        raise _too_deep(text) from error


def _too_deep(text: str) -> PlanError:
    return PlanError(
        f"'{text}' is nested too deep for the stack of its caller.",
        hint="compute a part of it in a projection below.",
    )


def _bind(text: str, condition: str | pc.Expression, schema: pa.Schema) -> BoundExpression:
    if isinstance(condition, str):
        tree = parse_sql(condition)
        for name in double_quoted(condition):
            if has_column(schema, name):
                _warn_of_text(name)
        names = {_resolve_column(column, schema, text) for column in _columns(tree)}
        evaluate: Callable[[pa.RecordBatch], Datum] = _Evaluation(tree, schema)
    else:
        names = set(schema.names)
        evaluate = _OfArrow(condition)
    columns = tuple(sorted(names, key=schema.get_field_index))
    read = pa.schema([schema.field(name) for name in columns])
    nothing = [pa.nulls(0, field.type) for field in read]
    type_ = evaluate(pa.RecordBatch.from_arrays(nothing, schema=read)).type
    return BoundExpression(text, columns, type_, evaluate)


@cache
def _warn_of_text(name: str) -> None:
    """Log once that a double-quoted text is not a column, although a column has its name."""
    _LOGGER.warning(
        "a text between double quotes has the name of a column, which is written in backticks: %s",
        Fields(text=name, column=f"`{name}`"),
    )


def bind_condition(condition: str | pc.Expression, schema: pa.Schema) -> BoundExpression:
    """Bind an expression with a BOOLEAN result; raises as `bind` does."""
    bound = bind(condition, schema)
    if pa.types.is_null(bound.type):
        return bind("CAST(NULL AS BOOLEAN)", schema)
    if not pa.types.is_boolean(bound.type):
        raise PlanError(
            f"a condition is true or false, '{bound.text}' is {bound.type}.",
            hint="compare it with something.",
        )
    return bound


def columns_of(condition: str) -> frozenset[str]:
    """Return the column names in an SQL text, as written."""
    return frozenset(column.path[0] for column in _columns(parse_sql(condition)))


def plain_column(condition: str) -> str | None:
    """Return the column if the SQL is only a column name, else None."""
    tree = parse_sql(condition)
    return tree.path[0] if isinstance(tree, ColumnName) and len(tree.path) == 1 else None


def constant(tree: Tree) -> pa.Scalar | None:
    """Evaluate an expression without columns; None if it reads a column or has no value."""
    if _columns(tree):
        return None
    try:
        return _Evaluation(tree, pa.schema([]))(pa.RecordBatch.from_pylist([], pa.schema([])))
    except (pa.ArrowException, OverflowError, PlanError):
        return None


def _columns(tree: Tree) -> list[ColumnName]:
    if isinstance(tree, ColumnName):
        return [tree]
    return [path for child in children(tree) for path in _columns(child)]


def _resolve_column(column: ColumnName, schema: pa.Schema, text: str) -> str:
    """Return the schema's name for a column, or for a nested field's top-level column."""
    name = column.path[0]
    try:
        return find_in_schema(name, schema, role="column")
    except SchemaError as error:
        if name.upper() in IMPURE:
            raise not_row_function_error(text, name.upper()) from error
        raise PlanError.missing_column(name, schema.names) from error


def _no_value(text: str, error: Exception) -> DataError:
    return DataError(
        f"'{text}' has no value for some row: {error}.",
        hint="leave such rows out by a filter before, or by CASE WHEN; cast to a wider type.",
    )


def _as_array(found: Datum, rows: int) -> pa.Array:
    if isinstance(found, pa.Scalar):
        return pa.repeat(found, rows)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


class _OfArrow:
    """An Arrow expression, evaluated by Acero in one thread so that rows keep their order."""

    def __init__(self, expression: pc.Expression) -> None:
        self._expression = expression

    def __call__(self, batch: pa.RecordBatch) -> Datum:
        # Imported here: nothing else needs this engine, which takes time to load.
        from pyarrow import acero

        rows = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
        value = acero.ProjectNodeOptions([self._expression], ["value"])
        chain = [acero.Declaration("table_source", rows), acero.Declaration("project", value)]
        computed = acero.Declaration.from_sequence(chain).to_table(use_threads=False)
        return computed["value"].combine_chunks()


_DIVISIONS = frozenset({"/", "%", "DIV"})
_COMPARED_OR_COMPUTED = frozenset({"+", "-", "*", "=", "<>", "<", "<=", ">", ">="})
_WITHOUT_NULL_SHORTCUT = frozenset({"||", "<=>", "GREATEST", "LEAST"})
"""Operators that evaluate every argument even after a NULL, so any argument's error counts."""


def _in_utc(found: Datum) -> Datum:
    """Return timestamps in UTC, which all functions assume."""
    if not pa.types.is_timestamp(found.type) or found.type.tz in (None, "UTC"):
        return found
    return found.view(pa.timestamp(found.type.unit, tz="UTC"))


def _in_own_digits(trees: Sequence[Tree], values: list[Datum]) -> list[Datum]:
    """Convert integer literals next to decimals to short decimals, which saves precision."""
    if not any(pa.types.is_decimal(value.type) for value in values):
        return values
    return [
        in_own_digits(value) if isinstance(tree, Literal) and tree.type == pa.int64() else value
        for tree, value in zip(trees, values, strict=True)
    ]


class _Evaluation:
    """Evaluates an SQL tree over batches with one schema."""

    def __init__(self, tree: Tree, schema: pa.Schema) -> None:
        self._tree = tree
        self._schema = schema

    def __call__(self, batch: pa.RecordBatch) -> Datum:
        if isinstance(self._tree, ColumnName):  # As it is: with its own zone.
            return self._column(self._tree.path, batch)
        return self._of(self._tree, batch)

    def _of(self, tree: Tree, batch: pa.RecordBatch) -> Datum:
        match tree:
            case Literal(value=value, type=type_):
                return pa.scalar(value, type_)
            case ColumnName(path=path):
                return _in_utc(self._column(path, batch))
            case Cast(argument=argument, type=type_):
                return cast(self._of(argument, batch), type_)
            case Case():
                return self._case(tree, batch)
            case Call(name="AND" | "OR" as name, arguments=(left, right)):
                return self._decided(name, left, right, batch)
            case Call(name="COALESCE", arguments=arguments):
                return self._coalesce(arguments, batch)
            case Call(name="IN", arguments=(value, *several)):
                return self._in(value, several, batch)
            case Call(name=name, arguments=arguments):
                return apply(name, self._arguments(name, arguments, batch))
            case _:
                assert_never(tree)

    def _arguments(
        self, name: str, arguments: Sequence[Tree], batch: pa.RecordBatch
    ) -> list[Datum]:
        """Evaluate arguments; for most operators, rows with a NULL ignore the remaining arguments.

        Divisions evaluate their right side first.
        """
        if name in _WITHOUT_NULL_SHORTCUT or len(arguments) == 1:
            return [self._of(expression, batch) for expression in arguments]
        order = 1 if name not in _DIVISIONS else -1
        evaluated: list[Datum] = []
        is_open: Datum = pa.scalar(True)
        for argument in arguments[::order]:
            evaluated.append(self._where(is_open, argument, batch))
            is_open = pc.and_(is_open, pc.is_valid(evaluated[-1]))
        values = evaluated[::order]
        return _in_own_digits(arguments, values) if name in _COMPARED_OR_COMPUTED else values

    def _column(self, path: Sequence[str], batch: pa.RecordBatch) -> Datum:
        column = batch[find_in_schema(path[0], self._schema, role="column")]
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        if pa.types.is_dictionary(column.type):
            column = convert(column, storage_type(column.type))
        for name in path[1:]:
            if not pa.types.is_struct(column.type):
                raise PlanError(
                    f"'{'.'.join(path)}': '{name}' is to be a field, but before it stands "
                    f"{column.type}.",
                    hint="only structs have fields.",
                )
            fields = [field.name for field in column.type]
            if name not in fields:
                raise PlanError.missing_column(name, fields)
            column = pc.struct_field(column, name)
        return column

    def _case(self, tree: Case, batch: pa.RecordBatch) -> Datum:
        """Return the first true branch's value; errors in other branches do not count."""
        undecided: Datum = pa.scalar(True)
        taken: list[tuple[Datum, Tree]] = []
        for condition, value in tree.branches:
            is_met = is_true(self._where(undecided, condition, batch))
            taken.append((pc.and_(undecided, is_met), value))
            undecided = pc.and_not(undecided, is_met)
        result = self._where(undecided, tree.otherwise, batch)
        for is_taken, value in reversed(taken):
            result = choose_values(is_taken, self._where(is_taken, value, batch), result)
        return result

    def _coalesce(self, arguments: Sequence[Tree], batch: pa.RecordBatch) -> Datum:
        result = self._of(arguments[0], batch)
        for argument in arguments[1:]:
            is_open = pc.is_null(result)
            result = choose_values(is_open, self._where(is_open, argument, batch), result)
        return result

    def _in(self, value: Tree, several: Sequence[Tree], batch: pa.RecordBatch) -> Datum:
        """Return whether a value equals any item; NULL if none does and some item is NULL.

        Rows ignore items after the first equal item. All values get a common type, found by an
        evaluation without rows.
        """
        nothing = batch.slice(0, 0)
        first = self._of(value, batch)
        kinds = [self._of(expression, nothing) for expression in several]
        try:
            type_ = to_common_type(first, *kinds)[0].type
        except pa.ArrowNotImplementedError as error:
            raise refused("IN", [first, *kinds]) from error
        first = nearest(first, type_)
        is_member: Datum = pa.scalar(False)
        is_known = pc.is_valid(first)
        for item in several:
            is_open = pc.and_(is_known, pc.invert(pc.fill_null(is_member, False)))
            is_member = pc.or_kleene(
                is_member, equal(first, nearest(self._where(is_open, item, batch), type_))
            )
        return pc.if_else(is_known, is_member, pa.scalar(None, pa.bool_()))

    def _decided(self, name: str, left: Tree, right: Tree, batch: pa.RecordBatch) -> Datum:
        """Evaluate AND or OR; the right side counts only where the left side does not decide."""
        first = boolean(name, self._of(left, batch))
        is_open = (
            pc.fill_null(first, True) if name == "AND" else negated(pc.fill_null(first, False))
        )
        second = boolean(name, self._where(is_open, right, batch))
        return pc.and_kleene(first, second) if name == "AND" else pc.or_kleene(first, second)

    def _where(self, is_open: Datum, tree: Tree, batch: pa.RecordBatch) -> Datum:
        """Evaluate a tree for open rows; other rows have undefined values.

        All rows are evaluated first. If that fails, which is rare, the failing row may be closed:
        then only the open rows are evaluated.
        """
        try:
            return self._of(tree, batch)
        except pa.ArrowInvalid:
            mask = _as_array(is_open, batch.num_rows)
            row_indices = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
            if len(row_indices) == batch.num_rows:
                raise
        values = _as_array(self._of(tree, batch.take(pa.array(row_indices))), len(row_indices))
        back = np.zeros(batch.num_rows, dtype=np.int64)
        back[row_indices] = np.arange(len(row_indices))
        return values.take(pa.array(back, mask=~np.isin(np.arange(batch.num_rows), row_indices)))


Pins = Mapping[str, pa.Array]
"""Allowed values by column: distinct, not null, in the column's type."""

_NUMBERS = frozenset({"whole", "decimal"})
"""Kinds with exact comparison between them; floats are compared with the nearest value instead."""

_SAME_KIND_ONLY = frozenset({"truth", "text", "bytes", "date", "moment", "naive"})
"""Kinds that are compared only with the same kind."""


def pins_of(condition: str, schema: pa.Schema) -> Pins:
    """Return the columns that a condition pins, with their allowed values.

    For ``id IN (1, 2) AND n > 3`` it is ``{"id": [1, 2]}``. Rows with other values cannot match; an
    unsupported part pins nothing. Rows excluded by pins are not evaluated, so their errors do not
    occur.
    """
    return _pins(parse_sql(condition), schema)


def values_of(values: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Convert values to a column's type for exact comparison; None if the types do not allow it.

    Values that do not fit are dropped, because no column value equals them.
    """
    kinds = {kind_of(values.type), kind_of(type_)}
    if kind_of(values.type) == "nothing":
        return pa.array([], type_)
    if not (kinds <= _NUMBERS or (len(kinds) == 1 and kinds <= _SAME_KIND_ONLY)):
        return None
    converted = [_converted(value, type_) for value in values if value.is_valid]
    present = [value for value in converted if value is not None]
    return pc.unique(pa.concat_arrays(present)) if present else pa.array([], type_)


def _converted(value: pa.Scalar, type_: pa.DataType) -> pa.Array | None:
    try:
        return convert(pa.repeat(value, 1), type_)
    except UnfitError:
        return None


def _pins(tree: Tree, schema: pa.Schema) -> Pins:
    match tree:
        case Call(name="AND", arguments=(left, right)):
            return pins_for_and(_pins(left, schema), _pins(right, schema))
        case Call(name="OR", arguments=(left, right)):
            return pins_for_or(_pins(left, schema), _pins(right, schema))
        case Call(name="=" | "<=>", arguments=(ColumnName() as column, value)):
            return _pinned(column, (value,), schema, is_null_safe=tree.name == "<=>")
        case Call(name="=" | "<=>", arguments=(value, ColumnName() as column)):
            return _pinned(column, (value,), schema, is_null_safe=tree.name == "<=>")
        case Call(name="IN", arguments=(ColumnName() as column, *several)):
            return _pinned(column, tuple(several), schema)
        case _:
            return {}


def pins_for_and(left: Pins, right: Pins) -> Pins:
    """Combine the pins for AND."""
    met = {name: _among(left[name], right[name]) for name in left.keys() & right.keys()}
    return {**left, **right, **met}


def _among(values: pa.Array, others: pa.Array) -> pa.Array:
    return values.filter(pc.is_in(values, value_set=others))


def pins_for_or(left: Pins, right: Pins) -> Pins:
    """Combine the pins for OR; a side that is never true adds nothing."""
    for one, second in ((left, right), (right, left)):
        if any(not len(values) for values in one.values()):
            return second
    return {
        name: pc.unique(pa.concat_arrays([left[name], right[name]]))
        for name in left.keys() & right.keys()
    }


def _pinned(
    column: ColumnName, several: tuple[Tree, ...], schema: pa.Schema, *, is_null_safe: bool = False
) -> Pins:
    """Return the pins for a column compared with constants; empty if a value is not constant."""
    if len(column.path) != 1:
        return {}
    try:
        name = find_in_schema(column.path[0], schema, role="column")
    except SchemaError:
        return {}
    type_ = schema.field(name).type
    pins = []
    for item in several:
        value = constant(item)
        if value is None or (is_null_safe and not value.is_valid):
            return {}
        values = values_of(pa.repeat(value, 1), type_)
        if values is None:
            return {}
        pins.append(values)
    return {name: pc.unique(pa.concat_arrays(pins))}
