"""A stage as a task runs it, and what rows look like between two stages.

A row travels as ``__task``, the task of the next stage that it goes to, ``__address``, the port
that it is for, and a struct for each form that rows have there, of which all but one are null. What
is exchanged is told by the columns alone, so that they, and not the number that an engine gives a
task, say which channel it is.

A task without rows does something, too: a sum over nothing is a row. So that it knows who it is,
*wakes* may travel with the rows: of no port, one for each task. A stage that is woken wakes the
next. Without them a task is taken for the one whose number it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.errors import GraphError
from spark_upsert.flow.element import Element
from spark_upsert.flow.outlets import Parcel, by_address
from spark_upsert.flow.pass_plan import Way
from spark_upsert.flow.stages import Stages

TASK = "__task"
ADDRESS = "__address"

WAKE = -1
"""The address of a row that is none, and only says which task it has come to."""

_INT32 = pa.int32()


@dataclass(frozen=True)
class Border:
    """What rows look like before a stage, or behind the last one.

    Parameters
    ----------
    stages : Stages
    index : int
        Of the stage; behind the last one their number.
    as_carried : callable
        The columns that the engine between the stages can carry, of some columns.
    """

    stages: Stages
    index: int
    as_carried: Callable[[pa.Schema], pa.Schema]

    @cached_property
    def forms(self) -> tuple[pa.Schema, ...]:
        """The different columns that rows have here."""
        found: list[pa.Schema] = []
        for address in self.stages.under_way[self.index]:
            schema = self.stages.schemas[address]
            if not any(schema.equals(each) for each in found):
                found.append(schema)
        return tuple(found)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of batches."""
        fields = [pa.field(TASK, _INT32), pa.field(ADDRESS, _INT32)]
        fields += [pa.field(f"_{i}", pa.struct(list(form))) for i, form in enumerate(self._carried)]
        return pa.schema(fields)

    def form(self, address: int) -> int:
        """Return the place in `forms` of the columns of an address."""
        schema = self.stages.schemas[address]
        return next(index for index, each in enumerate(self.forms) if each.equals(schema))

    def task(self, address: int) -> int | None:
        """Return the task that an address is in, None if rows pass by here."""
        if self.index == len(self.stages.stages):
            return None
        return self.stages.tasks[self.index].get(address)

    def pack(self, parcel: Parcel, *, task: int) -> pa.RecordBatch:
        """Return rows as they travel.

        Parameters
        ----------
        task : int
            Who packs: rows that pass by the next stage stay near.
        """
        batch, to = parcel
        first = to if isinstance(to, int) else int(to[0])
        form = self.form(first)
        rows = pa.StructArray.from_arrays(
            _cast(batch, self._carried[form]), fields=list(self._carried[form])
        )
        if isinstance(to, int):
            to = np.full(len(rows), to, dtype=np.int32)
        tasks = np.where(
            self._task_of[to] < 0, np.int32(task % self._task_count), self._task_of[to]
        )
        columns = [
            rows if index == form else pa.nulls(len(rows), field.type)
            for index, field in enumerate(list(self.schema)[2:])
        ]
        return pa.RecordBatch.from_arrays(
            [pa.array(tasks), pa.array(to), *columns], schema=self.schema
        )

    def wakes(self, tasks: Iterable[int]) -> pa.RecordBatch:
        """Return what wakes some tasks."""
        to = pa.array(tasks, _INT32)
        columns = [pa.nulls(len(to), field.type) for field in list(self.schema)[2:]]
        addresses = pa.array([WAKE] * len(to), _INT32)
        return pa.RecordBatch.from_arrays([to, addresses, *columns], schema=self.schema)

    @property
    def plain(self) -> pa.Schema:
        """The columns of the rows themselves, where all have the same."""
        [form] = self._carried
        return form

    def pack_plain(self, parcel: Parcel) -> pa.RecordBatch:
        """Return rows as they are."""
        return pa.RecordBatch.from_arrays(_cast(parcel.batch, self.plain), schema=self.plain)

    def unpack(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each address."""
        if not batch.num_rows:
            return
        rows = batch.select(range(2, batch.num_columns))
        to = batch.column(1).to_numpy(zero_copy_only=False)
        for address, part in by_address(Parcel(rows, to)):
            if address == WAKE:
                continue
            struct = part.column(self.form(address))
            declared = self.stages.schemas[address]
            plain = pa.RecordBatch.from_struct_array(struct)
            yield address, pa.RecordBatch.from_arrays(_cast(plain, declared), schema=declared)

    @cached_property
    def _carried(self) -> tuple[pa.Schema, ...]:
        return tuple(map(self.as_carried, self.forms))

    @property
    def _task_count(self) -> int:
        """The tasks of the next stage."""
        is_last = self.index == len(self.stages.stages)
        return 1 if is_last else len(self.stages.stages[self.index].elements)

    @cached_property
    def _task_of(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """The task of each address, -1 if rows pass by."""
        found = [self.task(address) for address in range(len(self.stages.book.ports))]
        return np.array([-1 if task is None else task for task in found], dtype=np.int32)


@dataclass(frozen=True)
class Pass:
    """A stage, as each of its tasks runs it.

    Parameters
    ----------
    stages : Stages
    index : int
        Of the stage.
    as_carried : callable
        See `Border`.
    """

    stages: Stages
    index: int
    as_carried: Callable[[pa.Schema], pa.Schema]

    @property
    def is_plain(self) -> bool:
        """Whether rows leave as they are."""
        return self.stages.is_plain and self.index == len(self.stages.stages) - 1

    @property
    def schema(self) -> pa.Schema:
        """The columns of what leaves."""
        return self._behind.plain if self.is_plain else self._behind.schema

    def run(
        self, batches: Iterable[pa.RecordBatch], *, task: int, turn: int
    ) -> Iterator[pa.RecordBatch]:
        """Run the elements of one task over all that comes to it, and drain them at the end.

        Parameters
        ----------
        task : int
            What the engine says which one it is; if rows or a wake come, they say it.
        turn : int
            What is added to the start of each round robin: with the number of the micro-batch,
            small ones do not all begin with the first channel.

        Raises
        ------
        GraphError
            Nothing wakes, and the engine numbers tasks otherwise than rows do.
        """
        is_woken, number = False, task
        with _Elements(self.stages, self.index, turn) as elements:
            for batch in batches:
                task = elements.task_of(batch, task)
                is_woken |= pc.any(pc.equal(batch.column(1), WAKE)).as_py() or False
                for address, rows in self._before.unpack(batch):
                    yield from self._packed(elements.feed(address, rows), task)
            if not is_woken:
                self._require_same(number, task)
            yield from self._packed(elements.drain(task), task)
        if is_woken:
            yield from self._wakes(task)

    def _require_same(self, number: int, task: int) -> None:
        """Refuse numbers of tasks by which one without rows would be taken for another one."""
        stage = self.stages.stages[self.index]
        if stage.way is Way.IN_PLACE or number == task < len(stage.elements):
            return
        raise GraphError(
            f"the engine's task {number} is task {task} of {len(stage.elements)} of the flow: its "
            "frame is a part of another one, where tasks without rows cannot know who they are.",
            hint="put all into one graph, whose sink takes what would be a union; or write the "
            "sinks, and read the tables.",
        )

    def _wakes(self, task: int) -> Iterator[pa.RecordBatch]:
        """Yield what wakes those tasks of the next stage that no other task of this one wakes."""
        if self.index + 1 == len(self.stages.stages):
            return
        next_one, this = self.stages.stages[self.index + 1], self.stages.stages[self.index]
        if next_one.way is Way.ALIGNED:
            yield self._behind.wakes([task])
        elif this.way is Way.IN_PLACE:
            yield self._behind.wakes(range(next_one.task_count))
        else:
            yield self._behind.wakes(range(task, next_one.task_count, this.task_count))

    def _packed(self, parcels: Iterator[Parcel], task: int) -> Iterator[pa.RecordBatch]:
        for parcel in parcels:
            yield (
                self._behind.pack_plain(parcel)
                if self.is_plain
                else self._behind.pack(parcel, task=task)
            )

    @cached_property
    def _before(self) -> Border:
        return Border(self.stages, self.index, self.as_carried)

    @cached_property
    def _behind(self) -> Border:
        return Border(self.stages, self.index + 1, self.as_carried)


class _Elements:
    """The elements that run in one task: its own one, or in place all of them."""

    def __init__(self, stages: Stages, index: int, turn: int) -> None:
        self._stages = stages
        self._stage = stages.stages[index]
        self._element_of = stages.tasks[index]
        self._turn = turn
        self._running: dict[int, Element] = {}

    def task_of(self, batch: pa.RecordBatch, task: int) -> int:
        """Return which task this is, as its rows say."""
        if self._stage.way is Way.IN_PLACE or not batch.num_rows:
            return task
        said = pc.min_max(batch.column(0))
        if said["min"] != said["max"]:
            raise GraphError(
                f"rows of the tasks {said['min']} to {said['max']} are in one: channels are mixed.",
                hint="leave the exchanges of the flow as they are: nothing may be put between its "
                "passes.",
            )
        return int(said["min"].as_py())

    def feed(self, address: int, rows: pa.RecordBatch) -> Iterator[Parcel]:
        index = self._element_of.get(address)
        return (
            iter((Parcel(rows, address),)) if index is None else self._at(index).feed(address, rows)
        )

    def drain(self, task: int) -> Iterator[Parcel]:
        # An element whose task got no rows runs, too: a sum over nothing is a row.
        if self._stage.way is not Way.IN_PLACE and task < len(self._stage.elements):
            self._at(task)
        for element in self._running.values():
            yield from element.drain()

    def _at(self, index: int) -> Element:
        if index not in self._running:
            replicas = self._stage.elements[index]
            self._running[index] = Element(self._stages.book, replicas, turn=self._turn)
        return self._running[index]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for element in self._running.values():
                stack.callback(element.close)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    return [
        column if column.type == field.type else pc.cast(column, field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
