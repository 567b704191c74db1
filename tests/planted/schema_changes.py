"""Bugs in columns that a table gives up."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import SchemaError
from spark_upsert.table import drop
from spark_upsert.table.table import Table
from tests.planted.bug import Patch, bug

COLUMNS = pa.schema({"k": pa.int64(), "s": pa.string()})


def test_p1_a_dropped_name_shows_no_old_value() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table.create(f"{folder}/t", COLUMNS, keys=["k"])
        table.append(pa.table({"k": [1], "s": ["old"]}))
        table.drop_columns("s")
        with pytest.raises(SchemaError, match="was dropped"):
            table.append(pa.table({"k": [2], "s": ["new"]}), merge_schema=True)
        assert table.snapshot().to_pylist() == [{"k": 1}]


@bug("a table forgets which columns it has given up", test_p1_a_dropped_name_shows_no_old_value)
def _() -> Patch:
    def none(_: Mapping[str, str]) -> frozenset[str]:
        return frozenset()

    return patch.object(drop, "dropped_names", none)
