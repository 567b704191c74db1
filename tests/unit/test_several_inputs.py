"""Several tables in one read: columns agree, splits share tasks, each row comes once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import CHANGELOG_FIELDS
from spark_upsert.errors import OptionError, SchemaError, TableNotFoundError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs.inputs import Described, Heads, NamedInputs, common_schema
from spark_upsert.streams.planner.formats import (
    MergedRead,
    batch_inputs,
    plan_columns,
    stream_inputs,
    stream_offsets,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.packing import InputSplit, pack_splits
from spark_upsert.table.table import Table
from tests.support.clocked import Now
from tests.support.inputs import Told
from tests.support.streams import Query, folded, versions
from tests.support.tables import rows_at

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})


def write(table: Table, rows: Mapping[int, int | None]) -> None:
    written = {
        "k": list(rows),
        "v": list(rows.values()),
        "gone": [v is None for v in rows.values()],
    }
    types = pa.schema({"k": pa.int64(), "v": pa.int64(), "gone": pa.bool_()})
    table.upsert(pa.table(written, schema=types), deletes="gone")


class Tables:
    """Tables in a folder, read as the inputs of one query."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.now = Now()
        self.by_name: dict[str, Table] = {}
        for name in names:
            self.add(name)

    def add(self, name: str, columns: pa.Schema = COLUMNS) -> Table:
        self.by_name[name] = Table.create(str(self.folder / name), columns, keys=["k"])
        return self.by_name[name]

    def given(self, **more: Any) -> dict[str, str]:
        paths = {f"input.{name}.path": str(self.folder / name) for name in self.by_name}
        given = {"inputs": ",".join(self.by_name), "readChangeFeed": "true", **paths}
        return {**given, **{name: str(value) for name, value in more.items()}}

    def stream(self, **more: Any) -> Stream:
        plan = ReadPlan.parse(self.given(mergeColumns="_input", **more))
        return Stream(
            stream_inputs(plan, plan_columns(plan)), plan.query, clock=Now(), wall=self.now
        )

    def query(self, **more: Any) -> Query:
        return Query(lambda: self.stream(**more))


@pytest.fixture
def three(tmp_path: Path) -> Tables:
    return Tables(tmp_path, "east", "north", "west")


def by_input(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["_input"], []).append(row)
    return found


def test_each_input_folds_to_its_table_through_restarts(three: Tables) -> None:
    query = three.query(maxRowsPerTrigger=3)
    for round_ in range(4):
        for number, table in enumerate(three.by_name.values()):
            write(table, {round_: number, 10: round_})
            if round_ == number:
                write(table, {0: None})
        for _ in range(2):
            assert query.plan()
            query.restart()
            query.deliver()
    query.drain()
    rows = by_input([row for batch in query.batches for row in batch])
    assert {name: folded(own) for name, own in rows.items()} == {
        name: rows_at(table) for name, table in three.by_name.items()
    }
    start = json.loads(query.noted[-1])
    assert query.stream.latest(start) is start
    for table in three.by_name.values():
        write(table, {0: 99})
        table.compact(full=True)
    query.restart()
    # Rows of different inputs come in any order, those of one input in theirs.
    replayed = [by_input(query.replayed(number)) for number in range(len(query.batches))]
    assert replayed == [by_input(batch) for batch in query.batches]


def ahead(tables: Tables, epochs: int = 3) -> None:
    """Write epochs of one row into each table."""
    for table in tables.by_name.values():
        for version in range(epochs):
            write(table, {version: 1})


def served_by(query: Query, batches: int) -> list[str]:
    """Return whose rows come, batch by batch, each planned by a fresh process."""
    found = []
    for _ in range(batches):
        query.restart()
        query.plan()
        found += [row["_input"] for row in query.deliver()]
    return found


def test_whose_turn_it_is_is_in_the_offset(three: Tables) -> None:
    ahead(three)
    query = three.query(maxEpochsPerTrigger=1, startingVersion="earliest")
    assert served_by(query, 5) == ["east", "north", "west", "east", "north"]
    now_ms = int(three.now() * 1000)
    state = json.loads(query.noted[-1])["state"]
    assert state == {
        "pressure": {"is_behind": True},
        "schedule": {"band": 1, "credit": 0, "dirty": [[now_ms, "west", "east", "north"]]},
    }
    older = {**json.loads(query.noted[-1]), "state": {"turn": "north"}}
    query.noted[-1] = json.dumps(older)
    assert served_by(query, 3) == ["north", "west", "east"], "as an older release says"
    query.drain()
    assert json.loads(query.noted[-1])["state"] == {}


def test_an_offset_that_names_an_emptied_and_a_removed_input_as_waiting_is_no_batch(
    three: Tables,
) -> None:
    ahead(three, epochs=1)
    query = three.query(maxEpochsPerTrigger=1, startingVersion="earliest")
    assert served_by(query, 3) == ["east", "north", "west"]
    waiting = json.loads(query.noted[-1])
    waiting["state"] = {"schedule": {"band": 1, "credit": 0, "dirty": [[1, "east", "gone"]]}}
    query.noted[-1] = json.dumps(waiting)
    query.restart()
    assert not query.plan()
    write(three.by_name["west"], {7: 7})
    assert served_by(query, 1) == ["west"]
    assert json.loads(query.noted[-1])["state"] == {}


def test_since_when_an_input_waits_outlives_its_process(three: Tables) -> None:
    ahead(three)
    urgent = {"input.east.priority": "800", "input.north.priority": "760"}
    query = three.query(maxEpochsPerTrigger=1, startingVersion="earliest", **urgent)
    assert served_by(query, 1) == ["east"]
    three.now.advance(8)
    assert served_by(query, 2) == ["north", "west"]


def test_a_table_says_itself_how_urgent_it_is(tmp_path: Path) -> None:
    tables = Tables(tmp_path, "a", "b", "c")
    ahead(tables)
    for name, priority in (("b", "300"), ("c", "-5")):
        table = tables.by_name[name]
        table.alter(table.log.head().schema, {"priority": priority})
    limits = {"maxEpochsPerTrigger": "1", "startingVersion": "earliest"}
    query = tables.query(**limits, **{"input.c.priority": "800"})
    assert served_by(query, 6) == ["c", "c", "c", "b", "b", "a"]
    found = {"path": str(tmp_path), "inputsPattern": "*", "mergeColumns": "_input"}
    plan = ReadPlan.parse({**found, "readChangeFeed": "true", **limits})
    inputs, offsets = partial(stream_inputs, plan, plan_columns(plan)), stream_offsets(plan)
    query = Query(lambda: Stream(inputs(), plan.query, offsets=offsets, clock=Now(), wall=Now()))
    assert served_by(query, 5) == ["b", "b", "a", "c", "b"]


def test_who_was_read_lately_comes_first(three: Tables) -> None:
    ahead(three)
    three.by_name["west"].hold("dashboard", 0)
    three.now.seconds = three.by_name["west"].consumers()[0].renewed_ms / 1000 + 1
    query = three.query(maxEpochsPerTrigger=1, startingVersion="earliest", autoPriority="true")
    # Two of the band of weight 2, then one of the others.
    assert served_by(query, 4) == ["west", "west", "east", "west"]


def test_each_input_begins_where_it_is_told(three: Tables) -> None:
    for table in three.by_name.values():
        for version in range(3):
            write(table, {version: 1})
    given = {"input.east.startingversion": 2, "input.north.startingversion": "latest"}
    query = three.query(**given)
    query.plan()
    rows = by_input(query.deliver())
    assert {name: versions([own]) for name, own in rows.items()} == {
        "east": [[2, 3]],
        "west": [[3]],
    }


@pytest.mark.parametrize("is_found", [False, True], ids=["named", "found"])
def test_a_checkpoint_of_one_table_is_none_of_several(three: Tables, is_found: bool) -> None:
    one = ReadPlan.parse({"path": str(three.folder / "east"), "readChangeFeed": "true"})
    stream = Stream(stream_inputs(one, plan_columns(one)), one.query, clock=Now())
    noted = stream.latest(stream.initial())
    found = {"path": str(three.folder), "inputsPattern": "*"}
    plan = ReadPlan.parse(found if is_found else three.given())
    several = Stream(stream_inputs(plan, plan_columns(plan)), plan.query, clock=Now())
    with pytest.raises(OptionError, match="of a query over one table, which 'path' gave"):
        several.latest(noted)


def test_what_fails_in_one_input_names_it(three: Tables, tmp_path: Path) -> None:
    query = three.query()
    query.drain()
    for path in (tmp_path / "north" / "_log").iterdir():
        path.unlink()
    query.restart()
    with pytest.raises(TableNotFoundError, match="input 'north': there is no upsertflow table"):
        query.plan()


def test_a_batch_reads_the_rows_of_all(three: Tables) -> None:
    for number, table in enumerate(three.by_name.values()):
        write(table, {number: 7, 5: 5})
    plan = ReadPlan.parse(three.given(readChangeFeed="false", mergeColumns="_input"))
    columns = plan_columns(plan)
    assert columns.names == ["k", "v", "_input"]
    merged = MergedRead(batch_inputs(plan, columns), plan.query)
    rows = [row for pack in merged.splits() for b in merged.read(pack) for row in b.to_pylist()]
    assert sorted((row["_input"], row["k"]) for row in rows) == [
        *(("east", 0), ("east", 5)),
        *(("north", 1), ("north", 5)),
        *(("west", 2), ("west", 5)),
    ]


@pytest.mark.parametrize(
    "option",
    [{"maxRowsPerTrigger": 1}, {"input.east.priority": 1}, {"autoPriority": "true"}],
    ids=str,
)
def test_what_is_of_a_trigger_is_none_of_a_batch(three: Tables, option: dict[str, Any]) -> None:
    plan = ReadPlan.parse(three.given(**option))
    with pytest.raises(OptionError, match="no meaning in a batch read"):
        MergedRead(batch_inputs(plan, plan_columns(plan)), plan.query)


K, V = pa.field("k", pa.int64()), pa.field("v", pa.int64())


@pytest.mark.parametrize(
    ("west", "message"),
    [
        ([K], "input 'west' lacks the column 'v', which 'east' has"),
        ([K, V, V.with_name("w")], "input 'west' has a column 'w', which 'east' lacks"),
        ([K, V.with_type(pa.string())], "column 'v' is string in the input 'west', and int64 in"),
        ([V, K], r"input 'west' are in another order \(v, k\) than those of 'east'"),
    ],
    ids=["23 lacks one", "23 has one more", "23 another type", "23 order"],
)
def test_columns_that_differ_are_named_with_their_input(west: list[pa.Field], message: str) -> None:
    east = pa.schema([K, V])
    inputs = {"east": Described(east, "1"), "south": Described(east, "2")}
    with pytest.raises(SchemaError, match=message) as caught:
        common_schema({**inputs, "west": Described(pa.schema(west), "3")})
    assert caught.value.fields["input"] == "west"


def test_a_column_may_be_null_if_it_may_in_any_input() -> None:
    east = Described(pa.schema([K, V.with_nullable(False)]), "1")
    west = Described(pa.schema([K, V]), "2")
    assert common_schema({"east": east, "west": west}).field("v").nullable
    assert not common_schema({"east": east}).field("v").nullable


def test_one_table_under_two_names_is_refused_whatever_its_paths(three: Tables) -> None:
    (three.folder / "south").symlink_to(three.folder / "east")
    three.by_name["south"] = three.by_name["east"]
    with pytest.raises(OptionError, match="inputs 'east' and 'south' are the same") as caught:
        three.stream()
    assert "drop 'south'" in caught.value.hint
    plan = ReadPlan.parse(three.given())
    by_hand = pa.schema([*COLUMNS, *CHANGELOG_FIELDS])
    stream = Stream(stream_inputs(plan, by_hand), plan.query, clock=Now())
    with pytest.raises(OptionError, match="inputs 'east' and 'south' are the same"):
        stream.latest(stream.initial())
    with pytest.raises(OptionError, match="inputs 'east' and 'south' are the same"):
        batch_inputs(plan, by_hand)


def test_the_identity_of_an_input_is_asked_once() -> None:
    class CountedInput(Told):
        asked = 0

        def identity(self) -> str:
            self.asked += 1
            return super().identity()

    inputs = {name: CountedInput(name, [1]) for name in "ab"}
    named = NamedInputs(inputs)
    for _ in range(3):
        named.read_heads()
    assert [each.asked for each in inputs.values()] == [1, 1]


def test_a_column_of_the_inputs_under_a_name_of_the_merge_is_refused(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.add("east", COLUMNS.append(pa.field("_input", pa.string())))
    with pytest.raises(SchemaError, match="a column '_input' of their own"):
        tables.stream()


@pytest.mark.parametrize(
    ("sizes", "slots", "expected"),
    [
        ([5, 5, 5], 8, [[0], [1], [2]]),
        ([], 8, []),
        ([1, 1, 1, 1], 2, [[0, 2], [1, 3]]),
        ([9 << 20, 1, 1, 1], 2, [[0], [1, 2, 3]]),
        ([1, 2 << 20, 3 << 20, 4 << 20], 2, [[0, 3], [1, 2]]),
    ],
    ids=["fewer than slots", "nothing", "many small", "one huge", "by bytes"],
)
def test_splits_are_packed_by_bytes(
    sizes: list[int], slots: int, expected: list[list[int]]
) -> None:
    splits = [(InputSplit("a", number), size) for number, size in enumerate(sizes)]
    packs = pack_splits(splits, slots)
    assert [[each.split for each in pack] for pack in packs] == expected


def test_an_idle_stream_reads_memory_until_it_is_time_to_look(
    three: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks, look = Now(), [], NamedInputs.read_heads

    def slow_look(inputs: NamedInputs) -> Heads:
        looks.append(now())
        now.advance(1.0)
        return look(inputs)

    monkeypatch.setattr(NamedInputs, "read_heads", slow_look)
    write(three.by_name["east"], {1: 1})
    write(three.by_name["west"], {1: 1, 2: 2})
    plan = ReadPlan.parse(three.given(maxRowsPerTrigger=1, startingVersion=1))
    inputs = stream_inputs(plan, plan_columns(plan))
    query = Query(partial(Stream, inputs, plan.query, clock=now))
    query.drain()
    assert len(query.batches) == 2
    assert len(looks) == 1, "several batches are planned by one look"
    write(three.by_name["east"], {99: 1})
    assert not query.plan()
    assert len(looks) == 1
    now.advance(4.0)
    assert query.plan()
    assert len(looks) == 2
