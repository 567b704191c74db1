"""Reads of all tables below a root at one batch, and what the group table itself shows."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_upsert.errors import (
    DataLossError,
    OptionError,
    OtherTableError,
    TableNotFoundError,
    VersionNotFoundError,
)
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.routed.group import SourcePosition
from spark_upsert.streams.planner.formats import MergedRead, batch_inputs, plan_columns
from spark_upsert.table.log import storage
from spark_upsert.table.log.log import cut
from tests.support.group_worlds import RoutedBatch, folds, present


@pytest.fixture
def world(tmp_path: Path) -> RoutedBatch:
    """Two tables; the second batch is of one of them."""
    made = RoutedBatch(tmp_path / "lake")
    made.batch(a={1: 1}, b={1: 10})
    made.batch(a={1: 2, 2: 2})
    return made


def expire(world: RoutedBatch, folder: str) -> None:
    world.table(folder).expire(retain_versions=0, safety_ms=0)


def group_rows(world: RoutedBatch, **given: str) -> list[dict[str, Any]]:
    plan = ReadPlan.parse({"path": str(world.root), "metadata": "group", **given})
    read = MergedRead(batch_inputs(plan, plan_columns(plan)), plan.query)
    return [row for work in read.splits() for b in read.read(work) for row in b.to_pylist()]


def test_the_group_is_a_row_for_each_table_and_one_for_the_batch(world: RoutedBatch) -> None:
    rows = {row["folder"]: (row["batch"], row["version"]) for row in group_rows(world)}
    assert rows == {"": (1, None), "a": (1, 2), "b": (0, 1)}
    past = {row["folder"]: row["batch"] for row in group_rows(world, versionAsOf="1")}
    assert past == {"": 0, "a": 0, "b": 0}


def test_a_root_without_a_group_is_told(world: RoutedBatch) -> None:
    shutil.rmtree(world.root / "_group")
    with pytest.raises(TableNotFoundError, match="no query has written a batch") as caught:
        group_rows(world)
    assert "before the first '{'" in caught.value.hint
    with pytest.raises(TableNotFoundError, match="it has no group table"):
        world.read()


def test_what_is_not_in_a_whole_batch_is_not_read(world: RoutedBatch) -> None:
    world.write("a", {7: 7})
    world.write("others", {1: 1})
    world.begin({"b": {5: 5}, "c": {1: 1}})
    world.commit_next()
    assert world.read() == world.read(asOfBatch=1) == {"a": {1: 2, 2: 2}, "b": {1: 10}}
    assert world.read(asOfBatch=0) == {"a": {1: 1}, "b": {1: 10}}
    assert world.read(consistent="false").keys() == {"a", "b", "others"}
    assert world.read(inputsPattern="b*") == {"b": {1: 10}}
    with pytest.raises(OptionError, match=r"of the 2 tables that have batch 1 .* none matches"):
        world.read(inputsPattern="x*")
    plan = world.plan(readChangeFeed="true", asOfBatch=1)
    read = MergedRead(batch_inputs(plan, plan_columns(plan)), plan.query)
    rows = [row for work in read.splits() for b in read.read(work) for row in b.to_pylist()]
    assert folds([rows]) == world.whole[1]


def test_tables_that_follow_a_database_are_read_together_when_they_have_joined(
    world: RoutedBatch,
) -> None:
    query = world.query()
    query.drain()
    world.source = SourcePosition(lsn="0/1A", is_whole=False)
    world.batch(a={3: 3})
    with pytest.raises(OptionError, match=r"batch 2 below .* is no state of the database"):
        world.read(asOfBatch=2)
    with pytest.raises(OptionError, match=r"batch 2 below .* is no state"):
        world.read()
    assert world.read(asOfBatch=1) == {"a": {1: 2, 2: 2}, "b": {1: 10}}
    query.drain()
    assert folds(query.batches) == world.whole[1]
    world.source = SourcePosition(lsn="0/2B", committed_us=1_700_000_000_000_001)
    world.batch(b={3: 30})
    query.drain()
    assert folds(query.batches) == world.read() == world.whole[3]
    batches = [world.group.of_batch(number).batch for number in (1, 2, 3)]
    assert [batch and batch.source for batch in batches] == [
        None,
        SourcePosition(lsn="0/1A", is_whole=False),
        world.source,
    ]


MINUTE_US = 60_000_000
FOLLOWED = {
    "0/1A": None,
    "0/2B": None,
    "0/3C": 2 * MINUTE_US + 1,
    **dict.fromkeys(("0/3D", "0/3E", "0/3F", "0/40", "0/41")),
    "1/0": 3 * MINUTE_US + 1,
}
"""Commit times by position; batches of copies have none."""


@pytest.fixture
def followed(world: RoutedBatch) -> RoutedBatch:
    """Batches 2 to 10, which follow a database: joining at 1A, then whole."""
    for number, (lsn, time) in enumerate(FOLLOWED.items()):
        world.source = SourcePosition(lsn=lsn, committed_us=time, is_whole=number > 0)
        world.batch(a={3: number})
        world.table("a").compact(full=True)
    return world


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({"asOfLsn": "0/2B"}, 3),
        ({"asOfLsn": "0/3b"}, 3),
        ({"asOfLsn": "0/3C"}, 4),
        ({"asOfLsn": "0/FFFFFFFF"}, 9),
        ({"asOfLsn": "1/0"}, 10),
        ({"asOfLsn": "FFFFFFFF/0"}, 10),
        ({"asOfSourceTime": "1970-01-01T00:02:00"}, 4),
        ({"asOfSourceTime": "179999"}, 4),
        ({"asOfSourceTime": "1970-01-01T02:03:00+02:00"}, 10),
    ],
    ids=str,
)
def test_tables_are_read_at_a_position_of_the_database(
    followed: RoutedBatch, options: dict[str, str], batch: int
) -> None:
    assert followed.read(consistent=None, **options) == followed.whole[batch]
    followed.source = SourcePosition(lsn="1/1", is_whole=False)
    followed.batch(a={3: 9})
    assert followed.read(**options) == followed.whole[batch]
    with pytest.raises(OptionError, match=f"'{next(iter(options))}' has no meaning in a stream"):
        followed.stream(**options)


def test_a_position_before_the_first_whole_batch_is_an_error(followed: RoutedBatch) -> None:
    for options in ({"asOfLsn": "0/2A"}, {"asOfLsn": "0/1A"}):
        with pytest.raises(VersionNotFoundError, match=r"it is batch 3 at 0/2B\. Earlier"):
            followed.read(**options)
    with pytest.raises(
        VersionNotFoundError, match="batch 4 at 0/3C, committed at 1970-01-01T00:02:00Z"
    ):
        followed.read(asOfSourceTime="119999")
    followed.group.table.expire(retain_versions=0, safety_ms=0)
    with pytest.raises(VersionNotFoundError, match=r"it is batch 10 at 1/0.* expired"):
        followed.read(asOfLsn="0/3C")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "'asOfLsn' needs tables that follow a database"),
        (SourcePosition(lsn="0/1A", is_whole=False), "'asOfLsn' needs a whole batch"),
    ],
)
def test_a_group_without_a_whole_batch_has_no_position(
    world: RoutedBatch, source: SourcePosition | None, message: str
) -> None:
    world.source = source
    world.batch(a={3: 3})
    with pytest.raises(OptionError, match=message):
        world.read(asOfLsn="0/1A")


def test_a_copy_without_a_transaction_has_no_commit_time(world: RoutedBatch) -> None:
    world.source = SourcePosition(lsn="0/1A")
    world.batch(a={3: 3})
    with pytest.raises(OptionError, match="needs a commit time") as caught:
        world.read(asOfSourceTime="2026-01-01")
    assert "as_of_lsn=0/1A" in caught.value.hint


def test_a_limit_ends_no_batch_of_a_stream_at_tables_that_join(world: RoutedBatch) -> None:
    query = world.query(maxRowsPerTrigger="1")
    query.drain()
    before = len(query.batches)
    world.source = SourcePosition(lsn="0/1A", is_whole=False)
    world.batch(a={3: 3})
    world.batch(b={3: 3})
    world.source = SourcePosition(lsn="0/2B")
    world.batch(a={4: 4})
    world.batch(a={5: 5})
    query.drain()
    assert [folds([batch]) for batch in query.batches[before:]] == [
        {"a": {3: 3, 4: 4}, "b": {3: 3}},
        {"a": {5: 5}},
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"versionAsOf": "1"}, "at which version"),
        ({"timestampAsOf": "0"}, "at which version"),
        ({"endingVersion": "1"}, "at which version"),
        ({"failOnDataLoss": "false"}, "has not the same batch"),
        ({"consistent": "false", "asOfBatch": "1"}, "contradict"),
        ({"inputsPattern": ""}, "below one root"),
        ({"asOfBatch": "-1"}, "whole number"),
        ({"asOfLsn": "1A2B"}, r"a position of PostgreSQL's log"),
        ({"asOfBatch": "1", "asOfLsn": "0/1"}, "'asOfBatch' and 'asOfLsn' contradict"),
        ({"asOfLsn": "0/1", "asOfSourceTime": "0"}, "contradict"),
        ({"consistent": "false", "asOfSourceTime": "0"}, "contradict"),
    ],
    ids=str,
)
def test_what_contradicts_one_batch_is_refused(
    world: RoutedBatch, options: Mapping[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        world.plan(**{"consistent": "true", **options})
    with pytest.raises(OptionError, match="'asOfBatch' has no meaning in a stream"):
        world.stream(asOfBatch=1)


@pytest.mark.parametrize(
    "options", [{"inputs": "a,b"}, {"inputs": "one,b", "input.one.path": "/ROOT/a"}], ids=str
)
def test_named_tables_below_one_root_are_read_at_one_batch(
    world: RoutedBatch, options: dict[str, str]
) -> None:
    names = options["inputs"].split(",")
    texts = {name: text.replace("/ROOT", str(world.root)) for name, text in options.items()}

    def renamed(tables: Any) -> Any:
        return dict(zip(names, (tables[folder] for folder in "ab"), strict=True))

    world.batch(c={1: 1}, a={3: 3})
    world.write("a", {7: 7})
    assert world.read(inputsPattern=None, **texts) == renamed(world.whole[-1])
    assert world.read(inputsPattern=None, asOfBatch=0, **texts) == renamed(world.whole[0])
    with pytest.raises(OptionError, match="follow a database"):
        world.read(inputsPattern=None, asOfLsn="0/1", **texts)
    query = world.query(inputsPattern=None, maxRowsPerTrigger=1, **texts)
    query.drain()
    world.begin({"a": {1: 4}, "b": {1: 4}})
    world.commit_next()
    assert not query.plan()
    query.restart()
    world.commit_next()
    world.commit_next()
    query.drain()
    assert folds(query.batches) == renamed(world.whole[-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "a,typo"}, "no table there has batch 1"),
        ({"input.a.path": "/elsewhere/a"}, "and not below"),
        ({"input.b.startingVersion": "1"}, "alone"),
        ({"input.b.path": "/ROOT/a"}, "each row would come twice"),
        ({"consistent": "false"}, "below one root"),
        ({"versionAsOf": "1"}, "at which version"),
        ({"metadata": "epochs"}, "no meaning"),
        ({"path": ""}, "path"),
    ],
    ids=str,
)
def test_named_tables_that_cannot_be_at_one_batch_are_refused(
    world: RoutedBatch, options: Mapping[str, str], message: str
) -> None:
    texts = {name: text.replace("/ROOT", str(world.root)) for name, text in options.items()}
    with pytest.raises(OptionError, match=message):
        world.read(**{"inputs": "a,b", "asOfBatch": 1, "inputsPattern": None, **texts})


def test_a_version_that_only_compactions_followed_may_be_expired(world: RoutedBatch) -> None:
    idle = world.query()
    idle.drain()
    for folder in "ab":
        world.table(folder).compact(full=True)
        expire(world, folder)
    assert world.read() == present(world.whole[-1])
    query = world.query()
    for value in (5, 6):
        world.batch(**{"ab"[value % 2]: {1: value}})
        for each in (idle, query):
            each.drain()
            each.restart()
            assert folds(each.batches) == world.whole[-1]


def test_a_version_whose_rows_are_gone_names_the_table_and_the_batch(world: RoutedBatch) -> None:
    world.write("a", {7: 7})
    expire(world, "a")
    with pytest.raises(DataLossError, match=r"input 'a': batch 1 has version 2 of the table"):
        world.read()
    with pytest.raises(DataLossError, match=r"input 'a': version 2 is expired"):
        world.query().drain()


@pytest.mark.parametrize("wrote", [False, True], ids=["at-rest", "somebody-wrote"])
def test_a_table_whose_log_was_cut_is_read_unless_its_rows_have_changed(
    world: RoutedBatch, monkeypatch: pytest.MonkeyPatch, wrote: bool
) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", 2)
    query = world.query()
    query.drain()
    table = world.table("a")
    if wrote:
        world.write("a", {1: 2})
    for priority in range(5):  # Versions that change no rows, behind the next checkpoint.
        table.alter(table.schema, {"priority": str(priority)})
    expire(world, "a")
    assert cut(table.store, table.log, now_s=4e9)
    query.restart()
    if wrote:
        with pytest.raises(DataLossError, match="batch 1 has version 2"):
            world.read()
        return
    assert world.read() == present(world.whole[-1])
    other = world.query()
    other.drain()
    world.batch(a={9: 9})
    for each in (query, other):
        each.drain()
        assert folds(each.batches) == world.whole[-1]


def test_a_batch_that_is_expired_or_not_there_is_told(world: RoutedBatch) -> None:
    with pytest.raises(VersionNotFoundError, match=r"batch 2 does not exist: .* is 1"):
        world.read(asOfBatch=2)
    world.group.table.expire(retain_versions=0, safety_ms=0)
    with pytest.raises(VersionNotFoundError, match=r"batch 0 of the tables below .* is expired"):
        world.read(asOfBatch=0)
    assert world.read() == present(world.whole[-1])


def test_a_table_that_was_made_anew_is_not_the_one_of_the_batch(world: RoutedBatch) -> None:
    shutil.rmtree(world.root / "a")
    for value in range(4):
        world.write("a", {1: value})
    with pytest.raises(OtherTableError, match=r"input 'a': batch 1 belongs to version 2"):
        world.read()
    with pytest.raises(OtherTableError, match=r"input 'a': .*newest batch of its group"):
        world.query().drain()


def test_a_restore_is_not_read_before_the_next_batch(world: RoutedBatch) -> None:
    world.table("a").restore(1)
    assert world.read()["a"] == {1: 2, 2: 2}
    world.now["a"] = {1: 1}
    world.batch(a={9: 9})
    assert world.read()["a"] == {1: 1, 9: 9}


def test_numbers_are_those_of_the_query_that_owns_the_root(world: RoutedBatch) -> None:
    world.writer, world.number = "query:two", 0
    world.begin({"b": {1: 99}})
    world.write("b", world.waiting.pop("b"))
    world.record({"b": world.table("b").log.head().version_ref}, take_over=True)
    assert world.read(asOfBatch=0) == {"a": {1: 2, 2: 2}, "b": {1: 99}}
    with pytest.raises(VersionNotFoundError, match="up to 0"):
        world.read(asOfBatch=1)


def test_a_stream_from_the_latest_begins_behind_the_batch_and_tables_join_with_their_first(
    world: RoutedBatch,
) -> None:
    world.write("a", {7: 7})
    query = world.query(startingVersion="latest")
    query.drain()
    world.write("c", {1: 1})
    query.drain()
    assert query.rows == []
    world.batch(a={8: 8}, c={2: 2})
    world.write("c", {3: 3})
    query.drain()
    assert folds(query.batches) == {"a": {7: 7, 8: 8}, "c": {1: 1, 2: 2}}


@pytest.mark.parametrize(
    ("limit", "ends"),
    [
        ({"maxRowsPerTrigger": "3"}, [1, 4, 5, 6]),
        ({"maxRowsPerTrigger": "6"}, [1, 5, 6]),
        ({"maxRowsPerTrigger": "99"}, [1, 6]),
        ({"maxBytesPerTrigger": "1"}, [1, 2, 3, 5, 6]),
        ({"maxEpochsPerTrigger": "1"}, [1, 2, 3, 5, 6]),
        ({"maxBytesPerTrigger": "1", "minRowsPerTrigger": "3"}, [1, 4, 5]),
    ],
    ids=str,
)
@pytest.mark.sweep(3)
def test_a_limit_ends_behind_a_whole_batch(
    world: RoutedBatch, limit: Mapping[str, str], ends: list[int]
) -> None:
    query = world.query(**limit)
    assert query.plan()
    query.deliver()
    reached = [query.stream.report()["complete"]]
    world.batch(a={1: 3})
    world.batch(a={2: 4}, b={1: 4})
    world.batch()
    world.batch(a={1: 5, 2: 5, 3: 5})
    world.batch(b={3: 1})
    query.restart()
    while query.plan():
        query.deliver()
        reached.append(query.stream.report()["complete"])
        assert folds(query.batches) == world.whole[reached[-1]]
        query.restart()
    assert reached == ends


def test_a_table_that_the_group_does_not_know_any_more_is_told(world: RoutedBatch) -> None:
    query = world.query()
    query.drain()
    narrow = world.query(inputsPattern="b")
    narrow.noted, narrow.batches = query.noted, query.batches
    with pytest.raises(DataLossError, match="the query has read 'a'"):
        narrow.plan()


def test_a_look_asks_the_group_table_alone(world: RoutedBatch) -> None:
    query = world.query()
    query.drain()
    shutil.rmtree(world.root / "a")
    world.batch(b={1: 12})
    query.drain()
    assert folds(query.batches)["b"] == {1: 12}
