"""A batch read of one input or of several: the same splits, packed as those of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from spark_upsert.options.query import QueryOptions
from spark_upsert.plan.pins import Pins
from spark_upsert.streams.inputs.input import Pushable
from spark_upsert.streams.planner.kinds import Bounded
from spark_upsert.streams.reads.packs import of_each, planned
from spark_upsert.streams.reads.passage import whole_passage
from spark_upsert.streams.reads.work import TaskRead, read_work


class MergedRead:
    """The work of one batch read of all inputs; pickled into the tasks.

    Parameters
    ----------
    inputs : mapping of str to Bounded
        In their declared order.
    query : QueryOptions
        What is said of all of them.
    columns : pyarrow.Schema, optional
        What the batches of all inputs are brought to; by default they stay as they are.
    """

    def __init__(
        self,
        inputs: Mapping[str, Bounded],
        query: QueryOptions,
        *,
        columns: pa.Schema | None = None,
    ) -> None:
        query.require_batch()
        self._inputs = inputs
        self._query = query
        self._columns = columns

    def push(self, pins: Pins) -> None:
        """Let inputs leave out rows that have other values than some, where that saves reading.

        The caller judges the rows itself: an input may give them all the same.
        """
        if self._query.order is None:
            for each in self._inputs.values():
                if isinstance(each, Pushable):
                    each.push(pins)

    def splits(self) -> list[TaskRead]:
        """Return the work: what each task reads."""
        if self._query.order is not None:
            return [whole_passage(self._inputs, self._query.order)]
        splits = of_each(self._inputs, lambda each: each.splits())
        return [*planned(splits, self._split_bytes, self._query.slots)]

    def _split_bytes(self, name: str, split: Any) -> int:
        return self._inputs[name].split_bytes(split)

    def read(self, work: TaskRead) -> Iterator[pa.RecordBatch]:
        """Yield the rows that one task reads."""
        yield from read_work(self._inputs, work, self._query, self._columns)
