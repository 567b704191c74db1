"""delta-rs: ``MERGE`` of the newest command of each key, and the change data feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import deltalake
import pyarrow as pa
from deltalake import DeltaTable

from changelog_conformance.histories import GONE, History, Row, newest

INSERTED = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}


class DeltaRs:
    """A table with ``delta.enableChangeDataFeed``, without Java."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def create(self, history: History) -> None:
        self._path = str(self._folder / f"table-{self._count}")
        self._count += 1
        self._columns = dict(history.columns)
        self._keys, self._order = history.keys, history.order
        self._table = DeltaTable.create(
            self._path, self._schema(), configuration={"delta.enableChangeDataFeed": "true"}
        )
        self._seen = 0

    def _schema(self) -> pa.Schema:
        return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in self._columns.items()])

    def apply(self, rows: Sequence[Row]) -> None:
        schema = self._schema().append(pa.field(GONE, pa.bool_()))
        told = [{GONE: False, **row} for row in newest(rows, self._keys, self._order)]
        values = {name: f"s.{name}" for name in self._columns}
        newer = f"s.{self._order} > t.{self._order}"
        (
            self._table.merge(
                pa.Table.from_pylist(told, schema=schema),
                " AND ".join(f"(t.{name} IS NOT DISTINCT FROM s.{name})" for name in self._keys),
                source_alias="s",
                target_alias="t",
            )
            .when_matched_delete(f"{newer} AND s.{GONE}")
            .when_matched_update(values, newer)
            .when_not_matched_insert(values, f"NOT s.{GONE}")
            .execute()
        )

    def add_columns(self, columns: Mapping[str, str]) -> None:
        self._columns.update(columns)
        kinds = {"int64": "long", "string": "string", "float64": "double"}
        gained = [deltalake.Field(name, kinds[kind]) for name, kind in columns.items()]
        self._table.alter.add_columns(gained)

    def restart(self) -> None:
        self._table = DeltaTable(self._path)

    def rows(self) -> list[Row]:
        return self._table.to_pyarrow_table().to_pylist()

    def changes(self) -> list[tuple[Row, int]]:
        first, self._seen = self._seen + 1, self._table.version()
        if first > self._seen:
            return []
        return [
            ({name: row.get(name) for name in self._columns}, INSERTED[row["_change_type"]])
            for row in self._fed(first)
        ]

    def _fed(self, first: int) -> list[Row]:
        return pa.table(self._table.load_cdf(first, self._seen)).to_pylist()

    def versions(self) -> dict[str, str]:
        return {"deltalake": deltalake.__version__}

    def close(self) -> None:
        return None


class DeltaRsFlagged(DeltaRs):
    """Deletes stay as rows with a flag and their order; readers leave such rows out."""

    def _schema(self) -> pa.Schema:
        return super()._schema().append(pa.field(GONE, pa.bool_()))

    def apply(self, rows: Sequence[Row]) -> None:
        told = [{GONE: False, **row} for row in newest(rows, self._keys, self._order)]
        values = {name: f"s.{name}" for name in (*self._columns, GONE)}
        (
            self._table.merge(
                pa.Table.from_pylist(told, schema=self._schema()),
                " AND ".join(f"(t.{name} IS NOT DISTINCT FROM s.{name})" for name in self._keys),
                source_alias="s",
                target_alias="t",
            )
            .when_matched_update(values, f"s.{self._order} > t.{self._order}")
            .when_not_matched_insert(values)
            .execute()
        )

    def rows(self) -> list[Row]:
        return [row for row in super().rows() if not row[GONE]]

    def _fed(self, first: int) -> list[Row]:
        return [row for row in super()._fed(first) if not row[GONE]]
