"""Which changes are left out for a reader: the modes of Spark's change data capture."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.table.changelog.render import ChangeOptions, Deduplication
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

Row = tuple[int, int, str, int]


@pytest.fixture
def table() -> Table:
    """Epoch 1: 1=1, 2=2. Epoch 2: 1=5, 3=3. Epoch 3: 2=2 again, 3 deleted."""
    table = Table(MemoryStore())
    columns = pa.schema({"id": pa.int64(), "v": pa.int64()})
    table.ensure(TableSchema.of(columns, keys=["id"]))
    epochs: list[list[tuple[int, int | None]]]
    epochs = [[(1, 1), (2, 2)], [(1, 5), (3, 3)], [(2, 2), (3, None)]]
    for rows in epochs:
        append(table, rows)
    return table


def append(table: Table, rows: list[tuple[int, int | None]], *, overwrite: bool = False) -> None:
    batch = pa.table(
        {
            "id": [key for key, _ in rows],
            "v": pa.array([value for _, value in rows], pa.int64()),
            "deleted": [value is None for _, value in rows],
        }
    )
    table.upsert(batch, deletes="deleted", overwrite=overwrite)


def read(table: Table, lower: int, upper: int, mode: Deduplication, **how: bool) -> list[Row]:
    options = ChangeOptions(columns=("id", "v"), deduplication=mode, **how)
    batches = table.iter_changes(lower, upper, options)
    rows = [row for batch in batches for row in batch.to_pylist()]
    found = [(r["id"], r["v"], r["_change_type"], r["_commit_version"]) for r in rows]
    return sorted(found, key=lambda row: (row[3], row[0], "pre" not in row[2], row[2]))


PAIR = [(1, 1, "update_preimage", 2), (1, 5, "update_postimage", 2)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        pytest.param(
            Deduplication.NONE,
            [
                *PAIR,
                (3, 3, "insert", 2),
                (2, 2, "update_preimage", 3),
                (2, 2, "update_postimage", 3),
                (3, 3, "delete", 3),
            ],
            id="none shows every change",
        ),
        pytest.param(
            Deduplication.DROP_CARRYOVERS,
            [*PAIR, (3, 3, "insert", 2), (3, 3, "delete", 3)],
            id="dropCarryovers leaves out what changes nothing",
        ),
        pytest.param(
            Deduplication.NET_CHANGES, PAIR, id="netChanges leaves out what came and went"
        ),
    ],
)
def test_a_mode(table: Table, mode: Deduplication, expected: list[Row]) -> None:
    assert read(table, 2, 4, mode) == expected


def test_without_computed_updates_a_change_is_a_delete_and_an_insert(table: Table) -> None:
    assert read(table, 2, 3, Deduplication.DROP_CARRYOVERS, compute_updates=False) == [
        (1, 1, "delete", 2),
        (1, 5, "insert", 2),
        (3, 3, "insert", 2),
    ]


def test_net_changes_reach_over_an_overwrite(table: Table) -> None:
    append(table, [(1, 7)], overwrite=True)
    append(table, [(9, 9)])
    assert read(table, 2, 6, Deduplication.NET_CHANGES) == [
        (1, 1, "update_preimage", 5),
        (1, 7, "update_postimage", 5),
        (2, 2, "delete", 5),
        (9, 9, "insert", 5),
    ]


def test_net_changes_of_all_epochs_are_the_table(table: Table) -> None:
    found = read(table, 1, 4, Deduplication.NET_CHANGES)
    assert [(key, value) for key, value, _, _ in found] == [(1, 5), (2, 2)]
    assert {kind for _, _, kind, _ in found} == {"insert"}
