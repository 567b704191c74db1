"""A process that writes and publishes is killed at any moment, again and again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from integration.publisher import COLUMNS, kill_many, look
from spark_upsert.table.table import Table

pytestmark = pytest.mark.slow

KILLS = 12
"""`python -m integration.publisher` takes hundreds."""


def test_a_killed_publisher_leaves_no_version_that_never_was(tmp_path: Path) -> None:
    said = kill_many(tmp_path, KILLS, seed=5)
    assert said.endswith("0 beside, 0 shown twice")


def test_a_mirror_beside_its_table_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "table"
    table = Table.create(str(path), COLUMNS, keys=["k"], properties={"publish": "delta"})
    for value in range(2):
        table.upsert(pa.table({"k": [1, 2], "v": [value, value]}))
    assert look(path) == 0
    # As if its newest commit named no file.
    [*_, newest] = sorted((path / "_delta" / "_delta_log").glob("*.json"))
    lines = newest.read_text().splitlines(keepends=True)
    newest.write_text("".join(line for line in lines if '"add"' not in line))
    with pytest.raises(AssertionError):
        look(path)
