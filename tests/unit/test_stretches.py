"""How epochs are cut into stretches: where a cut is, why, and what it is computed from."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_upsert.core.key_hash import HashRange
from spark_upsert.core.precedence import Epoch
from spark_upsert.core.schema import TableSchema
from spark_upsert.table.changelog.epoch_ranges import (
    RangeBoundary,
    Stretch,
    cut_into_stretches,
    grouped,
)
from spark_upsert.table.log.manifest import Commit, Kind
from spark_upsert.table.run.file import RunFile
from spark_upsert.table.state.counters import Counters
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore

FILE = RunFile(
    path="data/x.arrow",
    rows=1,
    tombstones=0,
    bytes=1,
    hash_range=HashRange.spanning(0, 0),
    body_bytes=1,
    tail_crc=0,
)

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


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        pytest.param("", [], id="nothing makes no stretch"),
        pytest.param("nothing", [], id="epochs without rows make no stretch"),
        pytest.param(
            "append append append", [(RangeBoundary.START, [0, 1, 2])], id="appends are one stretch"
        ),
        pytest.param(
            "append nothing append",
            [(RangeBoundary.START, [0, 2])],
            id="an epoch without rows is left out",
        ),
        pytest.param(
            "append overwrite append append",
            [
                (RangeBoundary.START, [0]),
                (RangeBoundary.OVERWRITE, [1]),
                (RangeBoundary.BEHIND_OVERWRITE, [2, 3]),
            ],
            id="an overwrite is a stretch of its own",
        ),
        pytest.param(
            "emptied overwrite",
            [(RangeBoundary.OVERWRITE, [0]), (RangeBoundary.OVERWRITE, [1])],
            id="two overwrites are two stretches, one without rows too",
        ),
        pytest.param(
            "append late append late",
            [
                (RangeBoundary.START, [0]),
                (RangeBoundary.LATE_ROWS, [1, 2]),
                (RangeBoundary.LATE_ROWS, [3]),
            ],
            id="late rows begin a stretch",
        ),
        pytest.param(
            "late append", [(RangeBoundary.START, [0, 1])], id="late rows at the start cut nothing"
        ),
    ],
)
def test_epochs_are_grouped(epochs: str, expected: list[tuple[RangeBoundary, list[int]]]) -> None:
    commits = [commit_of(version, name) for version, name in enumerate(epochs.split())]
    found = [(cut, [commit.version for commit in group]) for cut, group in grouped(commits)]
    assert found == expected


@pytest.fixture
def table() -> Table:
    """Epochs 1, 2: appends. 3: an overwrite. 4: an append."""
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(pa.schema({"id": pa.int64()}), keys=["id"]))
    for version in (1, 2, 3, 4):
        table.upsert(pa.table({"id": [version]}), overwrite=version == 3)
    return table


def cut(table: Table, lower: int, upper: int, *, net: bool = False) -> list[Stretch]:
    return cut_into_stretches(table.log, lower, upper, table.log.head().schema, net=net)


def test_a_stretch_is_computed_from_the_state_just_before_it(table: Table) -> None:
    found = cut(table, 1, 5)
    assert [stretch.before.version for stretch in found] == [0, 2, 3]
    assert [list(stretch.times_ms) for stretch in found] == [[1, 2], [3], [4]]
    assert [stretch.is_comparison for stretch in found] == [False, True, False]


def test_a_stretch_holds_what_its_epochs_added(table: Table) -> None:
    epochs = [[slice_.epochs.lower for slice_ in s.after] for s in cut(table, 1, 5)]
    assert epochs == [[1, 2], [3], [4]]


def test_net_changes_over_a_cut_are_one_comparison(table: Table) -> None:
    [stretch] = cut(table, 2, 5, net=True)
    assert (stretch.cut, stretch.is_comparison) == (RangeBoundary.NET, True)
    assert stretch.before.version == 1
    assert list(stretch.times_ms) == [4]
    assert [slice_.epochs.lower for slice_ in stretch.after] == [Epoch(3), Epoch(4)]


def test_net_changes_without_a_cut_are_one_stretch_like_others(table: Table) -> None:
    [stretch] = cut(table, 1, 3, net=True)
    assert (stretch.cut, list(stretch.times_ms)) == (RangeBoundary.START, [1, 2])


@pytest.mark.parametrize(("lower", "upper"), [(2, 2), (5, 5), (0, 1)])
def test_a_range_without_epochs_makes_no_stretch(table: Table, lower: int, upper: int) -> None:
    assert cut(table, lower, upper) == []
