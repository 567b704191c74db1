"""Reads that are put off: the writer's task reads, and what is kept is the same."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

from pyspark_upsertflow.readers import batch_reader, read_schema
from pyspark_upsertflow.stream import ChangeStreamReader
from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.store import open_store
from spark_upsert.table import Table
from spark_upsert.views.groups.kept import Kept
from spark_upsert_sink import UpsertBatchWriter, UpsertStreamWriter
from spark_upsert_sink.deferred import SPLIT
from tests.support.grouped import Row
from tests.support.grouped import shown as shown_of
from tests.unit.test_keeping import KeptShop

DEFERRED = {"deferred": "true"}


class Keeping:
    """A query that keeps a view, driven as Spark drives it: no row leaves the writer's tasks."""

    def __init__(self, shop: KeptShop, path: Path, **options: str) -> None:
        assert shop.grouping is not None
        self.table = Table(open_store(str(path)))
        self.kept = Kept.made(self.table, shop.grouping, shop.view.to_json())
        given = {"plan": shop.view.to_json(), **DEFERRED, **options}
        self.schema = read_schema(given)
        self.reader = ChangeStreamReader(given, self.schema)
        self.writes = {"path": str(path), "checkpointLocation": "c", **DEFERRED}
        self.offset = self.reader.initialOffset()
        self.batch_id = 0
        self.rows: list[list[dict[str, Any]]] = []
        """What Spark sees of each batch, task by task."""

    def run(self, *, fails_once: bool = False) -> None:
        """Run a micro-batch; each task may have failed behind its work, and is run again."""
        end = self.reader.latestOffset(self.offset, ReadAllAvailable())
        sent = pickle.dumps((self.reader, UpsertStreamWriter(self.writes, self.schema, False)))
        messages = []
        self.rows.append([])
        for partition in self.reader.partitions(self.offset, end):
            for _ in range(1 + fails_once):
                reader, writer = pickle.loads(sent)
                batches = list(reader.read(pickle.loads(pickle.dumps(partition))))
                message = writer.write(iter(batches))
            self.rows[-1] += [row for batch in batches for row in batch.to_pylist()]
            messages.append(message)
        for _ in range(1 + fails_once):
            writer = UpsertStreamWriter(self.writes, self.schema, False)
            writer.commit(messages, self.batch_id)
        self.reader.commit(end)
        self.offset = end
        self.batch_id += 1

    def shown(self) -> dict[Row, Row]:
        return shown_of(self.kept.grouping, self.kept.rows())


@pytest.mark.parametrize("fails_once", [False, True], ids=["once", "every task twice"])
def test_what_is_kept_by_deferred_reads_is_the_view(tmp_path: Path, fails_once: bool) -> None:
    shop, chance = KeptShop(tmp_path), random.Random(7)
    shop.disturb(chance)
    query = Keeping(shop, tmp_path / "kept", splits="3")
    for _ in range(4):
        shop.disturb(chance)
        query.run(fails_once=fails_once)
        assert query.shown() == shop.expected()


def test_spark_sees_a_row_for_each_split_and_nothing_of_the_rows(tmp_path: Path) -> None:
    shop = KeptShop(tmp_path)
    shop.customer((1, "ada"))
    shop.order(*((key, 1, key) for key in range(50)))
    query = Keeping(shop, tmp_path / "kept", splits="3")
    query.run()
    [seen] = query.rows
    assert len(seen) == 3
    assert {name for row in seen for name, value in row.items() if value is not None} == {SPLIT}
    assert query.shown() == {("ada",): (50, 49 * 25, 49)}


def test_an_offset_that_was_begun_with_rows_is_gone_on_with(tmp_path: Path) -> None:
    shop = KeptShop(tmp_path)
    shop.customer((1, "ada"))
    shop.order((1, 1, 5))
    before = shop.query()
    assert shop.take(before) == [True]
    shop.order((2, 1, 7))
    query = Keeping(shop, tmp_path / "kept")
    contents = shop.kept.table.snapshot().select(query.kept.table.schema.columns.names)
    query.table.append(contents)
    query.offset = before.offset
    query.run()
    assert query.shown() == shop.expected() == {("ada",): (2, 12, 7)}


def test_a_deferred_read_is_of_streams_and_of_a_sink_that_knows(tmp_path: Path) -> None:
    shop = KeptShop(tmp_path)
    given = {"path": str(tmp_path / "orders"), **DEFERRED}
    with pytest.raises(OptionError, match="'deferred' has no meaning in a batch read"):
        batch_reader(given, read_schema(given))
    columns = StructType().add("id", LongType())
    with pytest.raises(OptionError, match="option 'deferred' is of streams"):
        UpsertBatchWriter(given, columns, False)
    with pytest.raises(SchemaError, match=f"expected the column '{SPLIT}', found id"):
        UpsertStreamWriter(given, columns, False)
    assert shop.orders.log.head().version == 0


def test_columns_of_a_deferred_read_may_all_be_null(tmp_path: Path) -> None:
    KeptShop(tmp_path)
    given = {"path": str(tmp_path / "orders"), "readChangeFeed": "true"}
    assert not read_schema(given)["_diff"].nullable
    schema = read_schema({**given, **DEFERRED})
    assert all(field.nullable for field in schema)
    assert schema.names == [*read_schema(given).names, SPLIT]
