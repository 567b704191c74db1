"""Each type of Arrow, at each entry point, nested: it is stored exactly, or refused by its name.

``TYPE_NESTINGS=8`` takes all nestings of each type, which `make chaos` does; by default one that is
drawn by place. Another process reads what was written: the rows, some of the columns, the changes,
after a compaction, by an index, and from the mirror.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_upsert.core.schema import ErrorPolicy, TableSchema
from spark_upsert.errors import UpsertFlowError
from spark_upsert.table.table import Table
from tests.support.column_types import NESTINGS, TYPES, UNSOUND, ColumnType
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.type_cells import ENTRIES, Cell, rows_of, write_cell

COUNT = int(os.environ.get("TYPE_NESTINGS", "1"))

BOUNDED = ("append", "merge_schema", "alter", "key")
"""The entry points of `make check`: an upsert, a new column in two ways, and the key."""


def cells(entry: str) -> list[Cell]:
    """Return cells of all types, with `COUNT` nestings each."""
    names = list(NESTINGS)[: 1 if entry == "key" else None]
    place = list(ENTRIES).index(entry)
    return [
        Cell(entry, name, names[(place + index + turn) % len(names)])
        for index, name in enumerate(TYPES)
        for turn in range(COUNT)
    ]


@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, marks=() if entry in BOUNDED else pytest.mark.slow) for entry in ENTRIES],
)
def test_a_type_is_stored_exactly_or_refused_by_its_name_at(entry: str, tmp_path: Path) -> None:
    written = [write_cell(tmp_path / str(index), cell) for index, cell in enumerate(cells(entry))]
    command = [sys.executable, "-m", "tests.support.type_cells", str(tmp_path)]
    read = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [*filter(None, written), *json.loads(read.stdout)] == []


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry != "command"])
@pytest.mark.sweep(1)
def test_a_value_that_is_none_of_its_type_is_refused_at(entry: str, tmp_path: Path) -> None:
    """Arrow does not look at the texts of a Parquet file, or at what Spark hands over."""
    nestings = ["a column"] if entry == "key" else list(NESTINGS)
    for place, (name, values) in enumerate(UNSOUND.items()):
        if entry == "Parquet" and (name == "date64" or "string" not in name):
            continue  # Parquet stores other values for it.
        wrapped = NESTINGS[nestings[place % len(nestings)]](values)
        path = tmp_path / name / "table"
        path.parent.mkdir()
        with pytest.raises(UpsertFlowError, match="'v"):
            ENTRIES[entry](str(path), ColumnType(wrapped.slice(0, 4), None))
        forget_runs_and_logs()
        if path.exists():
            assert Table.open(str(path)).snapshot().num_rows <= 1


@pytest.mark.parametrize("name", UNSOUND)
def test_only_the_rows_with_such_values_are_kept_apart(name: str) -> None:
    """A quarantine has them; the others are stored."""
    rows, store = rows_of(UNSOUND[name]), MemoryStore()
    table = Table(store)
    table.ensure(TableSchema.of(rows.schema, keys=["id"], on_error=ErrorPolicy.QUARANTINE))
    table.upsert(rows)
    forget_runs_and_logs()
    table = Table(store)
    stored = table.snapshot().sort_by("id")["id"].to_pylist()
    apart = [row for batch in table.quarantine() for row in batch.to_pylist()]
    assert sorted([*stored, *(row["id"] for row in apart)]) == [0, 1, 2, 3]
    assert sorted(row["id"] for row in apart) == [0, 3]
    assert all("column 'v' holds what is no" in row["_reason"] for row in apart)
