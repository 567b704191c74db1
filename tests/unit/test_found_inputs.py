"""All tables below a root as the inputs of one stream: they come, go, and are looked at rarely."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import DataLossError, OptionError, OtherTableError, SchemaError
from spark_upsert.options.inputs import Pattern, ReadPlan
from spark_upsert.options.read import QueryOptions
from spark_upsert.store.open import PrefixStore
from spark_upsert.streams.inputs.discovered import Discovery, FoundInputs
from spark_upsert.streams.inputs.protocol import Input
from spark_upsert.streams.inputs.table import TableInput
from spark_upsert.streams.offsets.delta import Bases, CompactOffsets
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    plan_columns,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.poller import InputHeads
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.columns import read_columns
from spark_upsert.table.table import Table
from tests.support.clocked import Now
from tests.support.crews import ByHand, no_time
from tests.support.notebooks import few_are_many
from tests.support.stores import FaultyStore, MemoryStore, Steps
from tests.support.streams import Query, Row, options_of

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})


def write(table: Table, *rows: int) -> None:
    """Write one epoch that sets some keys to the number of the epoch."""
    version = table.log.head().version + 1
    table.upsert(pa.table({"k": list(rows), "v": [version] * len(rows)}, schema=COLUMNS))


class Lake:
    """A folder of tables."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, name: str, *rows: int, columns: pa.Schema = COLUMNS) -> Table:
        """Make a table with one epoch of rows, if there are any."""
        table = Table.create(str(self.root / name), columns, keys=["k"])
        if rows:
            write(table, *rows)
        return table

    def drop(self, name: str) -> None:
        shutil.rmtree(self.root / name)

    def plan(self, pattern: str = "*", **given: Any) -> ReadPlan:
        texts = {name: str(value) for name, value in given.items()}
        return ReadPlan.parse(
            {"path": str(self.root), "inputsPattern": pattern, "mergeColumns": "_input", **texts}
        )

    def stream(self, pattern: str = "*", **given: Any) -> Stream:
        plan = self.plan(pattern, readChangeFeed="true", **given)
        inputs = stream_inputs(plan, plan_columns(plan))
        return Stream(inputs, plan.query, offsets=stream_offsets(plan), clock=Now(), wall=Now())

    def query(self, pattern: str = "*", **given: Any) -> Query:
        return Query(lambda: self.stream(pattern, **given))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake")
    made.add("east", 1, 2)
    made.add("west", 3)
    return made


def told(rows: list[Row]) -> Counter[tuple[str, int, int]]:
    """Return which rows came: input, key and version."""
    return Counter((row["_input"], row["k"], row["_commit_version"]) for row in rows)


FIRST = Counter({("east", 1, 1): 1, ("east", 2, 1): 1, ("west", 3, 1): 1})


def test_each_table_below_the_root_is_an_input(lake: Lake) -> None:
    query = lake.query()
    query.drain()
    assert told(query.rows) == FIRST
    plan = lake.plan()
    read = MergedRead(batch_inputs(plan, plan_columns(plan)), plan.query)
    rows = [r for pack in read.splits() for batch in read.read(pack) for r in batch.to_pylist()]
    assert {(row["_input"], row["k"]) for row in rows} == {("east", 1), ("east", 2), ("west", 3)}


def test_a_pattern_without_tables_and_columns_that_differ_are_named(lake: Lake) -> None:
    with pytest.raises(OptionError, match=r"no table is found by 'north\*' below") as caught:
        plan_columns(lake.plan("north*"))
    assert "first write" in caught.value.hint
    lake.add("north", columns=pa.schema({"k": pa.int64(), "w": pa.int64()}))
    with pytest.raises(SchemaError, match="'north' lacks the column 'v'"):
        plan_columns(lake.plan())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "east"}, "contradict"),
        ({"input.east.path": "/x"}, "but not 'inputs'"),
        ({"metadata": "files"}, "of one table"),
        ({"inputsPattern": "**"}, "expects a glob"),
        ({"path": ""}, "path"),
    ],
    ids=str,
)
def test_what_contradicts_a_pattern_is_refused(options: Mapping[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ReadPlan.parse({"path": "/lake", "inputsPattern": "*", **options})


@pytest.mark.parametrize(
    ("root", "name", "path"),
    [
        ("/lake", "a b%", "/lake/a b%"),
        ("/lake/", "a", "/lake/a"),
        ("s3://bucket/lake", "region=ä b/50%", "s3://bucket/lake/region=%C3%A4%20b/50%25"),
        ("file:///lake", "a#b?", "file:///lake/a%23b%3F"),
    ],
)
def test_the_path_of_a_table_is_the_roots_and_its_name(root: str, name: str, path: str) -> None:
    plan = ReadPlan.parse({"path": root, "inputsPattern": "*"})
    assert plan.input_below(name).of_table().path == path


def test_a_copy_of_a_table_does_not_join(lake: Lake) -> None:
    query = lake.query()
    query.drain()
    shutil.copytree(lake.root / "east", lake.root / "old" / "east")
    shutil.copytree(lake.root / "east", lake.root / "backup")
    with pytest.raises(OptionError, match="inputs 'backup' and 'east' are the same"):
        query.plan()
    lake.drop("backup")
    query.drain()
    assert told(query.rows) == FIRST


@pytest.mark.parametrize("start", [{}, {"startingVersion": "latest"}], ids=["rows", "latest"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_a_table_that_comes_joins_with_all_that_is_in_it(
    lake: Lake, is_restarted: bool, start: dict[str, str]
) -> None:
    (lake.root / "north").mkdir()
    query = lake.query(**start)
    query.drain()
    first = Counter() if start else FIRST
    assert told(query.rows) == first
    if is_restarted:
        query.restart()
    north = lake.add("north", 5)
    write(north, 6)
    query.drain()
    write(north, 7)
    query.drain()
    news = told(query.rows) - first
    assert {name for name, _, _ in news} == {"north"}
    assert sorted(key for _, key, _ in news) == [5, 6, 7]


def test_a_table_that_comes_with_other_columns_is_an_error_that_names_it(lake: Lake) -> None:
    query = lake.query()
    query.drain()
    lake.add("north", columns=pa.schema({"k": pa.int64(), "w": pa.int64()})).upsert(
        pa.table({"k": [1], "w": [1]})
    )
    query.plan()
    with pytest.raises(SchemaError, match="input 'north': "):
        query.deliver()


def test_a_frozen_stream_takes_in_no_table_that_comes_later(lake: Lake) -> None:
    query = lake.query(maxRowsPerTrigger=1)
    query.stream.freeze()
    while query.plan():
        query.deliver()
        if len(query.batches) == 1:
            lake.add("north", 5)
    assert told(query.rows) == FIRST
    query.restart()
    query.drain()
    assert told(query.rows) - FIRST == Counter({("north", 5, 1): 1})


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("pattern", ["*", "*/orders"])
def test_a_table_that_goes_is_an_error_that_names_it(
    tmp_path: Path, is_restarted: bool, pattern: str
) -> None:
    """Whether its folder is listed, or follows from the pattern."""
    lake = Lake(tmp_path)
    name = pattern.replace("*", "west")
    lake.add(pattern.replace("*", "east"), 1)
    lake.add(name, 1)
    query = lake.query(pattern)
    query.drain()
    lake.drop(name)
    if is_restarted:
        query.restart()
    with pytest.raises(DataLossError, match=f"input '{name}', but no such table") as caught:
        query.plan()
    assert caught.value.fields["inputs"] == (name,)
    assert "failOnDataLoss" in caught.value.hint or "fail_on_data_loss" in caught.value.hint


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_a_table_that_may_go_is_a_warning_and_another_input_when_it_comes_again(
    lake: Lake, is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    query = lake.query(failOnDataLoss="false")
    query.drain()
    write(Table.open(str(lake.root / "west")), 8)
    write(Table.open(str(lake.root / "east")), 9)
    if is_restarted:
        assert query.plan()
        query.restart()
    lake.drop("west")
    with caplog.at_level(logging.WARNING):
        query.drain()
    assert "an input is gone, and read no more: input=west" in caplog.text
    assert told(query.rows) - FIRST == Counter({("east", 9, 2): 1})
    assert list(json.loads(query.noted[-1])["positions"]) == ["east"]
    caplog.clear()
    query.drain()
    assert caplog.text == "", "it is told once"
    lake.add("west", 4)
    query.drain()
    assert told(query.rows) - FIRST == Counter({("east", 9, 2): 1, ("west", 4, 1): 1})


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}], ids=["strict", "lenient"])
def test_if_all_tables_are_gone_the_root_is_gone(lake: Lake, options: dict[str, str]) -> None:
    query = lake.query(**options)
    query.drain()
    lake.root.rename(lake.root.with_name("elsewhere"))
    with pytest.raises(DataLossError, match="inputs 'east', 'west', but no such table") as caught:
        query.plan()
    assert "mount" in caught.value.hint


@pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "lenient"])
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
def test_a_table_that_is_made_anew_between_two_looks_is_another_one(
    lake: Lake, is_restarted: bool, is_strict: bool
) -> None:
    query = lake.query(failOnDataLoss=str(is_strict).lower())
    query.drain()
    lake.drop("west")
    lake.add("west", 1, 2, 3)
    if is_restarted:
        query.restart()
    with pytest.raises(OtherTableError, match="input 'west': "):
        query.plan()


def test_an_exact_order_has_no_gaps(lake: Lake) -> None:
    with pytest.raises(OptionError, match="failOnDataLoss=false has no meaning in an exact order"):
        lake.query(merge="concat", failOnDataLoss="false").drain()


@pytest.mark.parametrize("merge", ["concat", "roundrobin"])
def test_an_exact_order_goes_on_through_tables_that_come(lake: Lake, merge: str) -> None:
    query = lake.query(merge=merge, maxRowsPerTrigger=1, mergeColumns="_input,_merge_seq")
    query.drain()
    lake.add("north", 5, 6)
    query.drain()
    write(Table.open(str(lake.root / "east")), 9)
    query.restart()
    query.drain()
    rows = [row for batch in query.batches for row in batch]
    assert told(rows) - FIRST == Counter(
        {("north", 5, 1): 1, ("north", 6, 1): 1, ("east", 9, 2): 1}
    )
    assert [row["_merge_seq"] for row in rows] == list(range(6))


@pytest.mark.parametrize("is_told", [False, True], ids=["beside them", "where it is told"])
def test_positions_of_many_tables_lie_beside_them_or_where_it_is_told(
    lake: Lake, tmp_path: Path, is_told: bool
) -> None:
    folder = tmp_path / "kept" if is_told else lake.root / "_offsets"
    with few_are_many(inputs=1):
        query = lake.query(**({"offsetsPath": str(folder)} if is_told else {}))
        query.drain()
        assert len(list((folder / json.loads(query.noted[-1])["stream"]).iterdir())) == 1
        assert (lake.root / "_offsets").exists() != is_told
        query.restart()
        write(Table.open(str(lake.root / "west")), 8)
        query.drain()
        assert told(query.rows) - FIRST == Counter({("west", 8, 2): 1})


IN_BUCKET = {"path": "s3://lake/tenants", "inputsPattern": "*"}
NAMED = {"inputs": "east", "input.east.path": "s3://lake/east"}


@pytest.mark.parametrize(
    "options",
    [
        IN_BUCKET,
        {**IN_BUCKET, "failOnDataLoss": "false"},
        NAMED,
        {**NAMED, "offsetsPath": "s3://lake/offsets", "merge": "roundrobin"},
    ],
    ids=["found", "found, and may go", "named", "kept beside, in an exact order"],
)
def test_a_stream_travels_to_a_task_without_its_clients_of_a_bucket(
    options: dict[str, str],
) -> None:
    plan = ReadPlan.parse({**options, "storage.endpoint": "https://localhost:1"})
    inputs = stream_inputs(plan, COLUMNS)
    stream = Stream(inputs, plan.query, offsets=stream_offsets(plan), columns=COLUMNS)
    sent = pickle.loads(pickle.dumps(stream))
    assert list(sent.read([])) == []


COUNT = 1000


class Thousand:
    """A stream over a thousand tables in a bucket that notes what it is asked."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.objects = MemoryStore()
        self.now = Now()
        self.options = options_of(startingVersion=1)
        schema = TableSchema.of(COLUMNS, keys=["k"])
        for number in range(COUNT):
            Table(PrefixStore(self.objects, f"t{number:03}")).ensure(schema)
        columns = read_columns(self.table("t000").log, self.options)
        store = FaultyStore(self.objects, self.steps)

        def make(name: str, *, joins: bool) -> Input:
            table = Table(PrefixStore(store, name))
            return TableInput(self.options, columns, table=table)

        found = FoundInputs(Discovery(store, Pattern.parse("*")), make, is_lenient=False)
        offsets = CompactOffsets(Bases(PrefixStore(self.objects, "_offsets")))
        self.crew = ByHand(self.now)
        heads = InputHeads(found, clock=self.now, busy_clock=no_time, crew=lambda _: self.crew)
        self.query = Query(
            lambda: Stream(found, QueryOptions(), offsets=offsets, heads=heads, wall=self.now)
        )

    def table(self, name: str) -> Table:
        return Table(PrefixStore(self.objects, name))

    def asked(self) -> list[str]:
        """Return what was asked since the last time, but for what a bucket need not do."""
        names = [name for name in self.steps.names if not name.startswith(("sync ", "prepare "))]
        del self.steps.names[:]
        return names


@pytest.mark.slow
def test_what_a_thousand_tables_are_asked() -> None:
    """One request a table and look, two in an eighth of the looks, and one for each listing."""
    thousand = Thousand()
    query = thousand.query
    query.drain()
    thousand.asked()
    began_s = thousand.now()
    for _ in range(8):
        assert not query.plan()
    looks = round((thousand.now() - began_s) / 0.5)
    asked = Counter(name.split()[0] for name in thousand.asked())
    assert looks == 16, "each question waits for a listing, which comes every second"
    assert 1.0 <= asked["read"] / (looks * COUNT) <= 1.25
    assert asked["folders"] == 8
    assert asked.keys() == {"read", "folders"}

    for number in range(COUNT // 100):
        write(thousand.table(f"t{number:03}"), 1)
    thousand.crew.go(0.5)
    thousand.asked()
    assert query.plan()
    assert thousand.asked() == [], "a batch is planned from memory"
    assert len(query.deliver()) == COUNT // 100
    assert len(thousand.asked()) / (COUNT // 100) <= 8
