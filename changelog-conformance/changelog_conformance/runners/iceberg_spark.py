"""Iceberg on Spark: ``MERGE``, and the view of ``create_changelog_view``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from changelog_conformance.histories import Row, newest
from changelog_conformance.merging import merge_statement
from changelog_conformance.runners.spark import OnSpark

KINDS = {"insert": 1, "update_after": 1, "update_before": -1, "delete": -1}


class IcebergSpark(OnSpark):
    """A copy-on-write table of format 2: the procedure reads no delete files."""

    conf: ClassVar[Mapping[str, str]] = {
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": "{folder}/ice",
        "spark.sql.catalog.ice.cache-enabled": "false",
    }

    @property
    def target(self) -> str:
        return f"ice.b.{self.name}"

    def make(self) -> None:
        self.spark.sql(
            f"CREATE TABLE {self.target} ({self.ddl()}) USING iceberg "
            "TBLPROPERTIES ('format-version'='2', 'write.merge.mode'='copy-on-write')"
        )
        self._seen: int | None = None

    def apply(self, rows: Sequence[Row]) -> None:
        self.frame(newest(rows, self.keys, self.order)).createOrReplaceTempView("updates")
        self.spark.sql(
            merge_statement(
                self.target, "updates", columns=self.columns, keys=self.keys, order=self.order
            )
        )

    def changes(self) -> list[tuple[Row, int]]:
        found = self.spark.sql(
            f"SELECT snapshot_id FROM {self.target}.snapshots ORDER BY committed_at DESC LIMIT 1"
        ).collect()
        before, self._seen = self._seen, int(found[0][0]) if found else None
        if self._seen is None or before == self._seen:
            return []
        told = {"end-snapshot-id": self._seen}
        if before is not None:
            told["start-snapshot-id"] = before
        options = ", ".join(f"'{name}', '{value}'" for name, value in told.items())
        keys = ", ".join(f"'{name}'" for name in self.keys)
        self.spark.sql(
            f"CALL ice.system.create_changelog_view(table => 'b.{self.name}', "
            f"changelog_view => 'changes', options => map({options}), "
            f"compute_updates => true, identifier_columns => array({keys}))"
        )
        return self.signed(self.spark.table("changes"), KINDS, "_change_type")
