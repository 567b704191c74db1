"""A bad property is refused when it is set, whichever way, and the table stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.log.properties import TombstoneRetention
from spark_upsert.table.table import Table
from spark_upsert_sink.writers import plan_sink
from tests.support.stores import MemoryStore

COLUMNS = pa.schema({"id": pa.int64()})
SCHEMA = TableSchema.of(COLUMNS, keys=["id"])

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a word": ({"tombstoneRetention": "banana"}, "found 'banana'"),
    "nothing": ({"tombstoneRetention": ""}, "found ''"),
    "an unknown unit": ({"tombstoneRetention": "7 fortnights"}, "found '7 fortnights'"),
    "a negative age": ({"tombstoneRetention": "-7 days"}, "found '-7 days'"),
    "a unit twice": ({"tombstoneRetention": "1 day and 2 days"}, "found '1 day and 2 days'"),
    "two kinds of age": ({"tombstoneRetention": "1 day, 2 hours"}, "found '1 day, 2 hours'"),
    "a number": ({"tombstoneRetention": 7}, "expects a text, found 7"),
    "a priority above all": ({"priority": "1001"}, "from -1000 to 1000, found '1001'"),
    "a priority below all": ({"priority": "-1001"}, "from -1000 to 1000, found '-1001'"),
    "a fraction": ({"priority": "1.5"}, "a whole number"),
    "a view's plan": ({"viewPlan": "{}"}, "'viewPlan'"),
    "a view's result": ({"viewResult": "{}"}, "'viewResult'"),
    "a history": ({"historyOf": "x"}, "'historyOf'"),
    "dropped columns": ({"droppedColumns": "[]"}, "'droppedColumns'"),
    "the version of an index": ({"indexShows": "a 1 b"}, "'indexShows'"),
    "a typo": ({"tombstoneRetension": "7 days"}, "Did you mean 'tombstoneRetention'"),
}

WAYS: dict[str, Callable[[Table, Path, dict[str, str]], object]] = {
    "Table.create": lambda _, path, bad: Table.create(
        str(path), COLUMNS, keys=["id"], properties=bad
    ),
    "Table.ensure": lambda _, path, bad: Table(MemoryStore()).ensure(SCHEMA, bad),
    "Table.unborn": lambda _, path, bad: Table.unborn(SCHEMA, bad),
    "Table.alter": lambda table, _, bad: table.alter(SCHEMA, bad),
    "an option of a write": lambda _, path, bad: plan_sink(
        WriteOptions.parse({"path": str(path), "keys": "id", **bad}), COLUMNS, overwrite=False
    ),
}
NO_OPTIONS = {"nothing", "a number"}
"""An empty option is one that was not given, and Spark makes texts of all."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BAD)
def test_bad_property_is_refused_when_it_is_set(tmp_path: Path, way: str, name: str) -> None:
    if way == "an option of a write" and name in NO_OPTIONS:
        return
    properties, message = BAD[name]
    table = Table(MemoryStore())
    table.ensure(SCHEMA, {"tombstoneRetention": "1 day"})
    with pytest.raises(OptionError, match=message):
        WAYS[way](table, tmp_path / "table", properties)
    assert table.log.head().version == 0
    assert table.log.head().properties == {"tombstoneRetention": "1 day"}
    assert not (tmp_path / "table").exists()


def test_age_and_number_of_epochs_go_together() -> None:
    assert TombstoneRetention.parse("1 hour and 50 epochs") == TombstoneRetention(50, 3_600_000)
    assert TombstoneRetention.parse("50 epochs, 1 hour") == TombstoneRetention(50, 3_600_000)


def test_internal_properties_may_be_given_back_as_they_are() -> None:
    """As ``{**properties, ...}`` does, also if a column was dropped since they were read."""
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(pa.schema({"id": pa.int64(), "v": pa.int64()}), keys=["id"]))
    table.drop_columns("v")
    properties = table.log.head().properties
    assert table.alter(table.schema, {**properties, "priority": "5"}).properties == {
        **properties,
        "priority": "5",
    }
    with pytest.raises(OptionError, match="is internal"):
        table.alter(table.schema, {"droppedColumns": '["id"]'})
