"""The wire format of rows between two passes (`Border`): a routing number and flat columns.

``__to`` has the task of the next pass in its upper half and the port's address in its lower half. A
*wake* is a row without content for a task without rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.casts import convert
from spark_upsert.flow.partitioner import Addresses, Parcel, by_address
from spark_upsert.flow.stages import Stages

TO = "__to"

TASK_BITS = 32
"""Bit shift for the task number in `TO`."""

WAKE = (1 << TASK_BITS) - 1
"""Address of a wake: a row without content that only carries its task number."""


class _Layout(NamedTuple):
    """Column positions in the wide schema, for each form (schema).

    For each type, the wide schema has the maximum column count over all forms; unused columns are
    null.
    """

    types: tuple[pa.DataType, ...]
    """Column types in the wide schema."""
    places: tuple[tuple[int, ...], ...]
    """For each form, the index in `types` per column."""


@dataclass(frozen=True)
class Border:
    """Row format before a stage, or after the last stage.

    Parameters
    ----------
    stages : Stages
    index : int
        Stage index; after the last stage, the stage count.
    as_carried : callable
        Maps a schema to a schema that the engine can transport between stages.
    """

    stages: Stages
    index: int
    as_carried: Callable[[pa.Schema], pa.Schema]

    @cached_property
    def schema(self) -> pa.Schema:
        """Batch columns."""
        fields = [
            pa.field(_column_name(index), kind) for index, kind in enumerate(self._layout.types)
        ]
        return pa.schema([pa.field(TO, pa.int64()), *fields])

    def columns(self, address: int) -> dict[str, pa.Field]:
        """Return the `schema` columns that an address's rows use, with their own fields."""
        form = self._form_of[address]
        indices = self._layout.places[form]
        return {
            _column_name(index): field
            for index, field in zip(indices, self._carried[form], strict=True)
        }

    def to(self, address: int, *, task: int = 0) -> int:
        """Return the routing number for an address; rows for later stages stay in ``task``."""
        return int(self._routing_numbers(task)[address])

    def pack(self, parcel: Parcel, *, task: int) -> pa.RecordBatch:
        """Return rows in wire format."""
        batch, to = parcel
        form = self._form_of[to if isinstance(to, int) else int(to[0])]
        tos = self._routing_numbers(task)[to]
        if isinstance(to, int):
            tos = np.full(batch.num_rows, tos)
        indices = self._layout.places[form]
        column_by_index = dict(zip(indices, _cast_columns(batch, self._carried[form]), strict=True))
        columns = [
            column_by_index[index] if index in column_by_index else pa.nulls(batch.num_rows, kind)
            for index, kind in enumerate(self._layout.types)
        ]
        return pa.RecordBatch.from_arrays([pa.array(tos), *columns], schema=self.schema)

    def wakes(self, tasks: Iterable[int]) -> pa.RecordBatch:
        """Return a batch with a wake for each task."""
        to = pa.array([wake(task) for task in tasks], pa.int64())
        columns = [pa.nulls(len(to), kind) for kind in self._layout.types]
        return pa.RecordBatch.from_arrays([to, *columns], schema=self.schema)

    @property
    def plain(self) -> pa.Schema:
        """Row columns, if all rows have the same."""
        [form] = self._carried
        return form

    def pack_plain(self, parcel: Parcel) -> pa.RecordBatch:
        """Return rows without a routing column."""
        return pa.RecordBatch.from_arrays(
            _cast_columns(parcel.batch, self.plain), schema=self.plain
        )

    def unpack(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows for each address, without wakes."""
        if not batch.num_rows:
            return
        to = _routing_column(batch) & WAKE
        is_row = to != WAKE
        if not is_row.all():
            batch, to = batch.filter(pa.array(is_row)), to[is_row]
        for address, part in by_address(Parcel(batch, to.astype(np.int32))):
            declared = self.stages.schemas[address]
            indices = self._layout.places[self._form_of[address]]
            rows = [
                _cast_column(part.column(1 + at), field)
                for at, field in zip(indices, declared, strict=True)
            ]
            yield address, pa.RecordBatch.from_arrays(rows, schema=declared)

    def _routing_numbers(self, task: int) -> npt.NDArray[np.int64]:
        """Return the routing number (task << 32 | address) that this task writes, per address."""
        tasks = np.where(self._task_of < 0, task % self._task_count, self._task_of)
        return (tasks << TASK_BITS) | np.arange(len(tasks))

    @property
    def _task_count(self) -> int:
        """Element count in the next stage; 1 after the last stage."""
        is_last = self.index == len(self.stages.stages)
        return 1 if is_last else len(self.stages.stages[self.index].elements)

    @cached_property
    def _task_of(self) -> npt.NDArray[np.int64]:
        """Task per address; -1 if the next stage does not read the address."""
        is_last = self.index == len(self.stages.stages)
        tasks = {} if is_last else self.stages.tasks[self.index]
        addresses = range(len(self.stages.book.ports))
        return np.array([tasks.get(address, -1) for address in addresses], dtype=np.int64)

    @cached_property
    def _forms(self) -> tuple[pa.Schema, ...]:
        """Distinct row schemas at this border."""
        forms: list[pa.Schema] = []
        for address in self.stages.addresses_in_flight[self.index]:
            schema = self.stages.schemas[address]
            if not any(schema.equals(form_schema) for form_schema in forms):
                forms.append(schema)
        return tuple(forms)

    @cached_property
    def _form_of(self) -> dict[int, int]:
        """Index in `_forms` by address."""
        return {
            address: next(
                form for form, form_schema in enumerate(self._forms) if form_schema.equals(schema)
            )
            for address in self.stages.addresses_in_flight[self.index]
            for schema in [self.stages.schemas[address]]
        }

    @cached_property
    def _carried(self) -> tuple[pa.Schema, ...]:
        return tuple(map(self.as_carried, self._forms))

    @cached_property
    def _layout(self) -> _Layout:
        types: list[pa.DataType] = []
        of_type: dict[pa.DataType, list[int]] = defaultdict(list)
        indices = []
        for form in self._carried:
            taken: Counter[pa.DataType] = Counter()
            field_indices = []
            for kind in form.types:
                if taken[kind] == len(of_type[kind]):
                    of_type[kind].append(len(types))
                    types.append(kind)
                field_indices.append(of_type[kind][taken[kind]])
                taken[kind] += 1
            indices.append(tuple(field_indices))
        return _Layout(tuple(types), tuple(indices))


def wake(task: int) -> int:
    """Return a wake's routing number for a task."""
    return (task << TASK_BITS) | WAKE


def is_woken(batch: pa.RecordBatch) -> bool:
    """Return whether a batch in wire format contains a wake."""
    return bool(((_routing_column(batch) & WAKE) == WAKE).any())


def tasks_of(batch: pa.RecordBatch) -> Addresses:
    """Return the target task per row, for a batch in wire format."""
    return (_routing_column(batch) >> TASK_BITS).astype(np.int32)


def _routing_column(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = batch.column(0).to_numpy(zero_copy_only=False)
    return numbers


def _column_name(place: int) -> str:
    return f"_{place}"


def _cast_columns(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    return [
        _cast_column(column, field) for column, field in zip(batch.columns, schema, strict=True)
    ]


def _cast_column(column: pa.Array, field: pa.Field) -> pa.Array:
    return column if column.type == field.type else convert(column, field.type)
