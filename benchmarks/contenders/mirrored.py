"""upsertflow with a mirror, engine only: each batch is published with its changes behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from benchmarks.canonical import digest_of_table
from benchmarks.contenders.engine import Engine
from benchmarks.mirroring import mirror_of
from spark_upsert.table.table import Table

PROPERTIES = {"publish": "delta", "publishChangeFeed": "true"}


class MirroredEngine(Engine):
    """What is compared with its rivals is what delta-rs reads of the mirror."""

    def open(self) -> None:
        table = Table.open(self._path)
        table.publish(change_feed=True)
        table.alter(table.schema, PROPERTIES)
        super().open()

    def contents(self) -> dict[str, Any]:
        table = deltalake.DeltaTable(str(mirror_of(Path(self._path))))
        query = deltalake.QueryBuilder().register("t", table)
        found = pa.table(query.execute("SELECT * FROM t").read_all())
        return digest_of_table(found.cast(self._workload.columns), self._workload)
