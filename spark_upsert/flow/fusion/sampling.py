"""Estimates from a sample: each operator runs once over some rows, and is watched.

One replica of each takes the whole sample, so that what depends on the number of channels (groups
that are in several) is measured as at width 1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter

import numpy as np
import pyarrow as pa

from spark_upsert.errors import GraphError
from spark_upsert.flow.estimates import Estimate
from spark_upsert.flow.expansion import Physical, Replica, SplitterKind, expanded
from spark_upsert.flow.graph import Graph, OperatorKind
from spark_upsert.flow.run.running import started
from spark_upsert.flow.run.splitters import first_turn, route
from spark_upsert.flow.work import ArrowSource


def sampled(
    graph: Graph, given: Mapping[str, pa.Table] | None = None, *, rows: Mapping[str, float]
) -> dict[str, Estimate]:
    """Return what a sample tells of each operator, for `Automatic`.

    Parameters
    ----------
    given : mapping of str to pyarrow.Table, optional
        A sample of each source that does not have its rows with it, by its full name.
    rows : mapping of str to float
        How many rows each source gives when the graph is run.

    Raises
    ------
    GraphError
        There is no sample of a source, or an operator does not give what it said.
    """
    physical = expanded(graph)
    shown: dict[str, list[pa.RecordBatch]] = {}
    found: dict[str, Estimate] = {}
    for name in _in_order(graph):
        [replica, *_] = physical.replicas_of[name]
        if replica.operator.kind is OperatorKind.SOURCE:
            shown[name] = _sample(replica, given or {}).to_batches()
            found[name] = Estimate(rows=rows[name], row_s=0.0, row_bytes=_row_bytes(shown[name]))
        elif replica.operator.kind is OperatorKind.OPERATOR:
            taken = [
                (each.port, batch)
                for each in graph.streams
                if each.consumer == name
                for batch in shown[each.producer]
            ]
            shown[name], spent_s = _run(replica, taken)
            taken_rows = max(1, sum(batch.num_rows for _, batch in taken))
            found[name] = Estimate(
                selectivity=sum(batch.num_rows for batch in shown[name]) / taken_rows,
                row_s=spent_s / taken_rows,
                row_bytes=_row_bytes(shown[name]),
                skew=_skew(name, physical, shown),
            )
    return found


def _in_order(graph: Graph) -> Iterator[str]:
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(graph.places, ()))
    for each in graph.streams:
        sorter.add(each.consumer, each.producer)
    yield from sorter.static_order()


def _sample(replica: Replica, given: Mapping[str, pa.Table]) -> pa.Table:
    work = replica.operator.work
    if replica.logical in given:
        return given[replica.logical]
    if isinstance(work, ArrowSource):
        return work.rows
    raise GraphError(
        f"there is no sample of the source '{replica.logical}'.",
        hint=f"give it one: given={{'{replica.logical}': table}}.",
        operators=(replica.logical,),
    )


def _run(
    replica: Replica, taken: list[tuple[str, pa.RecordBatch]]
) -> tuple[list[pa.RecordBatch], float]:
    """Return what a replica gives for some batches, and the processor time that it takes."""
    running = started(replica)
    try:
        # Of the process: a function has a thread of its own (`handed`).
        before = time.process_time()
        given = [batch for port, each in taken for batch in running.feed(port, each)]
        given += running.drain()
        return given, time.process_time() - before
    finally:
        running.close()


def _row_bytes(batches: list[pa.RecordBatch]) -> float | None:
    """Return the bytes of a row; None if there is none to tell."""
    rows = sum(batch.num_rows for batch in batches)
    return sum(batch.nbytes for batch in batches) / rows if rows else None


def _skew(name: str, physical: Physical, shown: Mapping[str, list[pa.RecordBatch]]) -> float:
    """Return the rows of the busiest channel over those of the mean one, if they come by hash."""
    found = 1.0
    for splitter in physical.splitters:
        if splitter.consumer != name or splitter.kind is not SplitterKind.HASH:
            continue
        counts = np.zeros(sum(1 for _ in splitter.iter_replicas()), dtype=np.int64)
        for batch in shown[physical.replica[splitter.owner].logical]:
            targets = route(splitter, batch, first_turn(splitter)).targets
            counts += np.bincount(targets, minlength=len(counts))
        if counts.any():
            found = max(found, float(counts.max() / counts.mean()))
    return found
