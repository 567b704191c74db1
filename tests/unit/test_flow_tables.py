"""Tables at the ends of a flow that runs in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import GraphError, OptionError, TableFullError
from spark_upsert.flow import (
    ArrowSource,
    Automatic,
    CollectSink,
    Flow,
    Graph,
    Parallel,
    TableSink,
    TableSource,
    expanded,
    fused,
)
from spark_upsert.flow.graph import Work
from spark_upsert.flow.local import collect, run
from spark_upsert.plan import agg
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support.flow_recipes import ANYWHERE
from tests.support.flow_runs import ROWS, rows_of, sorted_rows


def copied(source: Work, *sinks: Work, width: int | None = None) -> Graph:
    """Return a flow that adds one to each ``v``."""
    flow = Flow()
    parallel = None if width is None else Parallel(width=width)
    rows = flow.source("from", source, parallel=parallel)
    with flow.parallel("wide", 2, partition_by=["k"]):
        rows = flow.operator("plus", ANYWHERE["plus"], rows)
    for number, sink in enumerate(sinks):
        flow.sink(f"to{number}", sink, rows)
    return flow.graph()


def table_of(path: Path, count: int) -> Table:
    table = Table.create(str(path), ROWS, keys=["v"])
    for first in range(count):
        table.upsert(rows_of(1, first=first))
    return table


@pytest.mark.parametrize("width", [None, 1, 3])
@pytest.mark.parametrize("options", [{}, {"versionAsOf": 3}, {"version_as_of": "3"}], ids=str)
def test_a_source_reads_each_row_of_a_version_once(
    tmp_path: Path, options: dict[str, Any], width: int | None
) -> None:
    table_of(tmp_path / "from", 9)
    count = 3 if options else 9  # Version 0 is without rows.
    source = TableSource(str(tmp_path / "from"), options)
    [found] = collect(copied(source, CollectSink(), width=width)).values()
    assert sorted_rows(found) == sorted((v % 3, v + 1) for v in range(count))


def test_a_source_reads_chosen_columns_in_their_order(tmp_path: Path) -> None:
    table_of(tmp_path / "from", 2)
    flow = Flow()
    source = TableSource(str(tmp_path / "from"), {"columns": "v,k"})
    flow.sink("to", CollectSink(), flow.source("from", source))
    [found] = collect(flow.graph()).values()
    assert found.schema.names == ["v", "k"]
    assert sorted_rows(found) == [(0, 0), (1, 1)]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("keys", [("k",), ()], ids=["by a column", "all rows"])
def test_a_source_reads_the_groups_that_a_table_keeps(
    tmp_path: Path, keys: tuple[str, ...], width: int
) -> None:
    """As every reader does: not the sums of their parts, which are kept."""
    table_of(tmp_path / "from", 9)
    totals = Plan.of_table(str(tmp_path / "from")).group_by(*keys).agg(total=agg.sum("v"))
    assert totals.refresh(str(tmp_path / "kept"))
    kept = TableSource(str(tmp_path / "kept"))
    found = sourced(kept, width)
    assert found.schema.names == [*keys, "total"]
    sums = [(0, 9), (1, 12), (2, 15)] if keys else [(36,)]
    shown = [tuple(map(int, row.values())) for row in found.to_pylist()]
    assert sorted(shown) == sums
    assert sourced(TableSource(kept.path, {"versionAsOf": 0}), width).num_rows == 0
    raw = sourced(TableSource(kept.path, {"raw": "true"}), width)
    assert raw.schema == Table.open(kept.path).schema.columns


def sourced(source: TableSource, width: int) -> pa.Table:
    """Return what a source of some replicas reads."""
    flow = Flow()
    rows = flow.source("from", source, parallel=Parallel(width=width))
    flow.sink("to", CollectSink(), rows)
    return collect(flow.graph())["to"]


def test_a_flow_leads_from_a_table_into_tables(tmp_path: Path) -> None:
    table_of(tmp_path / "from", 5)
    sinks = [TableSink(str(tmp_path / name), {"keys": "v"}) for name in ("one", "other")]
    graph = copied(TableSource(str(tmp_path / "from")), *sinks)
    commits = run(fused(expanded(graph), Automatic(slots=2)))
    versions = {name: commit and commit.version for name, commit in commits.items()}
    assert versions == {"to0": 0, "to1": 0}
    for sink in sinks:
        found = Table.open(sink.path).snapshot()
        assert sorted_rows(found) == sorted((v % 3, v + 1) for v in range(5))


def test_each_table_takes_a_run_once_that_fell_between_them(tmp_path: Path) -> None:
    full = {"maxBacklogEpochs": "1", "onFull": "reject"}
    sinks = [
        TableSink(str(tmp_path / "one"), {"keys": "v"}),
        TableSink(str(tmp_path / "other"), {"keys": "v", **full}),
    ]
    other = Table.create(str(tmp_path / "other"), ROWS, keys=["v"], properties=full)
    other.upsert(rows_of(1, first=50))
    other.hold("slow", 0)
    graph = copied(ArrowSource(rows_of(3)), *sinks)
    with pytest.raises(TableFullError):
        run(graph, transaction=("copy", 7))
    other.release("slow")
    commits = run(graph, transaction=("copy", 7))
    assert commits["to0"] is None
    assert commits["to1"] is not None
    assert run(graph, transaction=("copy", 7)) == {"to0": None, "to1": None}
    assert Table.open(sinks[0].path).log.head().version == 0


# -- what is refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"readChangeFeed": "true"}, GraphError, "source 'from' reads its table with read"),
        ({"splits": 3, "versionAsOf": 1}, GraphError, "source 'from' reads its table with spli"),
        ({"versionAsOff": 1}, OptionError, "versionAsOff"),
    ],
    ids=["what only Spark reads", "splits of Spark", "an unknown option"],
)
def test_options_that_a_flow_does_not_read_are_refused(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    table_of(tmp_path / "from", 2)
    with pytest.raises(error, match=message):
        collect(copied(TableSource(str(tmp_path / "from"), options), CollectSink()))


def test_a_sink_that_is_no_table_is_refused_before_anything_runs() -> None:
    with pytest.raises(GraphError, match="sink 'to0' is CollectSink, which nothing writes"):
        run(copied(ArrowSource(rows_of(3)), CollectSink()))
