"""Flows that run: graphs whose rows say what became of them, and an exchange played by hand."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_upsert.flow import Collected, Flow, Fused, Graph, PythonFunction
from spark_upsert.flow.builder import Output
from spark_upsert.flow.outlets import Parcel, by_address
from spark_upsert.flow.pass_plan import Way
from spark_upsert.flow.passes import Border, Pass
from spark_upsert.flow.resolution import schemas_of
from spark_upsert.flow.stages import Stages, staged
from spark_upsert.flow.work import Work
from spark_upsert.task import Aggregate, Aggregation, ArrowScan, Filter

ROWS = pa.schema({"k": pa.int64(), "v": pa.int64()})

Rows = list[tuple[Any, ...]]


def rows_of(count: int, *, keys: int = 3) -> pa.Table:
    return pa.table({"k": [n % keys for n in range(count)], "v": list(range(count))}, schema=ROWS)


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


# -- graphs out of steps ---------------------------------------------------------------------

SCAN = ArrowScan(id="input", schema=ROWS)

ANYWHERE: dict[str, Work] = {
    "plus": PythonFunction(plus_one, ROWS),
    "evens": PythonFunction(evens, ROWS),
    "some": Filter(id="some", input=SCAN, where="v % 3 <> 1"),
}
"""Work that gives the same whoever gets which rows."""

PER_KEY: dict[str, Work] = {
    "sums": Aggregation(
        id="sums", input=SCAN, keys=("k",), aggregates=(Aggregate("v", "sum", "v"),)
    ),
}
"""Work that needs all rows of a key together."""


@dataclass(frozen=True)
class Step:
    """An operator, what feeds it, and the regions around it."""

    work: str
    feeds: tuple[int, ...]
    width: int
    inner: int
    is_by_key: bool


def graph_of(steps: Sequence[Step], source: Work, *, is_wide: bool) -> Graph:
    """Return the graph of some steps; what feeds no other goes to a sink.

    Parameters
    ----------
    source : Work
        What feeds the steps that say -1.
    is_wide : bool
        Whether there are regions; else each operator is there once.
    """
    flow = Flow()
    given = {-1: flow.source("rows", source)}
    for index, step in enumerate(steps):
        given[index] = _operator(flow, f"o{index}", step, [given[i] for i in step.feeds], is_wide)
    fed = {index for step in steps for index in step.feeds}
    for index in sorted(set(given) - fed):
        flow.sink(f"s{index + 1}", Collected(), given[index])
    return flow.graph()


def model_of(steps: Sequence[Step], rows: pa.Table) -> dict[str, Rows]:
    """Return the rows of each sink of `graph_of`, computed in plain Python and sorted."""
    given: dict[int, Rows] = {-1: sorted_rows(rows)}
    for index, step in enumerate(steps):
        taken = [row for feed in step.feeds for row in given[feed]]
        given[index] = _MODELS[step.work](taken)
    fed = {index for step in steps for index in step.feeds}
    return {f"s{index + 1}": sorted(given[index]) for index in sorted(set(given) - fed)}


_MODELS: dict[str, Callable[[Rows], Rows]] = {
    "plus": lambda rows: [(k, v + 1) for k, v in rows],
    "evens": lambda rows: [(k, v) for k, v in rows if v % 2 == 0],
    "some": lambda rows: [(k, v) for k, v in rows if v % 3 != 1],
    "sums": lambda rows: [
        (key, sum(v for k, v in rows if k == key)) for key in {k for k, _ in rows}
    ],
}


def _operator(flow: Flow, name: str, step: Step, inputs: list[Output], is_wide: bool) -> Output:
    work = {**ANYWHERE, **PER_KEY}[step.work]
    if not is_wide:
        return flow.operator(name, work, *inputs, schema=ROWS)
    by = ["k"] if step.is_by_key else []
    with flow.parallel(f"r{name}", step.width, partition_by=by):
        if step.inner and not step.is_by_key:
            with flow.parallel("inner", step.inner):
                return flow.operator(name, work, *inputs, schema=ROWS)
        return flow.operator(name, work, *inputs, schema=ROWS)


# -- an engine with tasks and an exchange ----------------------------------------------------


def by_stages(
    plan: Fused, sources: Mapping[str, pa.Table], *, parts: int = 2, turn: int = 0
) -> dict[str, pa.Table]:
    """Run a plan stage by stage, as an engine with tasks and an exchange does.

    Each pass travels as bytes, as it does to a task.

    Parameters
    ----------
    parts : int
        Tasks that read each source.
    """
    stages = staged(
        plan, schemas_of(plan.physical.graph, {n: t.schema for n, t in sources.items()})
    )
    tasks = list(_entered(stages, sources, parts))
    for index, stage in enumerate(stages.stages):
        if stage.way is Way.EXCHANGED:
            tasks = _exchanged(tasks, len(stage.elements))
        step: Pass = pickle.loads(pickle.dumps(Pass(stages, index, same)))
        tasks = [list(step.run(batches, task=at, turn=turn)) for at, batches in enumerate(tasks)]
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
        to = batch.column(0).to_numpy(zero_copy_only=False)
        for task, part in by_address(Parcel(batch, to)):
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
