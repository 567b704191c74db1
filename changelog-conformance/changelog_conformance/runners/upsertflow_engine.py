"""upsertflow from plain Python: ``Table.upsert``, and the changes of each version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pyarrow as pa

from changelog_conformance.histories import GONE, History, Row
from spark_upsert import Table


class UpsertflowEngine:
    """A table with an order; batches carry no number, so that a repeated one is judged again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def create(self, history: History) -> None:
        self._path = str(self._folder / f"table-{self._count}")
        self._count += 1
        self._columns = dict(history.columns)
        self._table = Table.create(
            self._path, self._schema(), keys=history.keys, sequence_by=[history.order]
        )
        self._next = self._table.log.head().version + 1

    def _schema(self) -> pa.Schema:
        return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in self._columns.items()])

    def apply(self, rows: Sequence[Row]) -> None:
        schema = self._schema().append(pa.field(GONE, pa.bool_()))
        given = [{GONE: False, **row} for row in rows]
        self._table.upsert(pa.Table.from_pylist(given, schema=schema), deletes=GONE)

    def add_columns(self, columns: Mapping[str, str]) -> None:
        self._columns.update(columns)
        self._table.alter(replace(self._table.schema, columns=self._schema()))

    def restart(self) -> None:
        self._table = Table.open(self._path)

    def rows(self) -> list[Row]:
        return self._table.snapshot().to_pylist()

    def changes(self) -> list[tuple[Row, int]]:
        found = self._table.changes(self._next).to_pylist()
        self._next = self._table.log.head().version + 1
        return [({name: row.get(name) for name in self._columns}, row["_diff"]) for row in found]

    def versions(self) -> dict[str, str]:
        return {"upsertflow": metadata.version("upsertflow"), "pyarrow": pa.__version__}

    def close(self) -> None:
        return None
