"""What all runners on Spark share: a session, and rows as frames."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame, SparkSession

from changelog_conformance.histories import GONE, History, Row

TYPES = {"int64": "BIGINT", "string": "STRING", "float64": "DOUBLE"}
INSERTED = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}
"""The diff of each kind of change, by the words of Delta, which others share."""


class OnSpark(ABC):
    """A table on Spark, of a folder of its own for each history."""

    conf: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        jars = os.environ.get("CONFORMANCE_JARS", "")
        told = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
            "spark.pyspark.python": sys.executable,
            "spark.pyspark.driver.python": sys.executable,
            **({"spark.jars": jars} if jars else {}),
            **{name: value.format(folder=folder) for name, value in self.conf.items()},
        }
        builder = SparkSession.builder.master("local[2]").appName("changelog-conformance")
        for name, value in told.items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")

    def create(self, history: History) -> None:
        self._count += 1
        self.name = f"t{self._count}"
        self.path = str(self._folder / "tables" / self.name)
        self.columns = dict(history.columns)
        self.keys, self.order = history.keys, history.order
        self.make()

    @abstractmethod
    def make(self) -> None:
        """Make the table ``name``, or that at ``path``."""

    def ddl(self, *, required: Iterable[str] = ()) -> str:
        """Return the columns as SQL declares them; ``required`` are those that are never null."""
        return ", ".join(
            f"{name} {TYPES[kind]}" + (" NOT NULL" if name in required else "")
            for name, kind in self.columns.items()
        )

    def frame(self, rows: Sequence[Row]) -> DataFrame:
        """Return commands as a frame with the column ``gone``."""
        names = [*self.columns, GONE]
        told = [tuple({GONE: False, **row}.get(name) for name in names) for row in rows]
        return self.spark.createDataFrame(told, f"{self.ddl()}, {GONE} BOOLEAN")

    def add_columns(self, columns: Mapping[str, str]) -> None:
        self.columns.update(columns)
        told = ", ".join(f"{name} {TYPES[kind]}" for name, kind in columns.items())
        self.spark.sql(f"ALTER TABLE {self.target} ADD COLUMNS ({told})")

    @property
    def target(self) -> str:
        """The table as SQL names it."""
        return f"b.{self.name}"

    def restart(self) -> None:
        self.spark.catalog.clearCache()

    def rows(self) -> list[Row]:
        return self.collected(self.spark.table(self.target))

    def collected(self, frame: DataFrame) -> list[Row]:
        """Return rows in the columns of the table."""
        return [row.asDict() for row in frame.select(*self.columns).collect()]

    def signed(
        self, frame: DataFrame, kinds: Mapping[str, int], kind: str
    ) -> list[tuple[Row, int]]:
        """Return changes whose kind stands in a column."""
        found = frame.select(*self.columns, kind).collect()
        return [
            ({name: row[name] for name in self.columns}, kinds[str(row[kind]).lower()])
            for row in found
        ]

    def versions(self) -> dict[str, str]:
        return {"spark": self.spark.version}

    def close(self) -> None:
        self.spark.stop()
