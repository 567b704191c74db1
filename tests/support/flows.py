"""Graphs that tests of placement and fusion begin with, with placements by name."""

from __future__ import annotations

import pyarrow as pa

from spark_upsert.flow import ArrowSource, CollectSink, Flow, Graph, Placement, PythonFunction
from spark_upsert.flow.builder import Output

ROWS = pa.table({"k": pa.array([], pa.int64()), "t": pa.array([], pa.string())})
SOURCE = ArrowSource(ROWS)
SINK = CollectSink()
SAME = PythonFunction(iter, ROWS.schema)
NOWHERE = Placement()


def chain(flow: Flow, names: str, *inputs: Output, **placement: Placement) -> Output:
    """Add operators one behind the other."""
    for name in names.split():
        inputs = (flow.operator(name, SAME, *inputs, placement=placement.get(name, NOWHERE)),)
    [last] = inputs
    return last


def one_region(**placement: Placement) -> Graph:
    """Return ``Src -> [A -> B]x2 -> Snk``; the region is ``R``."""
    return _regions(("R",), ("A B",), placement)


def adjacent_pairs(**placement: Placement) -> Graph:
    """Return ``Src -> [A -> B]x2 -> [C -> D]x2 -> Snk``; the regions are ``R`` and ``S``."""
    return _regions(("R", "S"), ("A B", "C D"), placement)


def _regions(
    regions: tuple[str, ...], names: tuple[str, ...], placement: dict[str, Placement]
) -> Graph:
    flow = Flow()
    rows = flow.source("Src", SOURCE, placement=placement.get("Src", NOWHERE))
    for region, inner in zip(regions, names, strict=True):
        with flow.parallel(region, 2, placement=placement.get(region, NOWHERE)):
            rows = chain(flow, inner, rows, **placement)
    flow.sink("Snk", SINK, rows, placement=placement.get("Snk", NOWHERE))
    return flow.graph()


def nested(**placement: Placement) -> Graph:
    """Return ``Src -> [A -> [B -> C]x2]x2 -> Snk``; the regions are ``outer`` and ``inner``."""
    flow = Flow()
    rows = flow.source("Src", SOURCE)
    with flow.parallel("outer", 2, placement=placement.get("outer", NOWHERE)):
        rows = chain(flow, "A", rows, **placement)
        with flow.parallel("inner", 2, placement=placement.get("inner", NOWHERE)):
            rows = chain(flow, "B C", rows, **placement)
    flow.sink("Snk", SINK, rows)
    return flow.graph()
