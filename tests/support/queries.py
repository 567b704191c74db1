"""Reads by options: batches, and streaming queries that restart from their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    plan_columns,
    shared_columns,
    stream_heads,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.stream import Stream
from tests.support.written import ROW, write

InputRows = Mapping[str, str]
Rows = list[dict[str, Any]]


def batch(given: InputRows) -> Rows:
    """Return the rows of a batch read, as Spark's reader would."""
    plan = ReadPlan.parse(given)
    columns = plan_columns(plan)
    read = MergedRead(
        batch_inputs(plan, columns), plan.query, columns=shared_columns(plan, columns)
    )
    return [row for work in read.splits() for each in read.read(work) for row in each.to_pylist()]


def stream_of(given: InputRows) -> Stream:
    """Return the stream of some options, as a process has it that has just begun."""
    plan = ReadPlan.parse(given)
    columns = plan_columns(plan)
    inputs = stream_inputs(plan, columns)
    return Stream(
        inputs,
        plan.query,
        heads=stream_heads(plan, inputs),
        offsets=stream_offsets(plan),
        columns=shared_columns(plan, columns),
    )


class Query:
    """A streaming query that goes on from its checkpoint, with options anew in each life."""

    def __init__(self) -> None:
        self.checkpoint: str | None = None

    def run(self, given: InputRows, *, batches_max: int = 9) -> Rows:
        """Live once: deliver what there is, and return it."""
        stream = stream_of(given)
        rows: Rows = []
        try:
            for _ in range(batches_max):
                end = self._batch(stream, rows)
                if end == self.checkpoint:
                    break
                self.checkpoint = end
        finally:
            stream.stop()
        return rows

    def planned(self, given: InputRows, *, everything: bool = False) -> tuple[Any, Any]:
        """Plan a batch and deliver nothing of it; return its offsets."""
        stream = stream_of(given)
        start = self._start(stream)
        return start, json.loads(json.dumps(stream.latest(start, everything=everything)))

    def replay(self, given: InputRows, start: Any, end: Any) -> Rows:
        """Return the rows of a batch that was planned, in another life."""
        stream = stream_of(given)
        works = stream.splits(start, end)
        return [row for work in works for each in stream.read(work) for row in each.to_pylist()]

    def _start(self, stream: Stream) -> Any:
        return stream.initial() if self.checkpoint is None else json.loads(self.checkpoint)

    def _batch(self, stream: Stream, rows: Rows) -> str:
        start = self._start(stream)
        end = stream.latest(start, everything=False)
        for work in stream.splits(start, end):
            rows += [row for each in stream.read(work) for row in each.to_pylist()]
        stream.commit(end)
        return json.dumps(end)


def lake(folder: Path, *names: str, **options: str) -> dict[str, str]:
    """Return the path of each of some tables, which have a row."""
    for name in names:
        write(folder, ROW, name, **options)
    return {name: str(folder / name) for name in names}


def inputs_of(paths: Mapping[str, str], **more: str) -> dict[str, str]:
    own = {f"input.{name}.path": path for name, path in paths.items()}
    return {"inputs": ",".join(paths), **own, **more}
