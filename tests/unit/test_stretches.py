"""How epochs are cut into stretches: where a cut is, why, and what it is computed from."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import HashRange
from spark_upsert.core.precedence import Epoch
from spark_upsert.core.schema import TableSchema
from spark_upsert.table.changelog.changes import (
    EpochRange,
    RangeBoundary,
    cut_into_ranges,
    grouped,
)
from spark_upsert.table.log.manifest import Commit, Kind
from spark_upsert.table.run.file import RunFile
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

SIZES: dict[str, Any] = {"rows": 1, "tombstones": 0, "bytes": 1, "body_bytes": 1, "tail_crc": 0}
FILE = RunFile(path="data/x.arrow", hash_range=HashRange.spanning(0, 0), **SIZES)

KINDS = {
    "append": (Kind.APPEND, 0, (FILE,)),
    "late": (Kind.APPEND, 1, (FILE,)),
    "nothing": (Kind.APPEND, 0, ()),
    "overwrite": (Kind.OVERWRITE, 0, (FILE,)),
    "emptied": (Kind.OVERWRITE, 0, ()),
}


def commit_of(version: int, name: str) -> Commit:
    kind, late, added = KINDS[name]
    return Commit(
        version=version,
        kind=kind,
        timestamp_ms=version,
        token=str(version),
        added=added,
        counters=Counters(late=late).to_json(),
    )


START, LATE = RangeBoundary.START, RangeBoundary.LATE_ROWS
OVERWRITE, BEHIND = RangeBoundary.OVERWRITE, RangeBoundary.AFTER_OVERWRITE
GROUPS: dict[str, list[tuple[RangeBoundary, list[int]]]] = {
    "": [],
    "nothing": [],
    "append append append": [(START, [0, 1, 2])],
    "append nothing append": [(START, [0, 2])],
    "append overwrite append append": [(START, [0]), (OVERWRITE, [1]), (BEHIND, [2, 3])],
    "emptied overwrite": [(OVERWRITE, [0]), (OVERWRITE, [1])],
    "append late append late": [(START, [0]), (LATE, [1, 2]), (LATE, [3])],
    "late append": [(START, [0, 1])],
}


@pytest.mark.parametrize("epochs", GROUPS)
def test_epochs_are_grouped(epochs: str) -> None:
    commits = [commit_of(version, name) for version, name in enumerate(epochs.split())]
    groups = [(cut, [commit.version for commit in group]) for cut, group in grouped(commits)]
    assert groups == GROUPS[epochs]


@pytest.fixture
def table() -> Table:
    """Epochs 1, 2: appends. 3: an overwrite. 4: an append."""
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"]))
    for version in (1, 2, 3, 4):
        table.upsert(pa.table({"id": [version]}), overwrite=version == 3)
    return table


def cut(table: Table, lower: int, upper: int, *, net: bool = False) -> list[EpochRange]:
    return cut_into_ranges(table.log, lower, upper, table.log.head().schema, net=net)


def test_net_changes_over_a_cut_are_one_comparison(table: Table) -> None:
    [stretch] = cut(table, 2, 5, net=True)
    assert (stretch.cut, stretch.is_comparison) == (RangeBoundary.NET, True)
    assert stretch.before.version == 1
    assert list(stretch.times_ms) == [4]
    assert [slice_.epochs.lower for slice_ in stretch.after] == [Epoch(3), Epoch(4)]
    [stretch] = cut(table, 1, 3, net=True)
    assert (stretch.cut, list(stretch.times_ms)) == (START, [1, 2]), "there is no cut"
