"""Paimon on Spark: a primary-key table with ``sequence.field``, and its audit log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from changelog_conformance.histories import GONE, Row
from changelog_conformance.runners.spark import OnSpark

KINDS = {"+i": 1, "+u": 1, "-u": -1, "-d": -1}
KIND = "row_kind"


class PaimonSpark(OnSpark):
    """With ``changelog-producer=lookup``; ``rowkind.field`` names the column that says delete."""

    conf: ClassVar[Mapping[str, str]] = {
        "spark.sql.catalog.paimon": "org.apache.paimon.spark.SparkCatalog",
        "spark.sql.catalog.paimon.warehouse": "{folder}/paimon",
        "spark.sql.extensions": "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
    }

    @property
    def target(self) -> str:
        return f"paimon.b.{self.name}"

    def make(self) -> None:
        self.spark.sql("CREATE DATABASE IF NOT EXISTS paimon.b")
        self.spark.sql(
            f"CREATE TABLE {self.target} ({self.ddl(required=self.keys)}, {KIND} STRING) "
            f"TBLPROPERTIES ('primary-key'='{','.join(self.keys)}', 'bucket'='1', "
            f"'sequence.field'='{self.order}', 'rowkind.field'='{KIND}', "
            "'changelog-producer'='lookup')"
        )
        self._seen = 0

    def apply(self, rows: Sequence[Row]) -> None:
        self.frame(rows).selectExpr(
            *self.columns, f"CASE WHEN {GONE} THEN '-D' ELSE '+I' END AS {KIND}"
        ).createOrReplaceTempView("updates")
        names = ", ".join([*self.columns, KIND])
        self.spark.sql(f"INSERT INTO {self.target} ({names}) SELECT {names} FROM updates")

    def add_columns(self, columns: Mapping[str, str]) -> None:
        super().add_columns(columns)
        self.spark.catalog.refreshTable(self.target)

    def changes(self) -> list[tuple[Row, int]]:
        files = Path(self._folder, "paimon", "b.db", self.name, "snapshot").glob("snapshot-*")
        newest = max((json.loads(file.read_text())["id"] for file in files), default=0)
        found: list[tuple[Row, int]] = []
        for number in range(self._seen + 1, newest + 1):
            reader = self.spark.read.format("paimon")
            reader = reader.option("incremental-between", f"{number - 1},{number}")
            reader = reader.option("incremental-between-scan-mode", "changelog")
            frame = reader.table(f"paimon.b.`{self.name}$audit_log`")
            found += self.signed(frame, KINDS, "rowkind")
        self._seen = newest
        return found
