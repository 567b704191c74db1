"""Copies of PostgreSQL tables: the text form, what a snapshot contains, and rows by table."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.postgres.copies import Visibility, split_copy
from spark_upsert.postgres.spool import RowsByTable


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["1\ta", "2\tb"], [["1", "2"], ["a", "b"]]),
        ([r"\N" + "\t", "\t" + r"\N"], [[None, ""], ["", None]]),
        ([r"\\N" + "\t" + r"a\tb\nc\\d"], [["\\N"], ["a\tb\nc\\d"]]),
        ([r"\\\N" + "\t" + r"\\\\"], [["\\N"], ["\\\\"]]),
        (["é\t" + r"\b\f\r\v"], [["é"], ["\b\f\r\v"]]),
        (["N\t\\\\", r"\\" + "\tN"], [["N", "\\"], ["\\", "N"]]),
    ],
)
def test_lines_of_copy_become_columns(lines: list[str], expected: list[list[str | None]]) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    assert [column.to_pylist() for column in split_copy(data, 2, len(lines))] == expected


def test_no_line_has_no_rows_and_no_column_no_array() -> None:
    assert [column.to_pylist() for column in split_copy(b"", 2, 0)] == [[], []]
    assert split_copy(b"\n\n", 0, 2) == []


def test_a_snapshot_contains_what_committed_before_it() -> None:
    snapshot = Visibility.parse("10:20:12,15")
    assert str(snapshot) == "10:20:12,15"
    xids = np.array([3, 9, 10, 12, 13, 15, 19, 20, 25])
    expected = [True, True, True, False, True, False, True, False, False]
    assert snapshot.contains(xids).tolist() == expected
    assert Visibility.parse("10:10:").contains(np.array([9, 10])).tolist() == [True, False]


def test_transaction_ids_go_on_after_32_bits() -> None:
    limit = 1 << 32
    # Just before the wrap, with a running transaction; the stream goes on after it.
    before = Visibility.parse(f"{limit - 5}:{limit - 2}:{limit - 4}")
    xids = np.array([limit - 6, limit - 4, limit - 3, limit - 2, 3, 100])
    assert before.contains(xids).tolist() == [True, False, True, False, False, False]
    # Just after it; the stream begins before it.
    after = Visibility.parse(f"{limit - 3}:{limit + 5}:{limit + 3}")
    xids = np.array([limit - 4, limit - 1, 3, 4, 5])
    assert after.contains(xids).tolist() == [True, True, False, True, False]


def batch(**columns: list[object]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize("memory_bytes", [1, 100, 1 << 20])
def test_rows_by_table_come_back_in_order_with_all_columns(memory_bytes: int) -> None:
    with RowsByTable(memory_bytes=memory_bytes) as rows:
        for number in range(5):
            rows.add("a", batch(id=[number]))
            rows.add("b", batch(id=[number], v=[str(number)]))
        rows.add("a", batch(id=[5], v=["new"]))
        rows.add("empty", batch(id=[1]).slice(1))
        assert rows.counts == {"a": 6, "b": 5, "empty": 0}
        assert rows.schema("a").names == ["id", "v"]
        read = [row for part in rows.rows("a") for row in part.to_pylist()]
        assert [row["id"] for row in read] == list(range(6))
        assert [row["v"] for row in read] == [None] * 5 + ["new"]
        assert [part.num_rows for part in rows.rows("empty")] == [0]
        assert sum(part.num_rows for part in rows.rows("b")) == 5
        assert rows.bytes > 0
