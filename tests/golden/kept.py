"""Tables that keep grouped views, and the records by which tasks are told what to read of them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_upsertflow.limited_stream_reader import LimitedStreamReader
from pyspark_upsertflow.readers import read_schema
from spark_upsert.options.views import ViewOptions, deferred_read_text
from spark_upsert.plan import agg
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.nodes import Node
from spark_upsert.store.open import open_store
from spark_upsert.streams.inputs.view import ViewInput
from spark_upsert.streams.reads.views import split_from_json, split_to_json
from spark_upsert.table.log.codec import manifest_to_json
from spark_upsert.table.table import Table
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import Plan, refresh
from spark_upsert.views.view import View
from spark_upsert_sink import UpsertStreamWriter
from spark_upsert_sink.worker import SPLIT
from tests.golden.case import Case, Seen, log_text, sorted_rows

ORDERS = pa.schema(
    {"id": pa.int64(), "customer": pa.int64(), "amount": pa.int64(), "rate": pa.float64()}
)
CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string()})
REFRESHED = ("by customer", "by name", "pinned")
"""Views whose tables are refreshed; that of `DEFERRED` is kept by a query."""
DEFERRED = "by name"
PUT_OFF = "put off"
"""The table that a query with deferred reads keeps."""


def plans() -> dict[str, Node]:
    """Return the plans of views, by their names; their tables lie in the working folder."""
    orders, customers = Plan.of_table("orders"), Plan.of_table("customers")
    joined = orders.join(customers, {"customer": "id"}, how="left")
    pinned = orders.join(customers.at_version(1), {"customer": "id"}, how="left", mixed_bases=True)
    views = {
        "by customer": orders.group_by("customer").agg(
            n=agg.count(),
            rated=agg.count("rate"),
            total=agg.sum("amount"),
            mean=agg.avg("amount"),
            rates=agg.sum("rate", scale=2),
            least=agg.min("amount"),
            most=agg.max("rate"),
        ),
        "by name": joined.group_by("name").agg(n=agg.count(), most=agg.max("amount")),
        "pinned": pinned.group_by("name").agg(total=agg.sum("amount")),
    }
    here = f"{Path.cwd()}/"
    return {name: plan_from_json(plan.to_json().replace(here, "")) for name, plan in views.items()}


class Keeping:
    """A query that keeps a view by deferred reads, as Spark drives it."""

    def __init__(self, plan: str, offset: dict[str, Any] | None, number: int) -> None:
        given = {"plan": plan, "splits": "2"}
        deferred = {**given, "deferred": "true"}
        self._schema = read_schema(deferred)
        self._reader = LimitedStreamReader(deferred, self._schema)
        self._writes = {
            "path": PUT_OFF,
            "checkpointLocation": "checkpoint",
            "deferred": deferred_read_text(given),
        }
        self.offset: dict[str, Any] = self._reader.initialOffset() if offset is None else offset
        self.number = number

    def run(self) -> list[str]:
        """Run a micro-batch, and return the records that stand for its rows."""
        end = self._reader.latestOffset(self.offset, ReadAllAvailable())
        writer = UpsertStreamWriter(self._writes, self._schema, False)
        records: list[str] = []
        messages: list[WriterCommitMessage | None] = []
        for partition in self._reader.partitions(self.offset, end):
            batches = list(pickle.loads(pickle.dumps(self._reader)).read(partition))
            records += [row[SPLIT].decode() for batch in batches for row in batch.to_pylist()]
            messages.append(writer.write(iter(batches)))
        writer.commit(messages, self.number)
        self._reader.commit(end)
        self._reader.stop()
        self.offset, self.number = end, self.number + 1
        return records


def append(number: int) -> None:
    """Append to the tables of the views."""
    orders = [
        {"id": number, "customer": 1 + number % 2, "amount": 7 * number, "rate": number / 4},
        {"id": 0, "customer": number % 3, "amount": None if number == 1 else number, "rate": None},
    ]
    Table.open("orders").upsert(pa.Table.from_pylist(orders, schema=ORDERS))
    names = [{"id": number % 3, "name": f"name {number % 2}"}]
    Table.open("customers").upsert(pa.Table.from_pylist(names, schema=CUSTOMERS))


def refresh_all() -> list[bool]:
    """Refresh all tables, and return which had something to do."""
    return [
        refresh(View(plan, {}), Table(open_store(_path(name))))
        for name, plan in plans().items()
        if name in REFRESHED
    ]


def _path(name: str) -> str:
    return f"kept {name}"


def build() -> Seen:
    """Write the tables, and what keeps views of them, in three steps."""
    Table.create("orders", ORDERS, keys=["id"], properties={"indexBy": "customer"})
    Table.create("customers", CUSTOMERS, keys=["id"])
    plan = plans()[DEFERRED]
    records: list[list[str]] = []
    offset: dict[str, Any] | None = None
    for number in range(3):
        append(number)
        if number == 0:
            view = View(plan, {})
            assert view.grouping is not None
            MaterializedView.create(Table(open_store(PUT_OFF)), view.grouping, plan.to_json())
        refresh_all()
        query = Keeping(plan.to_json(), offset, number)
        records.append(query.run())
        offset = query.offset
    Table.open(_path("by customer")).compact(full=True)
    return {"records": records, "offset": offset}


def see(kept: Seen) -> Seen:
    """Return what each table keeps and shows, and what the records stand for."""
    plan = plans()[DEFERRED]
    records = [text for batch in kept["records"] for text in batch]
    splits = [split_from_json(text.encode(), plan) for text in records]
    assert [split_to_json(split, plan).decode() for split in splits] == records
    reader = ViewInput(ViewOptions.parse({"plan": plan.to_json(), "splits": "2"}))
    return {
        "tables": _tables(),
        "records": [sorted_rows(reader.read(split)) for split in splits],
    }


def go_on(kept: Seen) -> Seen:
    """Append, and let each table take one more step; return the texts of its log as well."""
    last = {name: _logs(name) for name in _paths()}
    assert refresh_all() == [False] * len(REFRESHED), "they have all that there is"
    append(5)
    assert refresh_all() == [True] * len(REFRESHED)
    query = Keeping(plans()[DEFERRED].to_json(), kept["offset"], len(kept["records"]))
    records = query.run()
    texts = {
        name: {path.stem: log_text(path) for path in _logs(name) if path not in last[name]}
        for name in _paths()
    }
    return {
        "tables": _tables(),
        "records": records,
        "offset": json.dumps(query.offset),
        "log": texts,
    }


def _paths() -> list[str]:
    return [*map(_path, REFRESHED), PUT_OFF]


def _logs(path: str) -> list[Path]:
    return sorted(Path(path, "_log").glob("?" * 20 + ".json"))


def _tables() -> Seen:
    found: Seen = {}
    for path in _paths():
        table = Table.open(path)
        kept = MaterializedView.open(table)
        head = table.log.head()
        versions = range(max(1, head.since), head.version + 1)
        found[path] = {
            "manifest": manifest_to_json(head),
            "position": kept.position(),
            "kept": {str(v): sorted_rows([table.snapshot(v)]) for v in versions},
            "shown": {str(v): sorted_rows([kept.rows(v)]) for v in versions},
            "problems": [str(each) for each in table.check().findings],
        }
    return found


CASE = Case("kept", build, see, go_on)
