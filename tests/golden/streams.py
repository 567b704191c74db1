"""Offsets of every kind of read and of views: each batch again, and the next ones."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadLimit

from pyspark_upsertflow.readers import read_schema
from pyspark_upsertflow.source import LimitedStreamReader
from spark_upsert.plan import agg
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.nodes import Node
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.golden.case import Case, Seen, sorted_rows
from tests.support.notebooks import few_are_many

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"id": pa.int64(), "name": pa.string()})
TABLES = {"east": ORDERS, "west": ORDERS, "below/a": ORDERS, "below/b": ORDERS, "below/c": ORDERS}

FEED = {"readChangeFeed": "true"}
BOTH = {"inputs": "east,west", "input.east.path": "east", "input.west.path": "west", **FEED}


def plans() -> dict[str, Node]:
    """Return the plans of views, by their names; their tables lie in the working folder."""
    made = {name: plan.to_json() for name, plan in _views().items()}
    here = f"{Path.cwd()}/"
    return {name: plan_from_json(text.replace(here, "")) for name, text in made.items()}


def _views() -> dict[str, Plan]:
    east = Plan.of_table("east")
    customers = Plan.of_table("customers")
    return {
        "rows": east.filter("amount > 10").select("id", double="amount * 2"),
        "joined": east.join(customers, {"customer": "id"}, how="left"),
        "full": east.join(customers, {"id": "id"}, how="full"),
        "pinned": east.join(
            customers.at_version(1), {"customer": "id"}, how="semi", mixed_bases=True
        ),
        "grouped": east.group_by("customer").agg(
            n=agg.count(), total=agg.sum("amount"), least=agg.min("amount")
        ),
    }


def reads() -> dict[str, dict[str, str]]:
    """Return the options of reads, by their names."""
    views = {f"view {name}": {"plan": plan.to_json(), **FEED} for name, plan in plans().items()}
    return {
        "table": {"path": "east", **FEED},
        "table in pieces": {"path": "east", "maxRowsPerTrigger": "2", **FEED},
        "table from a version": {"path": "east", "startingVersion": "1", **FEED},
        "new values": {"path": "west", "columns": "id,amount", "consumerId": "golden"},
        "live": {**BOTH, "maxRowsPerTrigger": "3", "input.west.priority": "5"},
        "concat": {**BOTH, "merge": "concat", "maxRowsPerTrigger": "3"},
        "round robin": {**BOTH, "merge": "roundrobin", "maxRowsPerTrigger": "3"},
        "seeded": {**BOTH, "interleaveSeed": "7", "maxRowsPerTrigger": "3"},
        "below": {"path": "below", "inputsPattern": "*", **FEED},
        **views,
    }


class Read:
    """A streaming query, as Spark drives it."""

    def __init__(self, options: Mapping[str, str], noted: list[str]) -> None:
        self._reader = LimitedStreamReader(options, read_schema(options))
        self.noted = noted or [_text(self._reader.initialOffset())]
        """The texts of the offsets: the first, then the end of each batch."""

    def run(self, batches: int) -> list[list[str]]:
        """Return the rows of the next batches, so many at the most."""
        found = []
        for _ in range(batches):
            end = _text(self._reader.latestOffset(json.loads(self.noted[-1]), _limit(self._reader)))
            if end == self.noted[-1]:
                break
            found.append(self.rows(self.noted[-1], end))
            self._reader.commit(json.loads(end))
            self.noted.append(end)
        return found

    def rows(self, start: str, end: str) -> list[str]:
        """Return the rows between two offsets, read as tasks do."""
        reader = pickle.loads(pickle.dumps(self._reader))
        partitions = self._reader.partitions(json.loads(start), json.loads(end))
        return sorted_rows(batch for each in partitions for batch in reader.read(each))

    def stop(self) -> None:
        """End its threads."""
        self._reader.stop()


def _limit(reader: LimitedStreamReader) -> ReadLimit:
    return reader.getDefaultReadLimit()


def _text(offset: Mapping[str, Any]) -> str:
    return json.dumps(offset, separators=(",", ":"))


def append(number: int) -> None:
    """Append to each table."""
    for place, name in enumerate(TABLES):
        rows = [
            {"id": 10 * number + place, "customer": 1 + number % 2, "amount": 7 * number + place},
            {"id": 1, "customer": 1 + number % 3, "amount": 11 + number},
        ]
        Table.open(name).upsert(pa.Table.from_pylist(rows, schema=ORDERS))
    names = [{"id": 1 + number % 3, "name": f"name {number}"}]
    Table.open("customers").upsert(pa.Table.from_pylist(names, schema=CUSTOMERS))


def build() -> Seen:
    """Write tables, and run a query over each read."""
    for name, schema in TABLES.items():
        Table.create(name, schema, keys=["id"], properties={"indexBy": "customer"})
    Table.create("customers", CUSTOMERS, keys=["id"])
    for number in range(3):
        append(number)
    options = reads()
    kept: Seen = {"options": options, "offsets": {}, "expected_rows": {}}
    with few_are_many():  # Positions of three inputs lie in bases beside the offsets.
        for name, given in options.items():
            query = Read(given, [])
            kept["expected_rows"][name] = query.run(3)
            kept["offsets"][name] = query.noted
            query.stop()
    return kept


def see(kept: Seen) -> Seen:
    """Return the rows of the batches between the offsets, and what the plans are."""
    found: Seen = {}
    with few_are_many():
        for name, noted in kept["offsets"].items():
            query = Read(kept["options"][name], noted)
            pairs = pairwise(noted)
            found[name] = [query.rows(start, end) for start, end in pairs]
            assert found[name] == kept["expected_rows"][name], name
            query.stop()
    texts = {name: [plan.to_json(), plan.fingerprint()] for name, plan in plans().items()}
    return {"reads": found, "plans": texts}


def go_on(kept: Seen) -> Seen:
    """Append, and run on from the last offset of each read until nothing is left."""
    append(5)
    found: Seen = {}
    with few_are_many():
        for name, noted in kept["offsets"].items():
            query = Read(kept["options"][name], [noted[-1]])
            rows, offsets = query.run(9), query.noted
            if name == "live":  # The time decides how its rows are cut.
                rows = [sorted(row for batch in rows for row in batch)]
                offsets = [json.dumps(json.loads(offsets[-1])["positions"])]
            found[name] = {"rows": rows, "offsets": offsets}
            query.stop()
    return {"reads": found}


CASE = Case("streams", build, see, go_on)
