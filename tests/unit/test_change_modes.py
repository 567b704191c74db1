"""Which changes are left out for a reader: the modes of Spark's change data capture."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.table.changelog.read import ChangeOptions, Deduplication
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

PAIR = [(1, 1, "update_preimage", 2), (1, 5, "update_postimage", 2)]
REPLACED = [(1, 1, "delete", 2), (1, 5, "insert", 2)]
CARRIED = [(2, 2, "update_preimage", 3), (2, 2, "update_postimage", 3)]
CAME, WENT = (3, 3, "insert", 2), (3, 3, "delete", 3)
OVERWRITTEN = [(1, 1, "update_preimage", 4), (1, 7, "update_postimage", 4), (2, 2, "delete", 4)]


@pytest.mark.parametrize(
    ("upper", "how", "expected"),
    [
        (4, {"deduplication": Deduplication.NONE}, [*PAIR, CAME, *CARRIED, WENT]),
        (4, {"deduplication": Deduplication.DROP_CARRYOVERS}, [*PAIR, CAME, WENT]),
        (4, {"compute_updates": False}, [*REPLACED, CAME, WENT]),
        (4, {"deduplication": Deduplication.NET_CHANGES}, PAIR),
        (5, {"deduplication": Deduplication.NET_CHANGES}, OVERWRITTEN),
    ],
    ids=["none", "dropCarryovers", "without updates", "netChanges", "over an overwrite"],
)
def test_a_mode(
    upper: int, how: dict[str, bool | Deduplication], expected: list[tuple[int, int, str, int]]
) -> None:
    table = Table(MemoryStore())
    columns = pa.schema({"id": pa.int64(), "v": pa.int64()})
    table.ensure(TableSchema.of(columns, keys=["id"]))
    table.upsert(pa.table({"id": [1, 2], "v": [1, 2]}))
    table.upsert(pa.table({"id": [1, 3], "v": [5, 3]}))
    table.upsert(pa.table({"id": [2, 3], "v": [2, 3], "gone": [False, True]}), deletes="gone")
    table.upsert(pa.table({"id": [1], "v": [7]}), overwrite=True)
    options = ChangeOptions(columns=("id", "v"), **how)  # type: ignore[arg-type]
    rows = [row for batch in table.iter_changes(2, upper, options) for row in batch.to_pylist()]
    changes = [(r["id"], r["v"], r["_change_type"], r["_commit_version"]) for r in rows]
    assert sorted(changes, key=lambda row: (row[3], row[0], "pre" not in row[2])) == expected
