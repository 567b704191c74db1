"""upsertflow through Spark: appended frames, and the change feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

from changelog_conformance.histories import GONE, Row
from changelog_conformance.runners.spark import INSERTED, OnSpark


class UpsertflowSpark(OnSpark):
    """Frames in mode append, without a number, so that a repeated one is judged again."""

    def make(self) -> None:
        self._next = 0
        self._options = {
            "keys": ",".join(self.keys),
            "sequenceBy": self.order,
            "applyAsDeletes": GONE,
            "mergeSchema": "true",
        }

    def add_columns(self, columns: Mapping[str, str]) -> None:
        self.columns.update(columns)

    def apply(self, rows: Sequence[Row]) -> None:
        writer = self.frame(rows).write.format("upsertflow").options(**self._options)
        writer.mode("append").save(self.path)

    def rows(self) -> list[Row]:
        return self.collected(self.spark.read.format("upsertflow").load(self.path))

    def changes(self) -> list[tuple[Row, int]]:
        reader = self.spark.read.format("upsertflow").option("readChangeFeed", "true")
        frame = reader.option("startingVersion", self._next).load(self.path)
        found = frame.select(*self.columns, "_change_type", "_diff", "_commit_version").collect()
        self._next = max([self._next, *(row["_commit_version"] + 1 for row in found)])
        assert all(row["_diff"] == INSERTED[row["_change_type"]] for row in found)
        return [({name: row[name] for name in self.columns}, row["_diff"]) for row in found]

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "upsertflow": metadata.version("upsertflow")}
