"""Where reads of a view begin and end: versions of one table, words and times of any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataLossError, OptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.plan import agg
from spark_upsert.plan.nodes import Node
from spark_upsert.streams.planner.formats import batch_inputs, plan_columns
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support.view_queries import Query
from tests.support.view_tables import let_time_pass
from tests.unit.test_first_write import plan as planned
from tests.unit.test_first_write import staged

Row = tuple[Any, ...]


def epoch(*rows: tuple[int, str | None]) -> pa.Table:
    """Return puts, and deletes of keys without a value."""
    keys, values = zip(*rows, strict=True)
    gone = pa.array([value is None for value in values])
    return pa.table({"k": keys, "v": pa.array(values, pa.string()), "gone": gone})


def table_at(path: Path, *, first_write: bool) -> Table:
    """Return a table of four versions, of which the first has rows if a write made it."""
    if first_write:
        sink = planned(path)
        assert sink.table().commit(staged(sink)) is not None
        table = Table.open(str(path))
    else:
        columns = pa.schema({"k": pa.int64(), "v": pa.string()})
        table = Table.create(str(path), columns, keys=["k"])
    for rows in ([(1, "x"), (5, "y")], [(5, None), (2, "z")], [(2, "zz")]):
        let_time_pass(table)
        table.upsert(epoch(*rows), deletes="gone")
    return table


@pytest.fixture(params=[True, False], ids=["made by its first write", "made empty"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    return table_at(tmp_path / "table", first_write=request.param)


def node_of(*tables: Table) -> Node:
    plan = Plan.of_table(tables[0].store.url).filter("k >= 0")
    for number, other in enumerate(tables[1:]):
        right = Plan.of_table(other.store.url).select("k", **{f"v{number}": "v"})
        plan = plan.join(right, "k", "left")
    return plan.node


def batch(node: Node, **options: str) -> list[Row]:
    read = ReadPlan.parse({"plan": node.to_json(), **options})
    columns = plan_columns(read)
    [(_, each)] = batch_inputs(read, columns).items()
    found = [b.select(columns.names) for split in each.splits() for b in each.read(split)]
    return sorted(tuple(row.values()) for b in found for row in b.to_pylist())


def rows_of(found: pa.Table | list[dict[str, Any]]) -> list[Row]:
    rows = found if isinstance(found, list) else found.to_pylist()
    return sorted(tuple(row.values()) for row in rows)


FEED = {"readChangeFeed": "true"}


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.sweep(3)
def test_the_changes_of_a_view_of_one_table_are_those_of_the_table(
    table: Table, version: int
) -> None:
    node, bounds = node_of(table), {"startingVersion": str(version)}
    wanted = rows_of(table.changes(version))
    assert batch(node, **FEED, **bounds) == wanted
    assert rows_of(Query(node, **bounds).all()) == wanted
    exclusive = {**bounds, "startingBoundInclusive": "false"}
    behind = rows_of(table.changes(version + 1)) if version < 4 else []
    assert batch(node, **FEED, **exclusive) == behind
    if version < 4:
        until = {**bounds, "endingVersion": "3", "endingBoundInclusive": "false"}
        assert batch(node, **FEED, **until) == rows_of(table.changes(version, 3))
        assert batch(node, versionAsOf=str(version)) == rows_of(table.snapshot(version))


def test_words_and_times_are_of_any_number_of_tables(table: Table, tmp_path: Path) -> None:
    """What comes from some bound on, folded upon what was there, is what there is."""
    other = table_at(tmp_path / "other", first_write=False)
    for node in (node_of(table), node_of(table, other)):
        now = batch(node)
        assert Query(node, startingVersion="latest").all() == []
        begun = Query(node, startingVersion="earliest").all()
        assert {row["_diff"] for row in begun} == {1, -1}
        state: dict[Row, int] = {}
        for row in begun:
            key = tuple(value for name, value in row.items() if not name.startswith("_"))
            state[key] = state.get(key, 0) + row["_diff"]
        assert sorted(key for key, count in state.items() if count) == now


def test_a_stream_from_the_first_version_on_has_the_rows_that_came_with_it(table: Table) -> None:
    node, before = node_of(table), str(table.log.commit(0).timestamp_ms - 5)
    wanted = rows_of(table.changes(0))
    assert rows_of(Query(node, startingTimestamp=before).all()) == wanted
    query = Query(node, startingVersion="earliest", maxRowsPerTrigger="1", splits="2")
    assert rows_of(query.all()) == wanted
    assert len(query.batches) >= 3


def test_a_start_before_the_first_rows_of_one_table_of_two_is_refused(tmp_path: Path) -> None:
    old = table_at(tmp_path / "old", first_write=False)
    let_time_pass(old)
    start = old.log.head().timestamp_ms
    new = table_at(tmp_path / "new", first_write=True)
    with pytest.raises(DataLossError, match=r"new' begins with rows behind that start"):
        Query(node_of(old, new), startingTimestamp=str(start)).all()


@pytest.mark.parametrize(
    "options",
    [
        {"startingVersion": "2"},
        {**FEED, "startingVersion": "0", "endingVersion": "2"},
        {"versionAsOf": "2"},
    ],
    ids=lambda options: ",".join(options),
)
def test_a_number_is_a_version_of_one_table(
    table: Table, tmp_path: Path, options: dict[str, str]
) -> None:
    other = table_at(tmp_path / "other", first_write=False)
    plan = {"plan": node_of(table, other).to_json(), **options}
    with pytest.raises(OptionError, match="names one table's version: use '"):
        plan_columns(ReadPlan.parse(plan))
    pinned = Plan.of_table(other.store.url).at_version(2).select("k", w="v")
    one = Plan.of_table(table.store.url).join(pinned, "k", "left").node
    plan_columns(ReadPlan.parse({"plan": one.to_json(), **options}))


def test_what_is_expired_is_data_loss_also_in_a_batch(table: Table) -> None:
    early = str(table.log.commit(1).timestamp_ms)
    table.expire(retain_versions=1, safety_ms=0)
    for bound in ({"startingVersion": "1"}, {"startingTimestamp": early}):
        with pytest.raises(DataLossError):
            batch(node_of(table), **FEED, **bound)
        with pytest.raises(DataLossError):
            Query(node_of(table), **bound).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingVersion": "2"}, "needs the change feed"),
        ({"endingVersion": "2"}, "needs the change feed"),
        ({**FEED, "versionAsOf": "2", "startingVersion": "1"}, "contradict each other"),
        (FEED, "where the changes begin"),
    ],
    ids=str,
)
def test_bounds_that_contradict_are_refused(
    table: Table, options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        batch(node_of(table), **options)
    grouped = Plan.of_table(table.store.url).group_by("v").agg(n=agg.count())
    for name in ("startingVersion", "startingTimestamp"):
        with pytest.raises(OptionError, match="no sums of the rows that there are"):
            plan_columns(ReadPlan.parse({"plan": grouped.to_json(), name: "1"}))
