"""Expressions over the columns of a batch: SQL (`sql`), or an expression of Arrow.

    bound = bind("price * 2 > 10 AND note IS NOT NULL", schema)
    bound(batch)   # an array, one value for each row

What SQL leaves open, or databases answer differently, is as in Spark with ANSI mode:

* Three-valued logic: an unknown value (NULL) makes unknown what depends on it. A filter passes what
  is true, nothing else.
* An overflow, a division by zero and a cast of what the type cannot hold are errors (`DataError`),
  never NULL and never wrapped. They count only where SQL looks: not in a branch of CASE or COALESCE
  that is not taken, nor behind an AND or OR that is decided.
* NaN equals NaN and is above all numbers; -0.0 equals 0.0.

and where we differ from it, because it is simpler or exact:

* Whole numbers are computed in 64 bits (BIGINT), whatever the columns have.
* ``/`` gives a DOUBLE. Decimals are not divided: cast them to DOUBLE, or multiply.
* Types are not guessed: a text is compared with a text, a date with ``DATE '...'``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.conversions import Rounding, convert, rounded
from spark_upsert.errors import DataError, PlanError, SchemaError
from spark_upsert.model.names import find_column
from spark_upsert.task.sql import (
    IMPURE,
    Call,
    Case,
    Cast,
    Column,
    Literal,
    Tree,
    children,
    not_of_one_row,
    parse_sql,
)

_LONG = pa.decimal128(19, 0)
"""Has room for every number of 64 bits."""

_CAST = "docs/tasks.md lists what expressions may hold; CAST(... AS ...) changes a type."

Datum = Any
"""A `pyarrow.Array`, or a `pyarrow.Scalar` that stands for all rows: pyarrow has no types."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An expression over the columns of one schema.

    Parameters
    ----------
    text : str
        As it was written.
    columns : tuple of str
        Those that it reads, in the schema's order.
    type : pyarrow.DataType
        Of its values.
    """

    text: str
    columns: tuple[str, ...]
    type: pa.DataType
    _evaluate: Callable[[pa.RecordBatch], Datum]

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Return its values, one for each row of a batch.

        Raises
        ------
        DataError
            Of some row there is none: an overflow, a division by zero, a cast that fails.
        """
        try:
            found = self._evaluate(batch)
        except pa.ArrowInvalid as error:
            raise _no_value(self.text, error) from error
        return _as_array(found, batch.num_rows)

    def true_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows for which it is true: not those for which it is false, or unknown."""
        return batch.filter(self(batch), null_selection_behavior="drop")


def bind(condition: str | pc.Expression, schema: pa.Schema) -> Bound:
    """Return an expression over the columns of a schema.

    Raises
    ------
    PlanError
        It is not SQL as `sql` knows it, a column is not there, or an operator does not take the
        types that its arguments have.
    """
    text = condition if isinstance(condition, str) else str(condition)
    if isinstance(condition, str):
        tree = parse_sql(condition)
        names = {_found(each, schema, text) for each in _columns(tree)}
        evaluate: Callable[[pa.RecordBatch], Datum] = _Evaluation(tree, schema)
    else:
        names = set(schema.names)
        evaluate = _OfArrow(condition)
    nothing = pa.RecordBatch.from_pylist([], schema)
    try:
        type_ = evaluate(nothing).type
    except (pa.ArrowException, KeyError, DataError) as error:
        raise PlanError(f"'{text}' cannot be computed: {error}.", hint=_CAST) from error
    return Bound(text, tuple(name for name in schema.names if name in names), type_, evaluate)


def bind_condition(condition: str | pc.Expression, schema: pa.Schema) -> Bound:
    """Return an expression that is true, false or unknown; raises as `bind` does."""
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
    """Return the names of the columns that SQL reads, as they are written there."""
    return frozenset(each.path[0] for each in _columns(parse_sql(condition)))


def plain_column(condition: str) -> str | None:
    """Return the column that SQL is nothing but, None if it computes something."""
    tree = parse_sql(condition)
    return tree.path[0] if isinstance(tree, Column) and len(tree.path) == 1 else None


def _columns(tree: Tree) -> list[Column]:
    if isinstance(tree, Column):
        return [tree]
    return [found for each in children(tree) for found in _columns(each)]


def _found(column: Column, schema: pa.Schema, text: str) -> str:
    """Return the name of a column, or of the one that a field lies in, as the schema has it."""
    name = column.path[0]
    try:
        return find_column(name, schema.names, role="column")
    except SchemaError as error:
        if name.upper() in IMPURE:
            raise not_of_one_row(text, name.upper()) from error
        raise PlanError.missing_column(name, schema.names) from error


def _no_value(text: str, error: pa.ArrowInvalid) -> DataError:
    return DataError(
        f"'{text}' has no value for some row: {error}.",
        hint="leave such rows out by a filter before, or by CASE WHEN; cast to a wider type.",
    )


def _as_array(found: Datum, rows: int) -> pa.Array:
    if isinstance(found, pa.Scalar):
        return pa.repeat(found, rows)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


class _OfArrow:
    """An expression of Arrow, computed by its own engine, in one thread so that rows keep order."""

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


class _Evaluation:
    """SQL over the batches of one schema: the tree is walked for each batch."""

    def __init__(self, tree: Tree, schema: pa.Schema) -> None:
        self._tree = tree
        self._schema = schema

    def __call__(self, batch: pa.RecordBatch) -> Datum:
        return self._of(self._tree, batch)

    def _of(self, tree: Tree, batch: pa.RecordBatch) -> Datum:
        match tree:
            case Literal(value=value, type=type_):
                return pa.scalar(value, type_)
            case Column(path=path):
                return self._column(path, batch)
            case Cast(argument=argument, type=type_):
                return _cast(self._of(argument, batch), type_)
            case Case():
                return self._case(tree, batch)
            case Call(name="AND" | "OR" as name, arguments=(left, right)):
                return self._decided(name, left, right, batch)
            case Call(name="COALESCE", arguments=arguments):
                return self._coalesce(arguments, batch)
            case Call(name=name, arguments=arguments):
                return _apply(name, [self._of(each, batch) for each in arguments])
            case _:
                assert_never(tree)

    def _column(self, path: Sequence[str], batch: pa.RecordBatch) -> Datum:
        found = batch[find_column(path[0], self._schema.names, role="column")]
        if isinstance(found, pa.ExtensionArray):
            found = found.storage
        if pa.types.is_dictionary(found.type):
            found = found.dictionary_decode()
        for name in path[1:]:
            if not pa.types.is_struct(found.type):
                raise PlanError(
                    f"'{'.'.join(path)}': '{name}' is to be a field, but before it stands "
                    f"{found.type}.",
                    hint="only structs have fields.",
                )
            fields = [each.name for each in found.type]
            if name not in fields:
                raise PlanError.missing_column(name, fields)
            found = pc.struct_field(found, name)
        return found

    def _case(self, tree: Case, batch: pa.RecordBatch) -> Datum:
        """Return the value of the first branch that is true; others are not looked at."""
        undecided: Datum = pa.scalar(True)
        taken: list[tuple[Datum, Tree]] = []
        for condition, value in tree.branches:
            is_met = _is_true(self._where(undecided, condition, batch))
            taken.append((pc.and_(undecided, is_met), value))
            undecided = pc.and_not(undecided, is_met)
        found = self._where(undecided, tree.otherwise, batch)
        for is_taken, value in reversed(taken):
            found = _chosen(is_taken, self._where(is_taken, value, batch), found)
        return found

    def _coalesce(self, arguments: Sequence[Tree], batch: pa.RecordBatch) -> Datum:
        found = self._of(arguments[0], batch)
        for each in arguments[1:]:
            is_open = pc.is_null(found)
            found = _chosen(is_open, self._where(is_open, each, batch), found)
        return found

    def _decided(self, name: str, left: Tree, right: Tree, batch: pa.RecordBatch) -> Datum:
        """Return an AND or OR; the right side counts only where the left does not decide."""
        first = _boolean(name, self._of(left, batch))
        is_open = pc.fill_null(first, True) if name == "AND" else _not(pc.fill_null(first, False))
        second = _boolean(name, self._where(is_open, right, batch))
        return pc.and_kleene(first, second) if name == "AND" else pc.or_kleene(first, second)

    def _where(self, is_open: Datum, tree: Tree, batch: pa.RecordBatch) -> Datum:
        """Return values for the rows that are looked at; those of others mean nothing.

        All rows are computed at once if that works. If a row has no value, which is rare, it may
        be one that nobody looks at: then only the others are computed.
        """
        try:
            return self._of(tree, batch)
        except pa.ArrowInvalid:
            mask = _as_array(is_open, batch.num_rows)
            places = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
            if len(places) == batch.num_rows:
                raise
        values = _as_array(self._of(tree, batch.take(pa.array(places))), len(places))
        back = np.zeros(batch.num_rows, dtype=np.int64)
        back[places] = np.arange(len(places))
        return values.take(pa.array(back, mask=~np.isin(np.arange(batch.num_rows), places)))


# -- operators and functions, on whole columns -----------------------------------------------


def _apply(name: str, arguments: list[Datum]) -> Datum:
    try:
        return _FUNCTIONS[name](*arguments)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _refused(name, arguments) from error
    except pa.ArrowInvalid as error:
        if _is_about_types(error):
            raise _refused(name, arguments) from error
        raise


def _refused(name: str, arguments: Sequence[Datum]) -> PlanError:
    types = " and ".join(str(each.type) for each in arguments)
    return PlanError(f"{name} does not take {types}.", hint=_CAST)


def _is_about_types(error: pa.ArrowInvalid) -> bool:
    """Say whether no row could have a value, so that it is the plan that is wrong."""
    return "precision out of range" in str(error) or "Cannot compare" in str(error)


def _is_number(value: Datum) -> bool:
    kind = value.type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _alike(*values: Datum) -> list[Datum]:
    """Return numbers in one type, so that kernels find each other; others as they are."""
    known = [each for each in values if not pa.types.is_null(each.type)]
    if not known:
        return [_typed(each, pa.bool_()) for each in values]
    if all(map(_is_number, known)):
        if any(pa.types.is_floating(each.type) for each in known):
            return [_typed(each, pa.float64()) for each in values]
        if not any(pa.types.is_decimal(each.type) for each in known):
            return [_typed(each, pa.int64()) for each in values]
        return [_typed(each, pa.int64()) if _is_whole(each) else each for each in values]
    kind = known[0].type
    if any(each.type != kind for each in known) and not _are_kin(known):
        raise pa.ArrowNotImplementedError("types differ")
    return [_typed(each, kind) if pa.types.is_null(each.type) else each for each in values]


def _are_kin(values: Sequence[Datum]) -> bool:
    """Say whether types differ by their layout only: two of texts, of bytes, or of moments."""
    kinds: tuple[Callable[[pa.DataType], bool], ...] = (
        lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
        lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
        lambda kind: pa.types.is_timestamp(kind) or pa.types.is_date(kind),
    )
    return any(all(is_kind(each.type) for each in values) for is_kind in kinds)


def _is_whole(value: Datum) -> bool:
    return pa.types.is_integer(value.type)


def _typed(value: Datum, kind: pa.DataType) -> Datum:
    """Return a value in a type that holds it; a double takes the nearest of a long number."""
    if value.type == kind:
        return value
    is_nearest = pa.types.is_floating(kind)
    return convert(value, kind, Rounding.HALF_UP if is_nearest else Rounding.EXACT)


def _boolean(name: str, value: Datum) -> Datum:
    if pa.types.is_null(value.type):
        return _typed(value, pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise _refused(name, [value])
    return value


def _not(value: Datum) -> Datum:
    return pc.invert(_boolean("NOT", value))


def _is_true(value: Datum) -> Datum:
    return pc.fill_null(_boolean("IS TRUE", value), False)


def _is_false(value: Datum) -> Datum:
    return _not(pc.fill_null(_boolean("IS FALSE", value), True))


def _numbers(*values: Datum) -> list[Datum]:
    """Return numbers in one type; anything else has no arithmetic."""
    found = _alike(*values)
    if not all(map(_is_number, found)):
        raise pa.ArrowNotImplementedError("no numbers")
    return found


def _add(*values: Datum) -> Datum:
    left, right = _numbers(*values)
    return pc.add_checked(left, right)


def _minus(*values: Datum) -> Datum:
    found = _numbers(*values)
    return pc.negate_checked(*found) if len(found) == 1 else pc.subtract_checked(*found)


def _multiply(*values: Datum) -> Datum:
    left, right = _numbers(*values)
    return pc.multiply_checked(left, right)


def _divide(*values: Datum) -> Datum:
    left, right = _numbers(*values)
    if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
        raise pa.ArrowNotImplementedError("decimals are not divided")
    return pc.divide_checked(_typed(left, pa.float64()), _typed(right, pa.float64()))


def _whole_numbers(*values: Datum) -> list[Datum]:
    found = _numbers(*values)
    if not all(map(_is_whole, found)):
        raise pa.ArrowNotImplementedError("no whole numbers")
    return found


def _div(*values: Datum) -> Datum:
    left, right = _whole_numbers(*values)
    return pc.divide_checked(left, right)


def _remainder(*values: Datum) -> Datum:
    """Return what is left of a division towards zero: it has the sign of the left side."""
    left, right = _whole_numbers(*values)
    # By -1 nothing is left, but the least number divided by it would not fit.
    right = pc.if_else(pc.equal(right, -1), 1, right)
    return pc.subtract_checked(left, pc.multiply_checked(pc.divide_checked(left, right), right))


def _is_floating(value: Datum) -> bool:
    return pa.types.is_floating(value.type)


def _equal(*values: Datum) -> Datum:
    left, right = _alike(*values)
    found = pc.equal(left, right)
    if _is_floating(left):
        return pc.or_(found, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return found


def _less(*values: Datum) -> Datum:
    left, right = _alike(*values)
    if pa.types.is_boolean(left.type):
        left, right = _typed(left, pa.int8()), _typed(right, pa.int8())
    found = pc.less(left, right)
    if _is_floating(left):
        return pc.or_(found, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))
    return found


def _same(left: Datum, right: Datum) -> Datum:
    """Return whether both are NULL, or equal; never unknown."""
    neither = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(neither, pc.fill_null(_equal(left, right), False))


def _in(value: Datum, *several: Datum) -> Datum:
    """Return whether it equals any: unknown if it equals none, and some is NULL."""
    return reduce(pc.or_kleene, (_equal(value, each) for each in several))


def _chosen(is_first: Datum, first: Datum, second: Datum) -> Datum:
    kinds = {each.type for each in (first, second) if not pa.types.is_null(each.type)}
    if len(kinds) > 1:
        try:
            first, second = _alike(first, second)
        except pa.ArrowNotImplementedError as error:
            raise _refused("CASE", [first, second]) from error
    elif kinds:
        [kind] = kinds
        first, second = _typed(first, kind), _typed(second, kind)
    return pc.if_else(is_first, first, second)


def _null_if(left: Datum, right: Datum) -> Datum:
    is_equal = pc.fill_null(_equal(left, right), False)
    return pc.if_else(is_equal, pa.scalar(None, left.type), left)


def _least(*values: Datum) -> Datum:
    return reduce(lambda a, b: _preferred(_less(b, a), a, b), _alike(*values))


def _greatest(*values: Datum) -> Datum:
    return reduce(lambda a, b: _preferred(_less(a, b), a, b), _alike(*values))


def _preferred(is_second: Datum, first: Datum, second: Datum) -> Datum:
    """Return the second if it is better, or there is no first."""
    is_second = pc.or_(pc.fill_null(is_second, False), pc.is_null(first))
    return pc.if_else(is_second, second, first)


def _text(value: Datum) -> str:
    """Return a text that stands in the expression itself."""
    if not isinstance(value, pa.Scalar) or not pa.types.is_string(value.type):
        raise PlanError(f"a text was expected, found {value.type}.", hint="write it in quotes.")
    return str(value.as_py())


def _whole(value: Datum) -> int:
    """Return a number that stands in the expression itself."""
    if not isinstance(value, pa.Scalar) or not pa.types.is_integer(value.type):
        raise PlanError(f"a whole number was expected, found {value.type}.", hint="write 2.")
    return int(value.as_py())


def _round(value: Datum, digits: Datum | None = None) -> Datum:
    [number] = _numbers(value)
    places = 0 if digits is None else _whole(digits)
    if _is_floating(number):
        return pc.round(number, places, round_mode="half_towards_infinity")
    if not _is_whole(number):
        return rounded(number, places)
    return number if places >= 0 else _typed(rounded(_typed(number, _LONG), places), pa.int64())


def _to_whole(function: Callable[[Datum], Datum], rounding: Rounding) -> Callable[[Datum], Datum]:
    def applied(value: Datum) -> Datum:
        [number] = _numbers(value)
        if _is_floating(number):
            return convert(function(number), pa.int64())
        is_whole = _is_whole(number) or number.type.scale == 0
        return number if is_whole else rounded(number, 0, rounding)

    return applied


def _sign(value: Datum) -> Datum:
    [number] = _numbers(value)
    return _typed(pc.sign(number), number.type if _is_floating(number) else pa.int64())


def _substring(text: Datum, first: Datum, length: Datum | None = None) -> Datum:
    start = _whole(first)
    if start < 1:
        raise PlanError(f"SUBSTRING begins at 1 or later, found {start}.", hint="count from 1.")
    stop = None if length is None else start - 1 + max(_whole(length), 0)
    return pc.utf8_slice_codeunits(text, start=start - 1, stop=stop)


def _concat(*texts: Datum) -> Datum:
    if not all(pa.types.is_string(each.type) or pa.types.is_null(each.type) for each in texts):
        raise pa.ArrowNotImplementedError("no texts")
    return pc.binary_join_element_wise(*(_typed(each, pa.string()) for each in texts), "")


def _nan(value: Datum) -> Datum:
    return pc.is_nan(_typed(_numbers(value)[0], pa.float64()))


_FUNCTIONS: dict[str, Callable[..., Datum]] = {
    "NOT": _not,
    "IS NULL": pc.is_null,
    "IS TRUE": _is_true,
    "IS FALSE": _is_false,
    "=": _equal,
    "<>": lambda left, right: pc.invert(_equal(left, right)),
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "<=": lambda left, right: pc.invert(_less(right, left)),
    ">=": lambda left, right: pc.invert(_less(left, right)),
    "<=>": _same,
    "IN": _in,
    "LIKE": lambda text, pattern: pc.match_like(text, _text(pattern)),
    "+": _add,
    "-": _minus,
    "*": _multiply,
    "/": _divide,
    "%": _remainder,
    "DIV": _div,
    "||": _concat,
    "ABS": lambda value: pc.abs_checked(*_numbers(value)),
    "CEIL": _to_whole(pc.ceil, Rounding.CEILING),
    "CONTAINS": lambda text, part: pc.match_substring(text, _text(part)),
    "DAY": pc.day,
    "ENDS_WITH": lambda text, part: pc.ends_with(text, _text(part)),
    "FLOOR": _to_whole(pc.floor, Rounding.FLOOR),
    "GREATEST": _greatest,
    "ISNAN": _nan,
    "LEAST": _least,
    "LENGTH": lambda text: _typed(pc.utf8_length(text), pa.int64()),
    "LOWER": pc.utf8_lower,
    "MONTH": pc.month,
    "NULLIF": _null_if,
    "ROUND": _round,
    "SIGN": _sign,
    "SQRT": lambda value: pc.sqrt(_typed(_numbers(value)[0], pa.float64())),
    "STARTS_WITH": lambda text, part: pc.starts_with(text, _text(part)),
    "SUBSTRING": _substring,
    "TRIM": lambda text: pc.utf8_trim(text, " "),
    "UPPER": pc.utf8_upper,
    "YEAR": pc.year,
}


def _cast(value: Datum, kind: pa.DataType) -> Datum:
    try:
        return _casted(value, kind)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise PlanError(f"CAST of {value.type} to {kind} is not known.", hint=_CAST) from error


def _casted(value: Datum, kind: pa.DataType) -> Datum:
    """Return a value in another type: towards zero to whole numbers, half up to decimals."""
    return convert(value, kind, Rounding.HALF_UP if pa.types.is_decimal(kind) else Rounding.DOWN)
