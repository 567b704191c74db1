"""DuckLake: the newest command of each key, and ``table_changes``.

Its ``MERGE`` takes one action besides insertion, so that deletes are a statement before it, in one
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import duckdb_extensions

from changelog_conformance.histories import GONE, History, Row, newest

TYPES = {"int64": "BIGINT", "string": "VARCHAR", "float64": "DOUBLE"}
INSERTED = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}


class DuckLake:
    """A catalog in a file of DuckDB, and a table in it for each history."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._open()

    def _open(self) -> None:
        self._db = duckdb.connect()
        duckdb_extensions.import_extension("ducklake", con=self._db)
        self._db.execute(
            f"ATTACH 'ducklake:{self._folder}/catalog.ducklake' AS lake "
            f"(DATA_PATH '{self._folder}/data')"
        )

    def create(self, history: History) -> None:
        self._count += 1
        self._name = f"t{self._count}"
        self._columns = dict(history.columns)
        self._keys, self._order = history.keys, history.order
        self._db.execute(f"CREATE TABLE lake.{self._name} ({self._ddl(self._columns)})")
        self._seen = self._snapshot()

    def _ddl(self, columns: Mapping[str, str]) -> str:
        return ", ".join(f"{name} {TYPES[kind]}" for name, kind in columns.items())

    def _snapshot(self) -> int:
        return int(self._rows("SELECT max(snapshot_id) AS n FROM lake.snapshots()")[0]["n"])

    def _rows(self, query: str) -> list[Row]:
        found = self._db.execute(query)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def apply(self, rows: Sequence[Row]) -> None:
        self._db.execute(
            f"CREATE OR REPLACE TEMP TABLE updates ({self._ddl(self._columns)}, {GONE} BOOLEAN)"
        )
        names = [*self._columns, GONE]
        told = [
            [{GONE: False, **row}.get(name) for name in names]
            for row in newest(rows, self._keys, self._order)
        ]
        if told:
            self._db.executemany(
                f"INSERT INTO updates VALUES ({', '.join('?' * len(names))})", told
            )
        table, columns = f"lake.{self._name}", list(self._columns)
        newer = f"s.{self._order} > t.{self._order}"
        same = " AND ".join(f"t.{name} IS NOT DISTINCT FROM s.{name}" for name in self._keys)
        self._db.execute("BEGIN")
        self._db.execute(
            f"DELETE FROM {table} t USING updates s WHERE {same} AND {newer} AND s.{GONE}"
        )
        self._db.execute(
            f"MERGE INTO {table} t USING (FROM updates WHERE NOT {GONE}) s ON {same} "
            f"WHEN MATCHED AND {newer} "
            f"THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in columns)} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) "
            f"VALUES ({', '.join(f's.{name}' for name in columns)})"
        )
        self._db.execute("COMMIT")

    def add_columns(self, columns: Mapping[str, str]) -> None:
        self._columns.update(columns)
        for name, kind in columns.items():
            self._db.execute(f"ALTER TABLE lake.{self._name} ADD COLUMN {name} {TYPES[kind]}")

    def restart(self) -> None:
        self._db.close()
        self._open()

    def rows(self) -> list[Row]:
        return self._rows(f"SELECT * FROM lake.{self._name}")

    def changes(self) -> list[tuple[Row, int]]:
        first, self._seen = self._seen + 1, self._snapshot()
        if first > self._seen:
            return []
        found = self._rows(f"FROM lake.table_changes('{self._name}', {first}, {self._seen})")
        return [
            ({name: row.get(name) for name in self._columns}, INSERTED[row["change_type"]])
            for row in found
        ]

    def versions(self) -> dict[str, str]:
        found = self._rows(
            "SELECT extension_version AS v FROM duckdb_extensions() "
            "WHERE extension_name = 'ducklake'"
        )
        return {"duckdb": duckdb.__version__, "ducklake": found[0]["v"]}

    def close(self) -> None:
        self._db.close()
