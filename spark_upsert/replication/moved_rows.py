"""Values of rows that moved to another key without sending all of them (`read_moved_values`).

A table takes such a value from an older row of the same key, and that of a moved row has another
one. So it is taken from the batch, or from the table before the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.envelopes.postgres import OLD_PREFIX, UNCHANGED_PREFIX
from spark_upsert.errors import DataError
from spark_upsert.postgres.messages import COMMIT_LSN, OP, PUT, SEQUENCE

Place: TypeAlias = tuple[int, int]
"""A change's position and place in its transaction."""

Key: TypeAlias = tuple[Any, ...]

StoredValues: TypeAlias = Callable[[Sequence[Key], Sequence[str]], Mapping[Key, Mapping[str, Any]]]
"""Returns columns of the table's rows, before the batch, by key."""


def read_moved_values(
    batches: Callable[[], Iterable[pa.RecordBatch]], keys: Sequence[str], look_up: StoredValues
) -> dict[Place, dict[str, Any]]:
    """Return the values that moved rows did not send, by place and column.

    Python goes over the moved rows with such values and over the batch's changes of their old keys:
    few rows, because a key rarely changes. Raises `DataError` for a value that nobody has.
    """
    moved = [row for batch in batches() for row in _moved_rows(batch)]
    if not moved:
        return {}
    old_keys = {_key(row, keys, OLD_PREFIX) for row in moved}
    history: dict[Key, list[dict[str, Any]]] = {}
    for batch in batches():
        for row in _rows_with(batch, keys, old_keys):
            history.setdefault(_key(row, keys), []).append(row)
    columns = sorted({name for row in moved for name in _unsent(row)})
    stored = look_up(sorted(old_keys, key=repr), columns)
    values: dict[Place, dict[str, Any]] = {}
    for row in sorted(moved, key=_place):
        old_key = _key(row, keys, OLD_PREFIX)
        earlier = [r for r in history.get(old_key, ()) if r[OP] == PUT and _place(r) < _place(row)]
        earlier.sort(key=_place, reverse=True)
        values[_place(row)] = {
            name: _value_of(name, old_key, earlier, values, stored) for name in _unsent(row)
        }
    return values


def with_values(batch: pa.RecordBatch, values: Mapping[Place, Mapping[str, Any]]) -> pa.RecordBatch:
    """Return a batch with the values of its moved rows."""
    old = next(iter(name for name in batch.schema.names if name.startswith(OLD_PREFIX)), None)
    if old is None:
        return batch
    indices = np.flatnonzero(batch.column(old).is_valid().to_numpy(zero_copy_only=False))
    places = batch.select([COMMIT_LSN, SEQUENCE]).take(pa.array(indices)).to_pylist()
    moved = {
        index: values[_place(place)]
        for index, place in zip(indices.tolist(), places, strict=True)
        if _place(place) in values
    }
    for name in sorted({name for row in moved.values() for name in row}):
        rows = [index for index, row in moved.items() if name in row]
        where = pa.array(np.isin(np.arange(batch.num_rows), rows))
        column = batch.column(name)
        sent = pa.array([moved[index][name] for index in rows], column.type)
        mark = f"{UNCHANGED_PREFIX}{name}"
        batch = _replaced(batch, name, pc.replace_with_mask(column, where, sent))
        batch = _replaced(batch, mark, pc.and_(batch.column(mark), pc.invert(where)))
    return batch


def _replaced(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    index = batch.schema.get_field_index(name)
    return batch.set_column(index, batch.schema.field(index), column)


def _moved_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the moved rows of which a value was not sent."""
    old = [name for name in batch.schema.names if name.startswith(OLD_PREFIX)]
    if old:
        is_moved = batch.column(old[0]).is_valid()
        marks = [name for name in batch.schema.names if name.startswith(UNCHANGED_PREFIX)]
        names = [COMMIT_LSN, SEQUENCE, *old, *marks]
        for row in batch.select(names).filter(is_moved).to_pylist():
            if any(_unsent(row)):
                yield row


def _rows_with(
    batch: pa.RecordBatch, keys: Sequence[str], wanted: Iterable[Key]
) -> Iterator[dict[str, Any]]:
    """Yield the rows with some keys."""
    wanted = set(wanted)
    column = batch.column(keys[0])
    firsts = pa.array({key[0] for key in wanted}, column.type)
    for row in batch.filter(pc.is_in(column, firsts)).to_pylist():
        if _key(row, keys) in wanted:
            yield row


def _value_of(
    name: str,
    key: Key,
    earlier: Iterable[Mapping[str, Any]],
    moved: Mapping[Place, Mapping[str, Any]],
    stored: Mapping[Key, Mapping[str, Any]],
) -> Any:
    """Return a column's value of a key after its earlier changes, the newest of them first."""
    for row in earlier:
        if name in moved.get(_place(row), ()):
            return moved[_place(row)][name]
        if name not in _unsent(row):
            return row[name]
    if key in stored:
        return stored[key][name]
    raise DataError(
        f"column '{name}' of a row that moved to another key was not sent, and no row has the old "
        f"key (for example {key!r}).",
        hint="was the table written by another program? Copy it again with --resnapshot.",
        column=name,
        example=repr(key),
    )


def _unsent(row: Mapping[str, Any]) -> list[str]:
    return [
        name.removeprefix(UNCHANGED_PREFIX)
        for name, is_unsent in row.items()
        if name.startswith(UNCHANGED_PREFIX) and is_unsent
    ]


def _key(row: Mapping[str, Any], keys: Sequence[str], prefix: str = "") -> Key:
    return tuple(row[f"{prefix}{key}"] for key in keys)


def _place(row: Mapping[str, Any]) -> Place:
    return row[COMMIT_LSN], row[SEQUENCE]
