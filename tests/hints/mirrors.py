"""Hints of mirrors: their places, their types, and what others did to them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from spark_upsert.core.merge_engines import Engine, MergeEngine, Rule
from spark_upsert.delta.place import place_of
from spark_upsert.delta.publish import Mirror
from spark_upsert.delta.refusals import NotMirroredError
from spark_upsert.table.table import Table
from tests.hints.hint import Told, follows
from tests.support.delta import DeltaTable


def table_in(folder: Path, name: str = "table", **types: pa.DataType) -> Table:
    columns = pa.schema({"id": pa.int64(), **types})
    table = Table.create(str(folder / name), columns, keys=["id"])
    table.upsert(pa.table({"id": [1], **{n: pa.nulls(1, type_) for n, type_ in types.items()}}))
    return table


def require_copy(table: Table, to: str | None = None) -> None:
    rows = DeltaTable(place_of(table.store, to)).rows()
    assert rows.num_rows == table.snapshot().num_rows


@follows("delta.refusals:MirroredTypeError.of")
def _(told: Told) -> None:
    with told:
        table_in(told.folder, "old", at=pa.time64("us")).publish()
    told("write the values as int64, of microseconds, in a column of another name")
    told("or in a new table")
    table = table_in(told.folder, "new", at_us=pa.int64())
    table.publish()
    require_copy(table)
    told("end the publication with publish=none")
    wide = pa.schema([*table.schema.columns, pa.field("at", pa.time64("us"))])
    table.alter(table.schema, {"publish": "none"})
    table.alter(replace(table.schema, columns=wide), {"publish": "none"})


@follows("delta.refusals:MirrorChangedError.by")
def _(told: Told) -> None:
    table = table_in(told.folder)
    table.publish()
    actions = [
        {"commitInfo": {"operation": "WRITE", "inCommitTimestamp": 1}},
        {"remove": {"path": "x.parquet"}},
    ]
    path = told.folder / "table" / "_delta" / "_delta_log" / f"{1:020d}.json"
    path.write_text("\n".join(map(json.dumps, actions)))
    with told:
        table.publish()
    told("publish(rebuild=True)")
    table.publish(rebuild=True)
    Mirror(table.log, table.store, place_of(table.store, None))
    assert table.publish().delta_version == 2


@follows("delta.refusals:NotMirroredError.contributions")
def _(told: Told) -> None:
    engine = MergeEngine(Engine.AGGREGATION, rules={"rows": Rule.SUM}, multiplicity="rows")
    columns = pa.schema({"id": pa.int64(), "rows": pa.int64()})
    groups = Table.create(str(told.folder / "groups"), columns, keys=["id"], engine=engine)
    with told:
        groups.publish()
    assert isinstance(told.error, NotMirroredError)
    told("publish a table with rows of its own")
    table = table_in(told.folder)
    table.publish()
    require_copy(table)


@follows("delta.refusals:other_table")
def _(told: Told) -> None:
    one, other = (table_in(told.folder, name) for name in ("one", "other"))
    place = str(told.folder / "place")
    one.publish(place)
    with told:
        other.publish(place)
    told("publish to another place")
    other.publish(str(told.folder / "another place"))
    require_copy(other, str(told.folder / "another place"))
    told("rebuild it (publish(rebuild=True)")
    other.publish(place, rebuild=True)
    require_copy(other, place)


@follows("delta.refusals:occupied")
def _(told: Told) -> None:
    table = table_in(told.folder)
    (told.folder / "place").mkdir()
    (told.folder / "place" / "mine.csv").write_text("1")
    with told:
        table.publish(str(told.folder / "place"))
    told("publish to an empty place")
    table.publish(str(told.folder / "empty place"))
    require_copy(table, str(told.folder / "empty place"))


@follows("delta.refusals:within_another")
def _(told: Told) -> None:
    table = table_in(told.folder)
    (told.folder / "theirs" / "_delta_log").mkdir(parents=True)
    with told:
        table.publish(str(told.folder / "theirs" / "place"))
    told("publish to a place outside of that folder")
    table.publish(str(told.folder / "place"))
    require_copy(table, str(told.folder / "place"))


@follows("delta.place:place_of")
def _(told: Told) -> None:
    table = table_in(told.folder)
    with told:
        table.publish(f"{table.store.url}/data")
    told(f"publish to '{table.store.url}/_delta'")
    table.publish(f"{table.store.url}/_delta")
    require_copy(table)
    told("or to a folder of its own")
    table.publish(str(told.folder / "own"))
    require_copy(table, str(told.folder / "own"))
