"""Reads of a table that keeps a grouped view: its result, batch and stream; raw, its entries."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import ALL_HASHES
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError, PlanError, TableExistsError
from spark_upsert.options.read import ReadOptions
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.store.open import open_store
from spark_upsert.streams.inputs.batch import BatchRead
from spark_upsert.streams.reads.columns import read_columns
from spark_upsert.table.table import Table
from spark_upsert.views.group_rows import align_to_groups
from spark_upsert.views.grouping import Grouping, contributions
from spark_upsert.views.materialized import MaterializedView
from tests.support.grouped import Row, expected, pairs_of, position, same_value
from tests.support.seeds import rest_slow
from tests.support.streams import Query, stream_of

ROWS = pa.schema({"g": pa.string(), "x": pa.int64()})
WANTED = (
    Aggregate(name="rows", kind=AggregateKind.COUNT),
    Aggregate(name="total", kind=AggregateKind.SUM, column="x"),
    Aggregate(name="top", kind=AggregateKind.MAX, column="x"),
)
GROUPINGS = {
    "groups": Grouping(ROWS, ("g",), WANTED),
    "one group": Grouping(ROWS, (), WANTED),
    "groups without parts": Grouping(ROWS, ("g",), WANTED[:2]),
}
EPOCHS = 7


def history() -> list[dict[int, Row]]:
    """Return what the rows are after each epoch, nothing first; the last but one is empty."""
    chance = random.Random(7)
    contents: list[dict[int, Row]] = [{}]
    for _ in range(EPOCHS - 2):
        content = dict(contents[-1])
        for _ in range(4):
            key = chance.randrange(20)
            content.pop(key, None)
            if chance.random() < 0.7:
                content[key] = (f"g{chance.randrange(5)}", chance.randrange(9))
        contents.append(content)
    return [*contents, {}, {1: ("g1", 5)}]


CONTENTS = history()


def kept_in(path: Path, grouping: Grouping) -> MaterializedView:
    """Keep the view of the history, compacted on its way."""
    kept = MaterializedView.create(Table(open_store(str(path), None)), grouping, '{"v":1}')
    for epoch, (old, new) in enumerate(pairwise(CONTENTS)):
        step = contributions(grouping, pairs_of(old, new, ROWS))
        assert kept.apply(step, lower=position(epoch - 1), upper=position(epoch))
    return kept


def delivered(query: Query) -> list[dict[str, Any]]:
    return [row for batch in query.batches for row in batch]


def read(path: Path, **given: str) -> list[dict[str, Any]]:
    options = ReadOptions.parse({"path": str(path), **given})
    options.require_batch()
    table = Table(open_store(str(path), None))
    batch = BatchRead(options, read_columns(table.log, options))
    splits = pickle.loads(pickle.dumps(batch.splits()))
    return [row for split in splits for b in batch.read(split) for row in b.to_pylist()]


def by_group(grouping: Grouping, rows: Iterable[dict[str, Any]]) -> dict[Row, Row]:
    names = [each.name for each in grouping.aggregates]
    found: dict[Row, Row] = {}
    for row in rows:
        group = tuple(row[key] for key in grouping.keys)
        assert group not in found
        found[group] = tuple(same_value(row[name]) for name in names)
    return found


def folded(grouping: Grouping, rows: Iterable[dict[str, Any]], upper: int) -> dict[Row, Row]:
    """Fold changes up to a version, each retraction of the row that is there."""
    found: dict[Row, Row] = {}
    names = [each.name for each in grouping.aggregates]
    for row in sorted(rows, key=lambda row: (row["_commit_version"], row["_diff"])):
        group, value = tuple(row[k] for k in grouping.keys), tuple(row[n] for n in names)
        if row["_commit_version"] > upper:
            break
        if row["_diff"] < 0:
            assert found.pop(group, "no row") == value
        else:
            assert group not in found
            found[group] = value
    return found


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.parametrize("splits", rest_slow(["5", "1"]))
@pytest.mark.sweep(2)
def test_a_batch_read_shows_the_groups_of_each_version(
    name: str, splits: str, tmp_path: Path
) -> None:
    grouping = GROUPINGS[name]
    kept = kept_in(tmp_path, grouping)
    for compact in (False, True):
        if compact:
            kept.table.compact(full=True)
        for epoch, content in enumerate(CONTENTS):
            found = read(tmp_path, versionAsOf=str(epoch), splits=splits)
            assert by_group(grouping, found) == expected(grouping, content.values())
        feed = read(tmp_path, readChangeFeed="true", splits=splits)
        for epoch, content in enumerate(CONTENTS):
            assert folded(grouping, feed, epoch) == expected(grouping, content.values())


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.sweep(1)
def test_a_stream_shows_how_groups_change_over_any_batches(name: str, tmp_path: Path) -> None:
    grouping = GROUPINGS[name]
    kept = kept_in(tmp_path, grouping)
    given: dict[str, Any] = {"splits": 3, "maxEpochsPerTrigger": 2, "startingVersion": 0}
    query = Query(lambda: stream_of(Table(kept.table.store), **given))
    while query.plan():
        query.deliver()
        query.restart()
    assert len(query.batches) == -(-EPOCHS // 2)
    for epoch, content in enumerate(CONTENTS):
        assert folded(grouping, delivered(query), epoch) == expected(grouping, content.values())


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.sweep(2)
def test_a_stream_begins_with_the_groups_as_inserts(name: str, tmp_path: Path) -> None:
    grouping = GROUPINGS[name]
    kept = kept_in(tmp_path, grouping)
    version = kept.table.log.head().version
    query = Query(lambda: stream_of(Table(kept.table.store), splits=4, maxRowsPerTrigger=1))
    while query.plan():
        query.deliver()
    assert {row["_change_type"] for row in delivered(query)} == {"insert"}
    assert folded(grouping, delivered(query), version) == expected(grouping, CONTENTS[-1].values())


def test_net_changes_go_from_the_first_to_the_last(tmp_path: Path) -> None:
    grouping = GROUPINGS["groups"]
    kept_in(tmp_path, grouping)
    feed = read(tmp_path, readChangeFeed="true", deduplicationMode="netChanges")
    assert {(row["_commit_version"], row["_change_type"]) for row in feed} == {(EPOCHS, "insert")}
    assert folded(grouping, feed, EPOCHS) == expected(grouping, CONTENTS[-1].values())


def test_a_restored_table_shows_the_changes_back(tmp_path: Path) -> None:
    grouping = GROUPINGS["groups"]
    kept = kept_in(tmp_path, grouping)
    kept.table.restore(3)
    feed = read(tmp_path, readChangeFeed="true")
    assert folded(grouping, feed, EPOCHS + 1) == expected(grouping, CONTENTS[3].values())


def test_columns_are_chosen_among_those_of_the_groups(tmp_path: Path) -> None:
    kept_in(tmp_path, GROUPINGS["groups"])
    assert read(tmp_path, columns="TOP,g") == [{"top": 5, "g": "g1"}]
    [change] = read(tmp_path, columns="total", readChangeFeed="true", startingVersion=str(EPOCHS))
    assert (change["total"], change["_change_type"]) == (5, "insert")


def test_raw_shows_the_entries_and_their_changes_without_net_changes(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, GROUPINGS["groups"])
    entries = read(tmp_path, raw="true")
    assert {(row["g"], row["_part"]) for row in entries} == {("g1", 0), ("g1", 1), (None, -1)}
    assert list(entries[0]) == kept.table.schema.columns.names
    assert read(tmp_path, raw="true", readChangeFeed="true", deduplicationMode="none")
    with pytest.raises(OptionError, match="deduplicationMode"):
        read(tmp_path, readChangeFeed="true", deduplicationMode="none")


def test_a_table_keeps_one_view(tmp_path: Path) -> None:
    grouping = GROUPINGS["groups"]
    kept = kept_in(tmp_path / "kept", grouping)
    assert MaterializedView.create(kept.table, grouping, '{"v":1}').position() == position(
        EPOCHS - 1
    )
    assert MaterializedView.open(kept.table).grouping.stored_schema == grouping.stored_schema
    with pytest.raises(PlanError, match="keeps another view"):
        MaterializedView.create(kept.table, grouping, '{"v":1,"other":1}')
    with pytest.raises(TableExistsError):
        MaterializedView.create(kept.table, GROUPINGS["groups without parts"], '{"v":1}')
    plain = Table(open_store(str(tmp_path / "plain"), None))
    plain.ensure(TableSchema.of(ROWS, keys=["g"]))
    with pytest.raises(PlanError, match="keeps no view"):
        MaterializedView.open(plain)


@pytest.mark.parametrize("text", ["{}", "x", '{"v":9}', '{"v":1,"rows":[],"keys":["a"]}'])
def test_a_text_that_is_no_grouping_is_refused(text: str) -> None:
    with pytest.raises(PlanError):
        Grouping.from_json(text)


@pytest.mark.parametrize("count", [1, 3, 1000])
@pytest.mark.parametrize("name", ["groups", "one group"])
def test_pieces_of_whole_groups_hold_each_hash_once(name: str, count: int) -> None:
    whole = [align_to_groups(GROUPINGS[name], piece) for piece in ALL_HASHES.cut(count)]
    found = [piece for piece in whole if not piece.is_empty]
    assert sum(piece.width for piece in found) == ALL_HASHES.width
    assert [piece.first for piece in found[1:]] == [piece.end for piece in found[:-1]]
    assert all(piece.first % (1 << 32) == piece.end % (1 << 32) == 0 for piece in found)
