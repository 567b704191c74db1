"""Where P4 ends, as the README says: a promise is true as it is written, with its limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from tests.support.envelopes import Record, counters_of, records, rows_of, write
from tests.unit.test_debezium_words import OPTIONS, create, delete, key, standing

SALES = pa.table({"id": [1, 1, 2], "amount": [5, 7, 1], "at": [1, 2, 3]})
SUMS = {
    "keys": "id",
    "sequenceBy": "at",
    "mergeEngine": "aggregation",
    "aggregate.amount": "sum",
}


@contextmanager
def _new() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder) / "t"


def _sums(path: Path) -> dict[int, int]:
    return {row["id"]: row["amount"] for row in rows_of(path)}


def test_p4_a_sum_adds_what_comes_again_in_another_epoch() -> None:
    """Rows of an epoch that is tried again count once; in another epoch they are other rows."""
    with _new() as path:
        write(path, SALES, **SUMS)
        write(path, SALES.slice(0, 0), **SUMS)
        assert _sums(path) == {1: 12, 2: 1}
        table = Table.open(str(path))
        for _ in range(2):
            table.upsert(SALES, transaction=Transaction(writer="query", number=7))
        assert _sums(path) == {1: 24, 2: 2}
        table.upsert(SALES, transaction=Transaction(writer="query", number=8))
        assert _sums(path) == {1: 36, 2: 3}


def test_p4_below_forgotten_deletes_arrival_decides_and_what_is_left_out_is_counted() -> None:
    """The same events in two orders of arrival; the delete of key 1 is forgotten at once."""
    gone, other = [create(1, 1, 1), delete(1, 1, 9)], [create(2, 2, 5)]
    found = [_arrived(gone, other), _arrived(other, gone)]
    assert found == [({}, 1), ({2: 2}, 0)]


def _arrived(*batches: list[Record]) -> tuple[dict[int, int], int]:
    """Return the rows that are left, and how many were rejected."""
    rejected = 0
    with _new() as path:
        for batch in batches:
            options = {"tombstoneRetention": "0 epochs", "lateRows": "reject"}
            commit = write(path, records(batch), **OPTIONS, **options)
            rejected += counters_of(commit).rejected
            Table.open(str(path)).compact(full=True)
        return {row["id"]: row["n"] for row in rows_of(path)}, rejected


def test_p4_a_row_without_an_order_is_where_it_arrives() -> None:
    garbage: Record = (key(1), b"?")
    for batch, expected in (
        ([create(1, 1, 1), garbage], ({}, [1])),
        ([garbage, create(1, 1, 1)], ({1: 1}, [])),
    ):
        with _new() as path:
            write(path, records(batch), onError="quarantine", **OPTIONS)
            assert standing(path) == expected
