"""Cells of types and entry points: the write of each cell, and its check by another process.

    python -m tests.support.type_cells FOLDER

reads each table that `write_cell` left below a folder, and prints the cells that are wrong as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from click.testing import CliRunner

from spark_upsert.cli.commands import upsertflow
from spark_upsert.core.keys import is_hashable
from spark_upsert.delta.types import MirroredTypeError
from spark_upsert.errors import UpsertFlowError
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.flow import TableSink
from spark_upsert.flow.local import write
from spark_upsert.store.open import open_store
from spark_upsert.table.table import Table
from tests.support.column_types import ColumnType, column
from tests.support.delta import DeltaTable

BEFORE = {"id": 9, "w": "first"}
"""The row of the table before the column comes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A type in a nesting, at an entry point."""

    entry: str
    name: str
    nesting: str

    def __str__(self) -> str:
        return f"{self.entry}: {self.name} in {self.nesting}"

    @property
    def column(self) -> ColumnType:
        return column(self.name, self.nesting)


def rows_of(values: pa.Array) -> pa.Table:
    ids = list(range(len(values)))
    return pa.table({"id": ids, "w": [f"w{index}" for index in ids], "v": values})


def _before(path: str, *fields: pa.Field) -> Table:
    table = Table.create(
        path, pa.schema([("id", pa.int64()), ("w", pa.string()), *fields]), keys=["id"]
    )
    table.upsert(pa.table({"id": [9], "w": ["first"]}), merge_schema=True)
    return table


def _create(path: str, own: ColumnType) -> None:
    rows = rows_of(own.given)
    Table.create(path, rows.schema, keys=["id"]).upsert(rows)


def _append(path: str, own: ColumnType) -> None:
    other = pa.struct({"x": pa.int8()})
    type_ = other if own.stored is None else own.stored.type
    _before(path, pa.field("v", type_)).upsert(rows_of(own.given))


def _merge_schema(path: str, own: ColumnType) -> None:
    _before(path).upsert(rows_of(own.given), merge_schema=True)


def _alter(path: str, own: ColumnType) -> None:
    table, rows = _before(path), rows_of(own.given)
    table.alter(table.schema.accept(rows.schema, merge=True))
    table.upsert(rows)


def _options(path: str, own: ColumnType) -> None:
    _before(path)
    write(TableSink(path, {"mergeSchema": "true"}), rows_of(own.given))


def _overwrite(path: str, own: ColumnType) -> None:
    _before(path).upsert(rows_of(own.given), overwrite=True, merge_schema=True)


def _stream(path: str, own: ColumnType) -> None:
    rows = rows_of(own.given)
    table = Table.create(path, rows.schema, keys=["id"])
    with FeedbackUpsert(table, "source") as loop:
        for ts, batch in enumerate(rows.to_batches(max_chunksize=2)):
            loop.ingest(batch, ts)
        loop.advance(2)
        loop.run()


class NotApplicableError(Exception):
    """The entry point has no such type: Parquet, its library, or the types of SQL."""


def _parquet_file(path: str, own: ColumnType) -> Path:
    file = Path(path).parent / "rows.parquet"
    try:
        pq.write_table(rows_of(own.given), file)
        pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise NotApplicableError from error
    return file


def _parquet(path: str, own: ColumnType) -> None:
    rows = pq.read_table(_parquet_file(path, own))
    _before(path).upsert(rows, merge_schema=True)


SQL_TYPES: Mapping[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    pa.decimal128(3, 2): "DECIMAL(3, 2)",
    pa.decimal128(12, 2): "DECIMAL(12, 2)",
    pa.decimal128(38, 2): "DECIMAL(38, 2)",
}


def _sql_type(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return f"ARRAY<{_sql_type(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"MAP<{_sql_type(type_.key_type)}, {_sql_type(type_.item_type)}>"
    if pa.types.is_struct(type_) and type_.num_fields:
        return f"STRUCT<{', '.join(f'{each.name}: {_sql_type(each.type)}' for each in type_)}>"
    if type_ not in SQL_TYPES:
        raise NotApplicableError(str(type_))
    return SQL_TYPES[type_]


def _command(path: str, own: ColumnType) -> None:
    if own.stored is None:
        raise NotApplicableError(str(own.given.type))
    column = f"v {_sql_type(own.stored.type)}"
    table = _before(path)
    done = CliRunner().invoke(upsertflow, ["alter", path, "--column", column])
    assert done.exit_code == 0, done.output
    table.upsert(rows_of(own.given))


def _publish(path: str, own: ColumnType) -> None:
    rows = rows_of(own.given)
    Table.create(path, rows.schema, keys=["id"], properties={"publish": "delta"}).upsert(rows)


def _key(path: str, own: ColumnType) -> None:
    rows = rows_of(own.given.slice(2))  # None of them is null.
    Table.create(path, rows.schema, keys=["v"], sequence_by=["v"]).upsert(rows)


ENTRIES: Mapping[str, Callable[[str, ColumnType], None]] = {
    "create": _create,
    "append": _append,
    "merge_schema": _merge_schema,
    "alter": _alter,
    "options": _options,
    "command": _command,
    "overwrite": _overwrite,
    "stream": _stream,
    "Parquet": _parquet,
    "publish": _publish,
    "key": _key,
}


def write_cell(folder: Path, cell: Cell) -> str | None:
    """Write the column of a cell at its entry point; return what is wrong, None if nothing is.

    The outcome is left in the folder for `check_cells`.
    """
    folder.mkdir(parents=True)
    path, own = str(folder / "table"), cell.column
    refusal = None
    try:
        ENTRIES[cell.entry](path, own)
    except UpsertFlowError as error:
        refusal = error
    except NotApplicableError:
        return None
    except Exception as error:  # noqa: BLE001 - it is a finding, whatever it is
        return f"{cell}: {type(error).__name__} {error}"[:2000]
    if refusal is None and own.stored is None and own.given.null_count == len(own.given):
        return None  # Nulls of any type are nulls of the column's.
    outcome = {**asdict(cell), "is_stored": refusal is None}
    (folder / "cell.json").write_text(json.dumps(outcome), encoding="utf-8")
    if refusal is None:
        return None if own.stored is not None else f"{cell}: it was stored"
    if own.stored is not None and not _may_refuse(cell, refusal):
        return f"{cell}: refused: {refusal.message}"
    if "'v" not in refusal.message or not _names_type(refusal.message, own):
        return f"{cell}: the message names no column or type: {refusal.message}"
    return None


def _may_refuse(cell: Cell, refusal: UpsertFlowError) -> bool:
    """Return whether an entry point takes fewer types than a table stores."""
    if cell.entry == "publish":
        return isinstance(refusal, MirroredTypeError)
    assert cell.column.stored is not None
    return cell.entry == "key" and not is_hashable(cell.column.stored.type)


def _names_type(message: str, own: ColumnType) -> bool:
    types = {str(own.given.type), *(str(type_) for type_ in _parts(own.given.type))}
    if own.stored is not None:
        types |= {str(own.stored.type), *(str(type_) for type_ in _parts(own.stored.type))}
    return any(text in message for text in (*types, "no type", "levels of nested types"))


def _parts(type_: pa.DataType) -> Iterator[pa.DataType]:
    yield type_
    if pa.types.is_map(type_):
        yield from (*_parts(type_.key_type), *_parts(type_.item_type))
    elif pa.types.is_struct(type_):
        for field in type_:
            yield from _parts(field.type)
    elif hasattr(type_, "value_type"):
        yield from _parts(type_.value_type)


def check_cells(folder: Path) -> list[str]:
    """Return what is wrong in the tables that other processes wrote below a folder."""
    wrong = []
    for outcome in sorted(folder.rglob("cell.json")):
        fields = json.loads(outcome.read_text(encoding="utf-8"))
        is_stored = fields.pop("is_stored")
        cell = Cell(**fields)
        try:
            _check(outcome.parent / "table", cell, is_stored=is_stored)
        except Exception as error:  # noqa: BLE001 - each cell is checked, whatever another one does
            wrong.append(f"{cell}: {type(error).__name__} {error}"[:2000])
    return wrong


def _check(path: Path, cell: Cell, *, is_stored: bool) -> None:
    if not is_stored:
        if path.exists():
            table = Table.open(str(path))
            rows = table.snapshot(columns=["w"]) if "w" in table.schema.columns.names else None
            assert rows is None or rows["w"].to_pylist() in (["first"], []), rows
            assert table.check().findings == ()
        return
    own = cell.column
    expected = own.stored
    assert expected is not None
    table = Table.open(str(path))
    assert table.schema.columns.field("v").type == expected.type, table.schema.columns
    if cell.entry == "key":
        wanted = expected.slice(2).unique()
        assert table.get(wanted)["v"].combine_chunks().sort() == wanted.sort()
        assert table.check().findings == ()
        return
    # As arrays: Python has no nanoseconds.
    has_before = cell.entry not in ("create", "stream", "publish", "overwrite")
    ids = pa.array([*range(len(expected)), *([BEFORE["id"]] if has_before else [])])
    rows = pa.table(
        {"id": ids, "v": pa.concat_arrays([expected, pa.nulls(has_before, expected.type)])}
    )

    def require(found: pa.Table, wanted: pa.Table) -> None:
        shown = found.sort_by("id")
        assert shown["id"].to_pylist() == wanted["id"].to_pylist()
        one, other = (each["v"].combine_chunks() for each in (shown, wanted))
        assert one.equals(other), f"{one} for {other}"

    require(table.snapshot(), rows)
    require(table.snapshot(columns=["v", "id"]), rows)
    require(
        table.changes(1 if has_before else 0).filter(pc.field("id") != BEFORE["id"]),
        rows.slice(0, len(expected)),
    )
    if cell.entry != "Parquet":
        table.upsert(rows_of(own.given).slice(0, 2).set_column(1, "w", pa.array(["x", "y"])))
        updated = table.changes(table.log.head().version)
        assert updated.num_rows == 4, "two rows changed in another column"
        require(updated.filter(pc.field("_change_type") == "update_preimage"), rows.slice(0, 2))
        require(updated.filter(pc.field("_change_type") == "update_postimage"), rows.slice(0, 2))
        table.compact(full=True)
        require(Table.open(str(path)).snapshot(), rows)
    if is_hashable(expected.type):
        table.alter(table.schema, {"indexBy": "v"})
        table.build_indexes()
        first = expected.drop_null()[:1]
        require(table.rows_having("v", first), rows.filter(pc.equal(rows["v"], first[0])))
    _check_mirror(table, rows, require)
    assert table.check().findings == ()


def _check_mirror(
    table: Table, expected: pa.Table, require: Callable[[pa.Table, pa.Table], None]
) -> None:
    """Publish a table, unless Delta lacks its type, which must be named."""
    try:
        table.publish()
    except MirroredTypeError as error:
        if "'v" not in error.message:
            raise
    else:
        require(DeltaTable(open_store(f"{table.store.url}/_delta")).rows(), expected)


def main() -> None:
    """Check the cells of a folder, and print what is wrong as JSON, without waits for the disk."""
    with patch.object(os, "fsync", os.fstat):
        sys.stdout.write(json.dumps(check_cells(Path(sys.argv[1]))))


if __name__ == "__main__":
    main()
