"""What a program's log hears: one line per event, with its counters, and never a row."""

from __future__ import annotations

import logging

import pyarrow as pa
import pytest

from spark_upsert.core.durations import Fields
from spark_upsert.core.schema import TableSchema
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

COLUMNS = pa.schema({"id": pa.int64(), "name": pa.string()})


@pytest.fixture
def table(caplog: pytest.LogCaptureFixture) -> Table:
    """A place for a table, and a log that listens."""
    caplog.set_level(logging.INFO, "spark_upsert")
    return Table(MemoryStore())


def lines(caplog: pytest.LogCaptureFixture, table: Table) -> list[str]:
    """Return what was logged since it was last asked."""
    for record in caplog.records:
        assert record.name.startswith("spark_upsert.")
        assert record.levelno == logging.INFO
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return [line.replace(table.store.url, "PATH") for line in found]


def append(table: Table, ids: list[int], *, number: int | None = None) -> int:
    """Append rows; return the bytes that were written."""
    table.ensure(TableSchema.of(COLUMNS, keys=["id"]))
    transaction = None if number is None else Transaction(writer="sums of a day", number=number)
    rows = pa.table({"id": ids, "name": [f"secret {i}" for i in ids]})
    commit = table.upsert(rows, transaction=transaction)
    return 0 if commit is None else sum(file.bytes for file in commit.added)


def test_each_version_is_one_line(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    first = append(table, [1, 2, 2])
    second = append(table, [2, 3], number=7)
    append(table, [2, 3], number=7)  # Which is not committed again.
    table.compact(full=True)
    written = sum(slice_.file.bytes for slice_ in table.log.head().slices)
    table.restore(1)
    table.expire(retain_versions=1, safety_ms=0)
    of_writer = 'writer="sums of a day" number=7'
    assert lines(caplog, table) == [
        f"version committed: path=PATH version={version} kind={facts}"
        for version, facts in enumerate(
            [
                "create live_rows=0",
                f"append files=1 bytes={first} rows=3 inserts=2 superseded=1 live_rows=2",
                f"append {of_writer} files=1 bytes={second} rows=2 inserts=1 updates=1 live_rows=3",
                f"compact files=1 bytes={written} ranges_taken=2 rows=3 live_rows=3",
                "overwrite from_version=1 retracted=3 restored=2 live_rows=2",
                "expire live_rows=2 since=3",
            ]
        )
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("s3://key:secret@lake/t", "x=s3://***@lake/t", id="secrets are masked"),
        pytest.param("two words", 'x="two words"', id="words stay one field"),
        pytest.param("a\nversion committed:", 'x="a\\nversion committed:"', id="a line stays one"),
        pytest.param("", 'x=""', id="nothing is seen to be nothing"),
        pytest.param(None, "", id="what is not there is left out"),
    ],
)
def test_a_field_is_one_field_of_one_line(value: object, expected: str) -> None:
    assert str(Fields(x=value)) == expected


def test_a_line_that_nobody_wants_is_not_made() -> None:
    class Dear:
        def __str__(self) -> str:
            raise AssertionError("made")

    logging.getLogger("spark_upsert.test").debug("%s", Fields(x=Dear()))
