"""Whatever shares an element, a graph gives the rows of its plan of width 1."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_upsert.flow import (
    ArrowSource,
    Automatic,
    Collected,
    Flow,
    Fused,
    Graph,
    Influence,
    Legacy,
    Manual,
    PythonFunction,
    expanded,
    fused,
)
from spark_upsert.flow.builder import Output
from spark_upsert.flow.local import collect
from spark_upsert.flow.work import Work
from spark_upsert.task import Aggregate, Aggregation, ArrowScan, Filter
from tests.support.flow_runs import ROWS, by_stages, evens, plus_one, rows_of, sorted_rows

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


@st.composite
def steps(draw: st.DrawFn) -> list[Step]:
    found: list[Step] = []
    for index in range(draw(st.integers(1, 5))):
        feeds = draw(st.sets(st.integers(-1, index - 1), min_size=1, max_size=2))
        work = draw(st.sampled_from([*ANYWHERE, *PER_KEY]))
        found.append(
            Step(
                work,
                tuple(sorted(feeds)),
                draw(st.integers(1, 3)),
                draw(st.integers(0, 2)),
                work in PER_KEY or draw(st.booleans()),
            )
        )
    return found


def graph_of(steps: list[Step], rows: pa.Table, *, is_wide: bool) -> Graph:
    flow = Flow()
    given = {-1: flow.source("rows", ArrowSource(rows))}
    for index, step in enumerate(steps):
        given[index] = operator(flow, f"o{index}", step, [given[i] for i in step.feeds], is_wide)
    fed = {index for step in steps for index in step.feeds}
    for index in sorted(set(given) - fed):
        flow.sink(f"s{index + 1}", Collected(), given[index])
    return flow.graph()


def operator(flow: Flow, name: str, step: Step, inputs: list[Output], is_wide: bool) -> Output:
    work = {**ANYWHERE, **PER_KEY}[step.work]
    if not is_wide:
        return flow.operator(name, work, *inputs, schema=ROWS)
    by = ["k"] if step.is_by_key else []
    with flow.parallel(f"r{name}", step.width, partition_by=by):
        if step.inner and not step.is_by_key:
            with flow.parallel("inner", step.inner):
                return flow.operator(name, work, *inputs, schema=ROWS)
        return flow.operator(name, work, *inputs, schema=ROWS)


def plans(graph: Graph) -> st.SearchStrategy[Fused]:
    physical = expanded(graph)
    schemes = st.one_of(
        st.just(Legacy()), st.just(Automatic(slots=2)), st.integers(1, 6).map(Manual)
    )
    return st.builds(lambda s, i: fused(physical, s, i), schemes, st.sampled_from(Influence))


@given(steps=steps(), count=st.integers(0, 20), data=st.data())
@settings(max_examples=max(1, settings().max_examples // 4), deadline=None)
def test_every_fusion_gives_the_rows_of_width_one(
    steps: list[Step], count: int, data: st.DataObject
) -> None:
    rows = rows_of(count)
    expected = collect(graph_of(steps, rows, is_wide=False))
    plan = data.draw(plans(graph_of(steps, rows, is_wide=True)))
    for found in (collect(plan), by_stages(plan, {"rows": rows}, parts=3, turn=1)):
        assert found.keys() == expected.keys()
        for sink, table in expected.items():
            assert sorted_rows(found[sink]) == sorted_rows(table)
