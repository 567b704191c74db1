"""Tables that a test writes by the options of a sink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_upsert.flow import TableSink
from spark_upsert.flow.local import write as write_by
from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.table import Table

Rows = Mapping[str, Any]

ROW: Rows = {"id": [1], "n": [1], "v": ["a"]}


def rows_of(rows: Rows | pa.Table) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.table(dict(rows))


def write(
    folder: Path, rows: Rows | pa.Table = ROW, name: str = "table", **options: str | None
) -> Commit | None:
    """Write rows by options; None leaves one out."""
    given = {"keys": "id", **options}
    own = {option: text for option, text in given.items() if text is not None}
    return write_by(TableSink(str(folder / name), own), rows_of(rows))


def write_and_open(
    folder: Path, rows: Rows | pa.Table = ROW, name: str = "table", **options: str
) -> Table:
    write(folder, rows, name, **options)
    return Table.open(str(folder / name))
