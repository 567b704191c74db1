"""Hints of row TTL: a column without a time, a table without deletes, and faster writers."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.core.schema import TableSchema
from spark_upsert.table.table import Table
from tests.hints.hint import Told, follows
from tests.support.clocked import ClockedStore, Now
from tests.support.stores import FaultyStore, Steps

TIME = pa.timestamp("us", "UTC")
TTL = {"rowTtl": "1 day", "rowTtlBy": "at"}
OLD = datetime(2020, 1, 1, tzinfo=UTC)


def _expires(told: Told, name: str, column: str = "at", **types: pa.DataType) -> None:
    columns = pa.schema({"id": pa.int64(), **types})
    ttl = TTL | {"rowTtlBy": column}
    table = Table.create(str(told.folder / name), columns, keys=["id"], properties=ttl)
    nulls = {each: pa.nulls(1, type_) for each, type_ in types.items()}
    table.upsert(pa.table({"id": [1], **nulls, column: pa.array([OLD], TIME)}, schema=columns))
    table.expire_rows()
    assert not table.snapshot().num_rows


@follows("table.row_ttl:_time_column")
def _(told: Told) -> None:
    columns = pa.schema({"id": pa.int64(), "at": pa.int64()})
    with told:
        Table.create(str(told.folder / "t"), columns, keys=["id"], properties=TTL)
    told("name a column that says since when a row counts")
    told("or add one")
    _expires(told, "named", "seen", at=pa.int64(), seen=TIME)
    told("'_commit_timestamp', the time of the commit that wrote a row last")
    by = TTL | {"rowTtlBy": "_commit_timestamp"}
    Table.create(str(told.folder / "by_commit"), columns, keys=["id"], properties=by)


@follows("table.row_ttl:RowTtl.of")
def _(told: Told) -> None:
    columns = pa.schema({"id": pa.int64(), "at": TIME})
    engine = MergeEngine(Engine.AGGREGATION, {"at": Rule.MAX})
    with told:
        Table.create(str(told.folder / "t"), columns, keys=["id"], engine=engine, properties=TTL)
    told("set 'rowTtl' on the tables that it is made of")
    _expires(told, "made", at=TIME)


@follows("table.row_ttl:_delete")
def _(told: Told) -> None:
    now = Now()
    store = ClockedStore(now)
    table = Table(store, clock=now)
    columns = pa.schema({"id": pa.int64(), "at": TIME})
    table.ensure(TableSchema.of(columns, keys=["id"]), TTL)

    def append(*keys: int) -> None:
        rows = {"id": keys, "at": pa.array([OLD] * len(keys), TIME)}
        table.upsert(pa.table(rows, schema=columns))

    def overtake() -> None:
        if fast.names[-1].startswith("create "):  # The deletes of each try are being written.
            append(2)

    append(1)
    fast = Steps(watch=overtake)
    with told:
        Table(FaultyStore(store, fast), clock=now).expire_rows()
    assert table.snapshot().num_rows == 2
    told("try again when fewer write")
    table.expire_rows()
    assert not table.snapshot().num_rows
    append(1)
    told("the next expiry does")
    table.expire_rows()
    assert not table.snapshot().num_rows
