"""A stage as a task of an engine runs it (`Pass`): rows arrive and leave in `wire_format`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import pyarrow as pa

from spark_upsert.errors import GraphError
from spark_upsert.flow.fusion import RowTransfer
from spark_upsert.flow.operators import Element
from spark_upsert.flow.partitioner import Parcel
from spark_upsert.flow.stages import Stages
from spark_upsert.flow.wire_format import Border, is_woken, tasks_of


@dataclass(frozen=True)
class Pass:
    """Stage as run by each of its tasks.

    Parameters
    ----------
    stages : Stages
    index : int
        Stage index.
    as_carried : callable
        See `Border`.
    """

    stages: Stages
    index: int
    as_carried: Callable[[pa.Schema], pa.Schema]

    @property
    def is_plain(self) -> bool:
        """Whether rows leave without a routing column."""
        return self.stages.is_plain and self.index == len(self.stages.stages) - 1

    @property
    def schema(self) -> pa.Schema:
        """Output columns."""
        return self._output_border.plain if self.is_plain else self._output_border.schema

    def run(
        self, batches: Iterable[pa.RecordBatch], *, task: int, turn: int
    ) -> Iterator[pa.RecordBatch]:
        """Run one task's elements over its input, and drain them at the end."""
        has_wake, number = False, task
        with _Elements(self.stages, self.index, turn) as elements:
            for batch in batches:
                task = elements.task_of(batch, task)
                has_wake |= is_woken(batch)
                for address, rows in self._input_border.unpack(batch):
                    yield from self._pack(elements.feed(address, rows), task)
            if not has_wake:
                self._require_same_task(number, task)
            yield from self._pack(elements.drain(task), task)
        if has_wake:
            yield from self._wakes(task)

    def _require_same_task(self, number: int, task: int) -> None:
        """Raise GraphError if the engine's task number differs from the flow's."""
        stage = self.stages.stages[self.index]
        if stage.transfer is RowTransfer.IN_PLACE or number == task < len(stage.elements):
            return
        raise GraphError(
            f"the engine's task {number} is task {task} of {len(stage.elements)} of the flow: its "
            "frame is a part of another one, where tasks without rows cannot know which they are.",
            hint="put all into one graph, whose sink takes what would be a union; or write the "
            "sinks, and read the tables.",
        )

    def _wakes(self, task: int) -> Iterator[pa.RecordBatch]:
        """Yield wakes for the next tasks that no other task in this stage wakes."""
        if self.index + 1 == len(self.stages.stages):
            return
        next_one, this = self.stages.stages[self.index + 1], self.stages.stages[self.index]
        if next_one.transfer is RowTransfer.ALIGNED:
            yield self._output_border.wakes([task])
        elif this.transfer is RowTransfer.IN_PLACE:
            yield self._output_border.wakes(range(next_one.task_count))
        else:
            yield self._output_border.wakes(range(task, next_one.task_count, this.task_count))

    def _pack(self, parcels: Iterator[Parcel], task: int) -> Iterator[pa.RecordBatch]:
        for parcel in parcels:
            yield (
                self._output_border.pack_plain(parcel)
                if self.is_plain
                else self._output_border.pack(parcel, task=task)
            )

    @cached_property
    def _input_border(self) -> Border:
        return Border(self.stages, self.index, self.as_carried)

    @cached_property
    def _output_border(self) -> Border:
        return Border(self.stages, self.index + 1, self.as_carried)


class _Elements:
    """Elements that run in one task: its own element or, in place, all elements."""

    def __init__(self, stages: Stages, index: int, turn: int) -> None:
        self._stages = stages
        self._stage = stages.stages[index]
        self._element_of = stages.tasks[index]
        self._turn = turn
        self._running: dict[int, Element] = {}

    def task_of(self, batch: pa.RecordBatch, task: int) -> int:
        """Return the task number from the rows; ``task`` in place, and for empty batches."""
        if self._stage.transfer is RowTransfer.IN_PLACE or not batch.num_rows:
            return task
        task_records = tasks_of(batch)
        least, greatest = int(task_records.min()), int(task_records.max())
        if least != greatest:
            raise GraphError(
                f"rows of the tasks {least} to {greatest} are in one: channels are mixed.",
                hint="leave the exchanges of the flow as they are: nothing may be put between its "
                "passes.",
            )
        return least

    def feed(self, address: int, rows: pa.RecordBatch) -> Iterator[Parcel]:
        index = self._element_of.get(address)
        return (
            iter((Parcel(rows, address),))
            if index is None
            else self._start_element(index).feed(address, rows)
        )

    def drain(self, task: int) -> Iterator[Parcel]:
        # An element without input rows also runs: a sum over no rows is a row.
        if self._stage.transfer is not RowTransfer.IN_PLACE and task < len(self._stage.elements):
            self._start_element(task)
        for element in self._running.values():
            yield from element.drain()

    def _start_element(self, index: int) -> Element:
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
