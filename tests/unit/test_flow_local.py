"""A graph that runs in one process: what travels, what is held up, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import GraphError, PlanError, UpsertFlowError
from spark_upsert.flow import (
    ArrowSource,
    CollectSink,
    Flow,
    Graph,
    InputRows,
    Legacy,
    Manual,
    PythonFunction,
    Scheme,
    expanded,
    fused,
)
from spark_upsert.flow.graph import Function
from spark_upsert.flow.local import Item, collect, run_local
from spark_upsert.flow.partitioner import Marker
from spark_upsert.task import ArrowScan, Filter
from tests.support.flow_runs import ROWS, evens, rows_of

SAME = PythonFunction(iter, ROWS)
HELD_SECONDS = 0.2
"""How long is waited for what must not come; however long it is, right code passes."""


def regions(*widths: int, work: PythonFunction = SAME) -> Graph:
    """Return operators one behind the other, each a region of a width; 0: in none."""
    flow = Flow()
    rows = flow.source("rows", InputRows(ROWS))
    for index, width in enumerate(widths):
        if width:
            with flow.parallel(f"r{index}", width):
                rows = flow.operator("o", work, rows)
        else:
            rows = flow.operator(f"o{index}", work, rows)
    flow.sink("kept", CollectSink(), rows)
    return flow.graph()


def one_row(number: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([0]), pa.array([number])], schema=ROWS)


def elements() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("element ")]


# -- markers

WINDOWS: dict[str, tuple[Graph, int]] = {
    "13 a splitter of a source copies it": (regions(3), 3),
    "13 whoever is in no region sends it on": (regions(0, 2), 2),
    "14 a splitter in a region drops it": (regions(2, 3), 0),
    "no splitter: it goes where the rows go": (regions(0, 0), 1),
}


@pytest.mark.parametrize("scheme", [Legacy(), Manual(1)], ids=["apart", "in one element"])
@pytest.mark.parametrize(("graph", "count"), WINDOWS.values(), ids=WINDOWS)
def test_a_window_marker_goes_to_each_channel_or_nowhere(
    graph: Graph, count: int, scheme: Scheme
) -> None:
    items: list[Item] = [one_row(1), Marker.WINDOW, one_row(2)]
    plan = fused(expanded(graph), scheme)
    found = [item for _, item in run_local(plan, {"rows": lambda: items})]
    assert found.count(Marker.WINDOW) == count
    # 15: the end has come to all channels, whatever became of the window.
    batches = [item for item in found if isinstance(item, pa.RecordBatch)]
    assert sorted(row for batch in batches for row in values(batch)) == [1, 2]


def values(batch: pa.RecordBatch) -> list[int]:
    found: list[int] = batch["v"].to_pylist()
    return found


def test_an_operator_gives_at_a_window_what_it_has_held_back() -> None:
    items: list[Item] = [one_row(2), one_row(3), one_row(4), Marker.WINDOW, one_row(6)]
    graph = regions(0, work=PythonFunction(evens, ROWS))
    found = [item for _, item in run_local(graph, {"rows": lambda: items})]
    said = [item if isinstance(item, Marker) else values(item) for item in found]
    assert said == [[2, 4], Marker.WINDOW, [6]]


def test_replicas_of_a_source_take_turns() -> None:
    flow = Flow()
    with flow.parallel("both", 2):
        rows = flow.operator("same", SAME, flow.source("rows", InputRows(ROWS)))
    flow.sink("kept", CollectSink(), rows)
    batches = [one_row(number) for number in range(5)]
    kept = collect(flow.graph(), {"both.rows": lambda: batches})["kept"]
    assert sorted(kept["v"].to_pylist()) == [0, 1, 2, 3, 4]


# -- back-pressure and ends


class Counted:
    """A source of many rows, which knows how many were taken."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.has_ended = threading.Event()

    def __call__(self) -> Iterator[pa.RecordBatch]:
        while self.left:
            self.left -= 1
            yield one_row(self.left)
        self.has_ended.set()


@pytest.mark.parametrize("scheme", [Legacy(), Manual(2)], ids=["apart", "in two"])
def test_a_reader_who_stops_stops_the_source(scheme: Scheme) -> None:
    source = Counted(500)
    plan = fused(expanded(regions(2, 3)), scheme)
    items = run_local(plan, {"rows": source}, capacity=4)
    next(items)
    assert not source.has_ended.wait(HELD_SECONDS)
    assert source.left > 400
    assert sum(1 for _ in items) == 499
    assert not elements()


def test_whoever_stops_reading_ends_all_threads() -> None:
    source = Counted(500)
    items = run_local(regions(2, 3), {"rows": source}, capacity=4)
    next(items)
    assert elements()
    items.close()  # type: ignore[attr-defined]
    assert not elements()
    assert not source.has_ended.is_set()


# -- failures


def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if 7 in values(batch):
            raise ZeroDivisionError("seven")
        yield batch


def lies(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.rename_columns(["k", "w"])


def gives_nothing(batches: Iterator[pa.RecordBatch]) -> Any:
    del batches


@pytest.mark.parametrize("scheme", [Legacy(), Manual(1)], ids=["apart", "in one element"])
def test_what_an_operator_raises_comes_out_with_its_name(scheme: Scheme) -> None:
    plan = fused(expanded(regions(0, 2, 3, work=PythonFunction(fails, ROWS))), scheme)
    with pytest.raises(ZeroDivisionError, match="seven") as failed:
        list(run_local(plan, {"rows": Counted(500)}, capacity=4))
    assert failed.value.__notes__ == ["It is about the operator 'o0'."]
    assert not elements()


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()], ids=["exit", "close"])
def test_a_function_that_would_end_its_process_fails_by_its_name(error: BaseException) -> None:
    def ends(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise error

    graph = regions(1, work=PythonFunction(ends, ROWS))
    with pytest.raises(RuntimeError, match=f"it ended by {type(error).__name__}") as failed:
        collect(graph, {"rows": Counted(1)})
    assert failed.value.__notes__ == ["It is about the operator 'r0.o[0]'."]
    assert not elements()


LIES: dict[str, tuple[Function, str]] = {
    "other columns": (
        lies,
        r"\[GRAPH\] operator 'r0.o\[0\]' gave the columns k int64, w int64, its",
    ),
    "nothing to iterate": (
        gives_nothing,
        r"\[GRAPH\] operator 'r0.o\[0\]' gave NoneType, expected an iterator",
    ),
}


@pytest.mark.parametrize(("function", "text"), LIES.values(), ids=LIES)
def test_a_function_gives_what_its_schema_says(function: Function, text: str) -> None:
    graph = regions(1, work=PythonFunction(function, ROWS))
    with pytest.raises(GraphError, match=text) as failed:
        collect(graph, {"rows": Counted(1)})
    assert failed.value.fields["operators"] == ("r0.o",)


def test_what_a_source_raises_comes_out_with_its_name() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield one_row(1)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone") as failed:
        collect(regions(2), {"rows": broken})
    assert failed.value.__notes__ == ["It is about the operator 'rows'."]


# -- what cannot be run


def with_filter(schema: pa.Schema, where: str = "v > 1", port: str = "input") -> Graph:
    flow = Flow()
    work = Filter(id="some", input=ArrowScan(id=port, schema=schema), where=where)
    rows = flow.operator("some", work, flow.source("rows", ArrowSource(rows_of(3))))
    flow.sink("kept", CollectSink(), rows)
    return flow.graph()


REFUSED: dict[str, tuple[Callable[[], object], type[UpsertFlowError], str]] = {
    "a plan over other columns": (
        lambda: collect(with_filter(pa.schema({"v": pa.int64()}))),
        GraphError,
        "the plan of 'some' scans v int64 at its port 'input', but 'rows' gives k int64, v int64",
    ),
    "a plan with another scan": (
        lambda: collect(with_filter(ROWS, port="inptu")),
        GraphError,
        "operator 'some' has the ports input, its plan the scans inptu",
    ),
    "a plan that cannot be run": (
        lambda: collect(with_filter(ROWS, where="w > 1")),
        PlanError,
        "column 'w'|'w'",
    ),
    "a source that nobody gives": (
        lambda: collect(regions(2)),
        GraphError,
        "nothing reads the source 'rows' here",
    ),
    "rows for no source": (
        lambda: collect(regions(2), {"rows": Counted(1), "row": Counted(1)}),
        GraphError,
        "rows are given for 'row', which is no source(.|\n)*Did you mean 'rows'",
    ),
}


@pytest.mark.parametrize(("run", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_before_anything_runs(
    run: Callable[[], object], error: type[UpsertFlowError], text: str
) -> None:
    with pytest.raises(error, match=text):
        run()
