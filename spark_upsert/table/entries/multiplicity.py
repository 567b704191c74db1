"""Entries that count the rows behind them: when there is none left, and what cannot be.

A table of contributions holds sums (`model.engines`). An entry of nothing but zeros adds nothing to
any other: it is no row, and a merge of any runs may leave it out. An entry with a count of zero
beside other sums has to stay, because a later run completes it: it is the rest of a row that
changed, where the runs before and behind it are not merged. At the bottom, where nothing older lies
below, that cannot be: counts there are those of real rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import CorruptionError
from spark_upsert.model.arrays import Mask
from spark_upsert.model.engines import Rule
from spark_upsert.model.schema import TableSchema


def without_sums(schema: TableSchema) -> TableSchema:
    """Return the schema of the same entries without what does not say whether they are rows.

    Where the count of a whole entry is zero all its sums are, so that of a table of contributions
    the others need not be read to tell. Any other table's schema is returned as it is.
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
    """Return which entries of a table of contributions are all zero.

    Parameters
    ----------
    schema : TableSchema
    columns : mapping of str to pyarrow.Array
        The value columns of the entries. One with a value that is no sum, as the marker has, is
        never all zero.
    """
    return _are_zero(schema, columns, schema.values)


def impossible(schema: TableSchema, columns: Mapping[str, pa.Array]) -> Mask:
    """Return which entries no rows can have made: a count below zero, or sums of no rows."""
    name = schema.engine.multiplicity
    assert name is not None
    counts = np.asarray(columns[name].fill_null(0), dtype=np.int64)
    others = [other for other in schema.values if schema.engine.rule(other) is not Rule.SUM]
    is_entry = _are_zero(schema, columns, others)  # The marker counts nothing.
    empty = (counts == 0) & is_entry & ~vanished(schema, columns)
    found: Mask = (counts < 0) | empty
    return found


def require_possible(schema: TableSchema, columns: Mapping[str, pa.Array], url: str) -> None:
    """Raise if an entry with nothing older below it cannot be of any rows.

    Raises
    ------
    CorruptionError
        Names the first such entry.
    """
    wrong = np.flatnonzero(impossible(schema, columns))
    if not len(wrong):
        return
    first = told(schema, columns, int(wrong[0]))
    raise CorruptionError(
        f"the table at '{url}' is of contributions, so that each of its entries must be of one row "
        f"or more; found {len(wrong)} that are not (the first: {first}).",
        hint="something was retracted that was never added, or added to another table. Make the "
        "table anew from its view ('keep' into another path); nothing was changed.",
        path=url,
    )


def told(schema: TableSchema, columns: Mapping[str, pa.Array], at: int) -> str:
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
            found = pc.equal(column, zero).fill_null(True)
        else:
            found = column.is_null()
        mask: Mask = np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.bool_)
        result = mask if result is None else result & mask
    if result is None:
        length = len(next(iter(columns.values())))
        return np.ones(length, dtype=np.bool_)
    return result
