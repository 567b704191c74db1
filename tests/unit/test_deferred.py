"""Reads that are put off: the writer's task reads, and what is kept is the same."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

from pyspark_upsertflow.limited_stream_reader import LimitedStreamReader
from pyspark_upsertflow.readers import batch_reader, read_schema
from spark_upsert.errors import DataError, NewerFormatError, OptionError, SchemaError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.options.views import ViewOptions, deferred_read_text
from spark_upsert.options.write import WriteOptions
from spark_upsert.plan.nodes import JoinType
from spark_upsert.store.open import open_store
from spark_upsert.streams.planner.formats import plan_columns
from spark_upsert.streams.reads.read_split import splits_of
from spark_upsert.streams.reads.views import ViewSplit, split_from_json, split_to_json
from spark_upsert.table.table import Table
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.view import Choice, View
from spark_upsert_sink import UpsertBatchWriter, UpsertStreamWriter
from spark_upsert_sink.worker import SPLIT, defer_reads, read_deferred_rows
from tests.support.grouped import Row
from tests.support.grouped import shown as shown_of
from tests.unit.test_keeping import KeptShop

DEFERRED = {"deferred": "true"}


class Keeping:
    """A query that keeps a view, driven as Spark drives it: no row leaves the writer's tasks."""

    def __init__(self, shop: KeptShop, path: Path, **options: str) -> None:
        assert shop.grouping is not None
        self.table = Table(open_store(str(path)))
        self.kept = MaterializedView.create(self.table, shop.grouping, shop.view.to_json())
        given = {"plan": shop.view.to_json(), **options}
        self.schema = read_schema({**given, **DEFERRED})
        self.reader = LimitedStreamReader({**given, **DEFERRED}, self.schema)
        self.writes = {
            "path": str(path),
            "checkpointLocation": "c",
            "deferred": deferred_read_text(given),
        }
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
@pytest.mark.sweep(1)
def test_what_is_kept_by_deferred_reads_is_the_view(tmp_path: Path, fails_once: bool) -> None:
    shop, chance = KeptShop(tmp_path), random.Random(7)
    shop.disturb(chance)
    query = Keeping(shop, tmp_path / "kept", splits="3")
    for _ in range(4):
        shop.disturb(chance)
        query.run(fails_once=fails_once)
        assert query.shown() == shop.expected()


def test_spark_sees_a_row_for_each_split_and_nothing_of_the_rows(
    shop: KeptShop, tmp_path: Path
) -> None:
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
    query.table.upsert(contents)
    query.offset = before.offset
    query.run()
    assert query.shown() == shop.expected() == {("ada",): (2, 12, 7)}


def test_a_deferred_read_is_of_streams_of_a_view_and_of_a_sink_that_knows(tmp_path: Path) -> None:
    shop = KeptShop(tmp_path)
    plan, path = {"plan": shop.plan(JoinType.LEFT).to_json()}, {"path": str(tmp_path / "orders")}
    schema = read_schema({**plan, **DEFERRED})
    with pytest.raises(OptionError, match="'deferred' has no meaning in a batch read"):
        batch_reader({**plan, **DEFERRED}, schema)
    with pytest.raises(OptionError, match="'deferred' has no meaning without 'plan'"):
        read_schema({**path, **DEFERRED})
    columns, given = (
        StructType().add("id", LongType()),
        {**path, "deferred": deferred_read_text(plan)},
    )
    with pytest.raises(OptionError, match="option 'deferred' is of streams"):
        UpsertBatchWriter(given, columns, False)
    with pytest.raises(OptionError, match="option 'deferred' is of one table"):
        RoutedOptions.parse({**given, "path": "/lake/{id}"})
    with pytest.raises(SchemaError, match=f"expected the column '{SPLIT}', found id"):
        UpsertStreamWriter(given, columns, False)
    assert shop.orders.log.head().version == 0
    changes = read_schema({**plan, "readChangeFeed": "true"})
    deferred = read_schema({**plan, "readChangeFeed": "true", **DEFERRED})
    assert not changes["_diff"].nullable
    assert all(field.nullable for field in deferred)
    assert deferred.names == [*changes.names, SPLIT]


@pytest.mark.parametrize(
    "text", ["true", "7", "{}", '{"plan": 7}', "[" * 100_000], ids=lambda text: text[:9]
)
def test_a_sink_is_told_which_view_it_reads_and_no_secret(text: str) -> None:
    with pytest.raises(OptionError, match="expects the options of a read of a view, as a JSON"):
        WriteOptions.parse({"path": "/t", "deferred": text})
    deferred = json.loads(deferred_read_text({"plan": "{}", "Storage.Secret_Key": "s3cr3t"}))
    assert deferred == {"plan": "{}"}


class _Runs:
    """What a pickle of somebody else's would do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("bytes of a row were run",)


def _splits(shop: KeptShop, **options: str) -> list[ViewSplit]:
    """Return splits of every kind: the rows that there are, and what changed them."""
    query = shop.query(**options)
    assert shop.take(query)
    shop.order((1, 2, 3), (2, 1, 1))
    shop.customer((2, "cleo"))
    assert shop.take(query)
    works = [work for start, end in query.batches for work in query.stream.splits(start, end)]
    return [split for work in works for split in splits_of(work)]


@pytest.fixture
def shop(tmp_path: Path) -> KeptShop:
    shop = KeptShop(tmp_path)
    shop.customer((1, "ada"))
    shop.order(*((key, 1, key) for key in range(50)))
    return shop


@pytest.mark.parametrize("options", [{}, {"splits": "3"}], ids=str)
def test_a_split_is_what_its_plain_form_says(shop: KeptShop, options: dict[str, str]) -> None:
    splits = _splits(shop, **options)
    assert {bool(split.marker_entry) for split in splits} >= {True}
    assert {bool(timed.step.before) for each in splits for timed in each.steps} == {False, True}
    for split in splits:
        bare = tuple(each._replace(choice=Choice(each.choice.strategy)) for each in split.steps)
        told = replace(split, steps=bare, queries=frozenset({"query:7f"}))
        assert split_from_json(split_to_json(told, shop.view), shop.view) == told


def _altered(data: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(data), **fields}).encode()


def _step(before: Any, after: Any, way: str = "look-ups") -> Callable[[bytes], bytes]:
    return lambda data: _altered(data, steps=[[before, after, 1, 1, way]])


FOREIGN: dict[str, Callable[[bytes], bytes | None]] = {
    "nothing": lambda _: None,
    "no byte": lambda _: b"",
    "a pickle, as a release before wrote": lambda _: pickle.dumps(_Runs()),
    "words": lambda _: b"hello",
    "another object": lambda _: b'{"id": 1}',
    "deeper than anyone writes": lambda _: b"[" * 100_000,
    "a text that ends": lambda data: data[:-1],
    "a version that is none": lambda data: _altered(data, version="1"),
    "a field of nobody": lambda data: _altered(data, more=1),
    "another plan": lambda data: _altered(data, plan="0" * 32),
    "another table": lambda data: _altered(data, tables=["/etc", "/passwd"]),
    "fewer tables": lambda data: _altered(data, tables=[]),
    "a step of one version": _step([1], [1]),
    "a step in no way": _step([1, 1], [1, 2], "at random"),
    "versions by a text": _step("ab", "cd"),
    "a version below none": _step([-1, 1], [1, 2]),
    "hashes that end before they begin": lambda data: _altered(data, hashes=["f", "0"]),
    "hashes beyond all": lambda data: _altered(data, hashes=["0", "f" * 17]),
    "a number that is none": lambda data: _altered(data, rows=float("nan")),
    "a huge number": lambda data: _altered(data, bytes=1 << 4000),
    "a marker of one": lambda data: _altered(data, marker=["a"]),
    "a query that is no text": lambda data: _altered(data, queries=[1]),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.sweep(6)
def test_bytes_of_somebody_else_are_refused(
    shop: KeptShop, foreign: Callable[[bytes], bytes | None]
) -> None:
    data = foreign(split_to_json(_splits(shop)[0], shop.view))
    with pytest.raises(DataError, match="a row holds no split of the view") as refused:
        split_from_json(data, shop.view)
    assert "Hint: drop 'deferred'" in str(refused.value)


def test_altered_bytes_are_refused_or_are_a_split_of_the_view(shop: KeptShop) -> None:
    data, chance = split_to_json(_splits(shop)[-1], shop.view), random.Random(11)
    with pytest.raises(NewerFormatError, match="split in a row of a deferred read has format 2"):
        split_from_json(_altered(data, version=2), shop.view)
    paths, refused = set(View(shop.view).paths), 0
    for _ in range(1000):
        altered = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(altered))
            altered[at : at + chance.randrange(2)] = chance.randbytes(chance.randrange(1, 3))
        try:
            split = split_from_json(bytes(altered), shop.view)
        except (DataError, NewerFormatError):
            refused += 1
        else:
            assert {path for timed in split.steps for path in timed.step.after} <= paths
    assert refused > 500


def test_a_sink_that_is_told_of_a_view_writes_rows_of_nobody_else(tmp_path: Path) -> None:
    shop = KeptShop(tmp_path)
    query = Keeping(shop, tmp_path / "kept")
    writer = UpsertStreamWriter(query.writes, query.schema, False)
    columns = to_arrow_schema(query.schema, timezone="UTC")
    for row, message in (
        ({SPLIT: pickle.dumps(_Runs())}, "a row holds no split of the view"),
        ({"name": "eve"}, "holds values in the column 'name'"),
    ):
        rows = pa.RecordBatch.from_pylist([row], schema=columns)
        with pytest.raises(DataError, match=message):
            writer.write(iter([rows]))


def test_a_kept_view_is_not_read_by_the_query_that_writes_its_table(shop: KeptShop) -> None:
    split = replace(_splits(shop)[0], queries=frozenset({"query:7f"}))
    given = ViewOptions.from_deferred_text(deferred_read_text({"plan": shop.view.to_json()}), {})
    columns = plan_columns(ReadPlan.parse({"plan": shop.view.to_json()}))
    schema = pa.schema([*columns, (SPLIT, pa.binary())])
    rows = defer_reads([split], given.plan, schema)
    assert list(read_deferred_rows(iter([rows]), given, columns, "another"))
    with pytest.raises(OptionError, match="the query reads what it writes"):
        list(read_deferred_rows(iter([rows]), given, columns, "7f"))
