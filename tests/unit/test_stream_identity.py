"""A stream goes on from its checkpoint only in the table that the checkpoint knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_upsertflow.limited_stream_reader import LimitedStreamReader
from pyspark_upsertflow.readers import read_schema
from spark_upsert.errors import OtherTableError, TableNotFoundError
from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table
from tests.support.model import Command
from tests.support.tables import append
from tests.unit.test_identity import ACCIDENTS, made, removed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(LocalStore(tmp_path / "table"))
    return tmp_path / "table"


def reader(folder: Path, **options: str) -> LimitedStreamReader:
    given = {"path": str(folder), "readChangeFeed": "true", **options}
    return LimitedStreamReader(given, read_schema(given))


def advanced(stream: LimitedStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return stream.latestOffset(start, ReadAllAvailable())


def position(offset: dict[str, Any]) -> dict[str, Any]:
    """Return where a stream of one table stands."""
    found: dict[str, Any] = offset["positions"][""]
    return found


def advanced_through(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return where a stream began and ended its first batch."""
    stream = reader(folder)
    start = stream.initialOffset()
    return start, advanced(stream, start)


REPLACED = {name: accident for name, accident in ACCIDENTS.items() if accident is not removed}


@pytest.mark.parametrize("options", [{}, {"failOnDataLoss": "false"}], ids=["strict", "lenient"])
@pytest.mark.parametrize("accident", REPLACED.values(), ids=REPLACED)
def test_a_restarted_stream_is_refused_where_the_table(
    accident: Any, folder: Path, options: dict[str, str]
) -> None:
    start, end = advanced_through(folder)
    assert advanced(reader(folder), end) == end, "another text would be a batch"
    accident(folder)
    with pytest.raises(OtherTableError, match="the checkpoint of this query") as caught:
        advanced(reader(folder, **options), end)
    assert "new checkpointLocation" in str(caught.value)
    with pytest.raises(OtherTableError):  # A replay of the last batch.
        reader(folder, **options).partitions(start, end)


@pytest.mark.parametrize("accident", ACCIDENTS.values(), ids=ACCIDENTS)
def test_a_running_stream_is_refused_where_the_table(accident: Any, folder: Path) -> None:
    stream = reader(folder)
    end = advanced(stream, stream.initialOffset())
    accident(folder)
    with pytest.raises(OtherTableError):
        advanced(stream, end)


def test_a_stream_goes_on_in_a_table_that_was_moved(folder: Path, tmp_path: Path) -> None:
    _, end = advanced_through(folder)
    folder.rename(tmp_path / "moved")
    append(Table(LocalStore(tmp_path / "moved")), [Command(7, 7, 7)])
    assert position(advanced(reader(tmp_path / "moved"), end))["upper"] == 5


def test_a_stream_that_has_not_begun_knows_no_table(folder: Path) -> None:
    start = reader(folder).initialOffset()
    removed(folder)
    with pytest.raises(TableNotFoundError):
        reader(folder)
    made(LocalStore(folder), 1)
    assert position(advanced(reader(folder), start))["upper"] == 2


def test_a_stream_may_begin_behind_the_next_version(folder: Path) -> None:
    stream = reader(folder, startingVersion="4", startingBoundInclusive="false")
    end = advanced(stream, stream.initialOffset())
    assert (position(end)["upper"], position(end)["place"][1]) == (5, 3)
    append(Table(LocalStore(folder)), [Command(7, 7, 7)])
    assert advanced(stream, end) == end
