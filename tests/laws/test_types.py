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

from tests.support.column_types import NESTINGS, TYPES
from tests.support.type_cells import ENTRIES, Cell, write_cell

COUNT = int(os.environ.get("TYPE_NESTINGS", "1"))


def cells(entry: str) -> list[Cell]:
    """Return cells of all types, with `COUNT` nestings each."""
    names = list(NESTINGS)[: 1 if entry == "key" else None]
    place = list(ENTRIES).index(entry)
    return [
        Cell(entry, name, names[(place + index + turn) % len(names)])
        for index, name in enumerate(TYPES)
        for turn in range(COUNT)
    ]


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.sweep(2)
def test_a_type_is_stored_exactly_or_refused_by_its_name_at(entry: str, tmp_path: Path) -> None:
    written = [write_cell(tmp_path / str(index), cell) for index, cell in enumerate(cells(entry))]
    command = [sys.executable, "-m", "tests.support.type_cells", str(tmp_path)]
    read = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [*filter(None, written), *json.loads(read.stdout)] == []
