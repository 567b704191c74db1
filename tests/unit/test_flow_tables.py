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


def test_replicas_of_a_source_read_ranges_of_hashes(tmp_path: Path) -> None:
    table_of(tmp_path / "from", 40)
    source = TableSource(str(tmp_path / "from"))
    flow = Flow()
    with flow.parallel("wide", 2):
        rows = flow.source("from", source)
        flow.sink("to", CollectSink(), flow.operator("plus", ANYWHERE["plus"], rows))
    reading = rows_of_replicas(flow.graph(), source)
    assert all(reading)
    assert sorted(row for rows in reading for row in rows) == sorted((v % 3, v) for v in range(40))


def rows_of_replicas(graph: Graph, source: TableSource) -> list[list[tuple[Any, ...]]]:
    from spark_upsert.flow.local import rows_of as opened

    of_table = opened("from", source)
    return [
        [tuple(row.values()) for batch in of_table.items(replica) for row in batch.to_pylist()]
        for replica in expanded(graph).replicas_of["wide.from"]
    ]


def test_a_flow_leads_from_a_table_into_tables(tmp_path: Path) -> None:
    table_of(tmp_path / "from", 5)
    sinks = [TableSink(str(tmp_path / name), {"keys": "v"}) for name in ("one", "other")]
    graph = copied(TableSource(str(tmp_path / "from")), *sinks)
    commits = run(fused(expanded(graph), Automatic(slots=2)))
    assert {name: commit and commit.version for name, commit in commits.items()} == {
        "to0": 0,
        "to1": 0,
    }
    for sink in sinks:
        found = Table.open(sink.path).snapshot()
        assert sorted_rows(found) == sorted((v % 3, v + 1) for v in range(5))


def test_each_table_takes_a_run_once_that_fell_between_them(tmp_path: Path) -> None:
    full = {"keys": "v", "maxBacklogEpochs": "1", "onFull": "reject"}
    sinks = [
        TableSink(str(tmp_path / "one"), {"keys": "v"}),
        TableSink(str(tmp_path / "other"), full),
    ]
    other = Table.create(str(tmp_path / "other"), ROWS, keys=["v"], properties=full_of(full))
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


def full_of(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name != "keys"}


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"readChangeFeed": "true"}, {"splits": 3, "versionAsOf": 1}], ids=str
)
def test_what_only_spark_reads_is_refused_by_the_name_of_the_source(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    table_of(tmp_path / "from", 2)
    graph = copied(TableSource(str(tmp_path / "from"), options), CollectSink())
    with pytest.raises(GraphError, match=f"source 'from' reads its table with {min(options)[:4]}"):
        collect(graph)


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    table_of(tmp_path / "from", 1)
    with pytest.raises(OptionError, match="versionAsOff"):
        collect(copied(TableSource(str(tmp_path / "from"), {"versionAsOff": 1}), CollectSink()))


def test_a_sink_that_is_no_table_is_refused_before_anything_runs() -> None:
    with pytest.raises(GraphError, match="sink 'to0' is CollectSink, which nothing writes"):
        run(copied(ArrowSource(rows_of(3)), CollectSink()))
