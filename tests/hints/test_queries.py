"""Hints of streaming queries: checkpoints, exact orders, and inputs that are gone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from spark_upsert.flow import ArrowSource, CollectSink, Flow, Graph, PythonFunction
from spark_upsert.flow.rescale import remember
from spark_upsert.store import LocalStore
from spark_upsert.streams.reads.read_split import refuse_own_epochs, splits_of
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.hints.followed_hint import FollowedHint
from tests.support.notebooks import few_are_many
from tests.support.queries import InputRows, Query, inputs_of, lake, stream_of
from tests.support.written import ROW
from tests.unit.test_parking import write as write_batch

TURNS = {"merge": "roundrobin", "maxRowsPerTrigger": "3"}


class Restart(NamedTuple):
    """A query that restarts with other options than it was begun with."""

    before: Callable[[Path], InputRows]
    after: Callable[[Path], InputRows]
    advice: str
    """The alternative to a new checkpoint: the query goes on with the options of before."""
    row_count: int
    """The rows of the new query with a new checkpoint."""
    is_within_order: bool = False
    """Whether the query was stopped after one row."""


def inputs(*names: str, **options: str) -> Callable[[Path], InputRows]:
    return lambda folder: inputs_of({name: str(folder / name) for name in names}, **options)


def one_table(folder: Path) -> InputRows:
    return {"path": str(folder / "east")}


def group(pattern: str = "*", **options: str) -> Callable[[Path], InputRows]:
    return lambda folder: {"path": str(folder), "inputsPattern": pattern, **options}


def view(condition: str = "TRUE") -> Callable[[Path], InputRows]:
    return lambda folder: {"plan": Plan.of_table(str(folder / "east")).filter(condition).to_json()}


BOTH = ("east", "west")
LIVE = "leave out 'merge' and 'interleaveSeed'"
CONCAT = {"merge": "concat", "readChangeFeed": "true"}

RESTARTS = {
    "an order that begins later": Restart(
        inputs(*BOTH), inputs(*BOTH, interleaveSeed="7"), LIVE, row_count=2
    ),
    "another order": Restart(
        inputs(*BOTH, merge="concat"),
        inputs(*BOTH, merge="roundrobin"),
        "give 'merge' and 'interleaveSeed' as they were",
        row_count=2,
        is_within_order=True,
    ),
    "no order any more": Restart(
        inputs(*BOTH, merge="concat"),
        inputs(*BOTH),
        "give 'merge' and 'interleaveSeed' as they were",
        row_count=2,
        is_within_order=True,
    ),
    "inputs in another order": Restart(
        inputs(*BOTH, merge="roundrobin"),
        inputs("west", "east", merge="roundrobin"),
        "give 'inputs' in that order: east,west",
        row_count=2,
        is_within_order=True,
    ),
    "another mode within an order": Restart(
        inputs(*BOTH, **CONCAT),
        inputs(*BOTH, **CONCAT, emitUnchanged="true"),
        "give 'deduplicationMode' as it was",
        row_count=2,
        is_within_order=True,
    ),
    "counted rows that begin later": Restart(
        inputs(*BOTH, merge="concat"),
        inputs(*BOTH, merge="concat", mergeColumns="_merge_seq"),
        "drop '_merge_seq'",
        row_count=2,
    ),
    "an input that is not named again": Restart(
        inputs(*BOTH), inputs("east"), "name them again", row_count=1
    ),
    "a pattern in place of one table": Restart(
        one_table, group(), "leave 'inputsPattern' out", row_count=2
    ),
    "a group in place of one table": Restart(
        one_table, group(consistent="true"), "leave 'inputsPattern' out", row_count=2
    ),
    "a group without a table that it had": Restart(
        group(consistent="true"),
        group("east", consistent="true"),
        "check 'inputsPattern'",
        row_count=1,
    ),
    "a view in place of a table": Restart(
        one_table, view(), "give the query a new checkpointLocation", row_count=1
    ),
    "another plan": Restart(
        view(), view("id > 0"), "run the plan that it was begun with", row_count=1
    ),
}


@pytest.mark.parametrize("case", RESTARTS.values(), ids=RESTARTS)
@pytest.mark.sweep(4)
def test_a_query_that_restarts_with_other_options(case: Restart, hint: FollowedHint) -> None:
    write_batch(LocalStore(str(hint.folder)), 0, [("east", 1, 1), ("west", 1, 1)])
    before, after = case.before(hint.folder), case.after(hint.folder)
    query = Query()
    query.run(
        {**before, "maxRowsPerTrigger": "1"} if case.is_within_order else before, batches_max=1
    )
    checkpoint = query.checkpoint
    with hint:
        query.run(after)
    hint(case.advice)
    query.checkpoint = checkpoint
    query.run(before)
    hint("a new checkpointLocation")
    assert len(Query().run(after)) == case.row_count


def test_an_input_that_is_removed(hint: FollowedHint) -> None:
    paths = lake(hint.folder, "east", "west")
    query = Query()
    query.run(inputs_of(paths))
    fewer = inputs_of({"east": paths["east"]})
    with hint:
        query.run(fewer)
    hint("give allow_input_removal=true")
    assert query.run({**fewer, **hint.options}) == []


def test_an_order_whose_count_was_altered(hint: FollowedHint) -> None:
    paths = lake(hint.folder, "east", "west")
    given = inputs_of(paths, merge="roundrobin", maxRowsPerTrigger="1")
    query = Query()
    query.run(given, batches_max=1)
    offset = json.loads(query.checkpoint or "")
    offset["state"]["order"]["rows"] = -1
    query.checkpoint = json.dumps(offset)
    with hint:
        query.run(given)
    hint("give the query a new checkpointLocation")
    assert len(Query().run(given)) == 2


def test_a_table_made_again(hint: FollowedHint) -> None:
    path = lake(hint.folder, "table")["table"]
    query = Query()
    query.run({"path": path})
    shutil.move(path, f"{path}_before")
    lake(hint.folder, "table")
    with hint:
        query.run({"path": path})
    hint("give the query a new checkpointLocation")
    assert Query().run({"path": path})
    hint("put it back")
    shutil.rmtree(path)
    shutil.move(f"{path}_before", path)
    query.run({"path": path})


def test_a_table_that_was_moved(hint: FollowedHint) -> None:
    paths = lake(hint.folder, "east", "west")
    query = Query()
    given = {"path": str(hint.folder), "inputsPattern": "*"}
    query.run(given)
    shutil.move(paths["west"], hint.folder / "_west")
    with hint:
        query.run(given)
    hint("put back what was moved")
    shutil.move(hint.folder / "_west", paths["west"])
    query.run(given)
    shutil.rmtree(paths["west"])
    hint("give fail_on_data_loss=false")
    query.run({**given, **hint.options})


def test_a_batch_with_fewer_rows_than_counted(hint: FollowedHint) -> None:
    given = {**inputs_of(lake(hint.folder, "table")), **TURNS}
    query = Query()
    start, end = query.planned(given)
    counted = json.loads(json.dumps(end))
    counted["state"]["order"].update(given={"table": 9}, rows=9)
    with hint:
        query.replay(given, start, counted)
    hint("restore it")
    assert len(query.replay(given, start, end)) == 1
    hint("give the query a new checkpointLocation")
    assert len(Query().run(given)) == 1


def test_a_folder_of_offsets_that_was_moved(hint: FollowedHint) -> None:
    lake(hint.folder / "lake", "east", "west")
    offsets, moved = hint.folder / "offsets", hint.folder / "moved"
    given = {"path": str(hint.folder / "lake"), "inputsPattern": "*", "offsetsPath": str(offsets)}
    query = Query()
    with few_are_many(inputs=1):
        query.run(given)
        shutil.move(offsets, moved)
        with hint:
            query.run(given)
        hint("If the folder was moved, name it by offsets_path=...")
        query.run({**given, "offsetsPath": str(moved)})
        hint("restore that file from a copy")
        shutil.copytree(moved, offsets)
        query.run(given)
        hint("give the query a new checkpointLocation")
        shutil.rmtree(offsets)
        assert len(Query().run(given)) == 2


def test_a_query_that_reads_its_own_table(hint: FollowedHint) -> None:
    own = Transaction(writer=Transaction.writer_of_query("one"), number=0)
    paths = lake(hint.folder, "east", "west")
    Table.open(paths["east"]).upsert(pa.table(ROW), transaction=own)

    def checked(path: str) -> None:
        given = {"path": path}
        stream = stream_of(given)
        end = stream.latest(stream.initial(), everything=True)
        for work in stream.splits(stream.initial(), end):
            refuse_own_epochs(splits_of(work), "one")

    with hint:
        checked(paths["east"])
    hint("write into another table")
    checked(paths["west"])


def test_another_beginning_of_a_planned_batch(hint: FollowedHint) -> None:
    given = {"path": lake(hint.folder, "east")["east"]}
    query = Query()
    planned = query.planned(given)
    later = {**given, "startingVersion": "0"}
    with hint:
        query.replay(later, *planned)
    hint("give 'startingVersion' as it was, at least until that batch is delivered")
    assert len(query.replay(given, *planned)) == 1
    query.checkpoint = json.dumps(planned[1])
    query.run(later)
    hint("give the query a new checkpointLocation")
    assert len(Query().run(later)) == 1


def test_an_input_removed_before_its_batch_is_done(hint: FollowedHint) -> None:
    paths = lake(hint.folder, "east", "west")
    given = inputs_of(paths, **TURNS)
    query = Query()
    start, end = query.planned(given)
    fewer = inputs_of({"east": paths["east"]}, **TURNS, allowInputRemoval="true")
    with hint:
        query.replay(fewer, start, end)
    hint("name it again until that batch is done")
    assert len(query.replay(given, start, end)) == 2
    query.checkpoint = json.dumps(end)
    hint("and remove it then")
    assert query.run(fewer) == []


STATEFUL = PythonFunction(iter, pa.schema({"k": pa.int64()}))


def wide(width: int) -> Graph:
    flow = Flow()
    rows = flow.source("Src", ArrowSource(pa.table({"k": [1, 2]})))
    with flow.parallel("R", width, partition_by=["k"]):
        rows = flow.operator("A", STATEFUL, rows, keeps_state=True)
    flow.sink("Snk", CollectSink(), rows)
    return flow.graph()


def two(*names: str) -> Graph:
    flow = Flow()
    for name in names:
        rows = flow.source(name, ArrowSource(pa.table({"k": [1]})))
        flow.sink(f"{name}_kept", CollectSink(), rows)
    return flow.graph()


@pytest.mark.parametrize(
    ("before", "after", "advice"),
    [
        (wide(2), wide(3), "give the widths of before"),
        (two("a", "b"), two("b", "a"), "give them in the order of before"),
    ],
    ids=["another width", "sources in another order"],
)
def test_a_flow_that_restarts_with_another_graph(
    before: Graph, after: Graph, advice: str, hint: FollowedHint
) -> None:
    remember(before, str(hint.folder / "one"), {})
    with hint:
        remember(after, str(hint.folder / "one"), {})
    hint(advice)
    remember(before, str(hint.folder / "one"), {})
    hint("another checkpoint")
    remember(after, str(hint.folder / "two"), {})
