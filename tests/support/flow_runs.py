"""Flows that run: graphs whose rows say what became of them, and an exchange played by hand."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from spark_upsert.flow import FusedGraph
from spark_upsert.flow.fusion import RowTransfer
from spark_upsert.flow.partitioner import Parcel, by_address
from spark_upsert.flow.passes import Pass
from spark_upsert.flow.stages import Stages, cut_into_stages
from spark_upsert.flow.validate import schemas_of
from spark_upsert.flow.wire_format import Border, tasks_of

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})

Rows = list[tuple[Any, ...]]


def rows_of(count: int, *, keys: int = 3, first: int = 0) -> pa.Table:
    values = range(first, first + count)
    return pa.table({"k": [v % keys for v in values], "v": list(values)}, schema=ROWS)


def plus_one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add one to each ``v``."""
    for batch in batches:
        values = pa.array([value + 1 for value in batch["v"].to_pylist()], pa.int64())
        yield pa.record_batch([batch["k"], values], schema=ROWS)


def evens(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out odd ``v``, and hold all rows back until the end."""
    held = [row for batch in batches for row in batch.to_pylist() if row["v"] % 2 == 0]
    yield pa.RecordBatch.from_pylist(held, schema=ROWS)


def sorted_rows(table: pa.Table) -> Rows:
    return sorted(tuple(row.values()) for row in table.to_pylist())


# -- an engine with tasks and an exchange ----------------------------------------------------


def by_stages(
    plan: FusedGraph,
    sources: Mapping[str, pa.Table],
    *,
    parts: int = 2,
    turn: int = 0,
    numbered: Callable[[int], int] = int,
    is_woken: bool = False,
) -> dict[str, pa.Table]:
    """Run a plan stage by stage, as an engine with tasks and an exchange does.

    Each pass travels as bytes, as it does to a task.

    Parameters
    ----------
    parts : int
        Tasks that read each source.
    numbered : callable
        What number the engine gives each task; by default its own.
    is_woken : bool
        Whether each task is told who it is.
    """
    stages = cut_into_stages(
        plan, schemas_of(plan.physical.graph, {n: t.schema for n, t in sources.items()})
    )
    tasks = list(_entered(stages, sources, parts))
    if is_woken and stages.stages:
        tasks.append([Border(stages, 0, same).wakes(range(stages.stages[0].task_count))])
    for index, stage in enumerate(stages.stages):
        if stage.transfer is RowTransfer.EXCHANGED:
            tasks = _exchanged(tasks, len(stage.elements))
        step: Pass = pickle.loads(pickle.dumps(Pass(stages, index, same)))
        numbers = map(numbered, range(len(tasks)))
        tasks = [
            list(step.run(batches, task=number, turn=turn))
            for number, batches in zip(numbers, tasks, strict=True)
        ]
    batches = [batch for task in tasks for batch in task]
    if stages.is_plain:
        [(name, [address])] = stages.sinks.items()
        return {name: pa.Table.from_batches(batches, stages.schemas[address])}
    return dict(_parted(stages, batches))


def same(schema: pa.Schema) -> pa.Schema:
    return schema


def _entered(
    stages: Stages, sources: Mapping[str, pa.Table], parts: int
) -> Iterator[list[pa.RecordBatch]]:
    border = Border(stages, 0, same)
    for name, table in sources.items():
        replicas = stages.book.physical.replicas_of[name]
        for part in range(parts):
            entry = stages.entries[replicas[part % len(replicas)].name]
            rows = (
                table.take(pa.array(range(part, len(table), parts), pa.int64()))
                .combine_chunks()
                .to_batches()
            )
            yield [border.pack(Parcel(batch, entry), task=0) for batch in rows if len(batch)]


def _exchanged(tasks: Iterable[list[pa.RecordBatch]], count: int) -> list[list[pa.RecordBatch]]:
    found: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
    for batch in (batch for task in tasks for batch in task):
        for task, part in by_address(Parcel(batch, tasks_of(batch))):
            found[task].append(part)
    return found


def _parted(stages: Stages, batches: list[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    last = Border(stages, len(stages.stages), same)
    found: dict[int, list[pa.RecordBatch]] = {}
    for batch in batches:
        for address, rows in last.unpack(batch):
            found.setdefault(address, []).append(rows)
    for name, addresses in stages.sinks.items():
        rows = [batch for address in addresses for batch in found.get(address, [])]
        yield name, pa.Table.from_batches(rows, stages.schemas[addresses[0]])
