"""Paimon from plain Python: a primary-key table with ``sequence.field``, written by pypaimon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

from changelog_conformance.histories import GONE, History, Row

KIND = "row_kind"
TYPES = {"int64": "BIGINT", "string": "STRING", "float64": "DOUBLE"}


class PaimonPython:
    """Rows are merged when they are read; its writer makes no changelog, so that there is no feed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._open()
        self._catalog.create_database("b", ignore_if_exists=True)

    def _open(self) -> None:
        self._catalog = CatalogFactory.create({"warehouse": str(self._folder / "warehouse")})

    def create(self, history: History) -> None:
        self._count += 1
        self._name = f"b.t{self._count}"
        self._columns = dict(history.columns)
        self._keys = history.keys
        schema = Schema.from_pyarrow_schema(
            self._schema(),
            primary_keys=list(history.keys),
            options={
                "bucket": "1",
                "sequence.field": history.order,
                "rowkind.field": KIND,
            },
        )
        self._catalog.create_table(self._name, schema, ignore_if_exists=False)

    def _schema(self) -> pa.Schema:
        columns = {**self._columns, KIND: "string"}
        return pa.schema(
            pa.field(name, pa.type_for_alias(kind), nullable=name not in self._keys)
            for name, kind in columns.items()
        )

    def apply(self, rows: Sequence[Row]) -> None:
        table = self._catalog.get_table(self._name)
        names = [field.name for field in table.fields]
        told = [{**row, KIND: "-D" if row.get(GONE) else "+I"} for row in rows]
        schema = self._schema()
        given = pa.Table.from_pylist(told, schema=pa.schema([schema.field(name) for name in names]))
        builder = table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(given)
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def add_columns(self, columns: Mapping[str, str]) -> None:
        self._columns.update(columns)
        gained = [SchemaChange.add_column(n, AtomicType(TYPES[k])) for n, k in columns.items()]
        self._catalog.alter_table(self._name, gained)

    def restart(self) -> None:
        self._open()

    def rows(self) -> list[Row]:
        builder = self._catalog.get_table(self._name).new_read_builder()
        found = builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist()
        return [{name: row.get(name) for name in self._columns} for row in found]

    def changes(self) -> None:
        return None

    def versions(self) -> dict[str, str]:
        return {"pypaimon": metadata.version("pypaimon")}

    def close(self) -> None:
        return None
