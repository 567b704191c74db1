"""Readers of Delta that share no code with us see each version of a mirror as the table was.

Each reader is left out where it is not installed, and said so; the reader of `tests.support.delta`
is asked in all other tests of mirrors.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.routed.plan import table_below
from spark_upsert.store import LocalStore
from spark_upsert.table.log.manifest import Transaction
from tests.support.delta import DeltaTable
from tests.support.mirrored import KINDS, MirroredTable, canonical, plain
from tests.support.routed_worlds import TOPICS, divided, routed_options, row, transaction, write
from tests.unit.test_kept_rows import made as kept_rows
from tests.unit.test_mirror import all_types

ACTS = 12

Read = Callable[[str, int], pa.Table]


def by_delta_rs(place: str, version: int) -> pa.Table:
    """Return rows by delta-rs."""
    deltalake = pytest.importorskip("deltalake")
    table = deltalake.DeltaTable(place, version=version)
    rows = deltalake.QueryBuilder().register("t", table).execute("select * from t")
    return pa.table(rows.read_all())


def by_polars(place: str, version: int) -> pa.Table:
    """Return rows by Polars, which finds the files by delta-rs and reads them itself."""
    pytest.importorskip("deltalake")
    polars = pytest.importorskip("polars")
    with warnings.catch_warnings():
        # It tells of features of its own that are not settled.
        warnings.simplefilter("ignore")
        return polars.scan_delta(place, version=version).collect().to_arrow()


READERS = pytest.mark.parametrize("read", [by_delta_rs, by_polars])


@READERS
@pytest.mark.parametrize("life", range(len(KINDS)))
@pytest.mark.sweep(4)
def test_another_reader_sees_every_version(life: int, read: Read, tmp_path: Path) -> None:
    lived = MirroredTable(life, LocalStore(tmp_path))
    lived.live(ACTS)
    for version, expected in lived.shown.items():
        found = plain(read(str(tmp_path / "_delta"), version), expected.schema)
        assert canonical(found) == canonical(expected), f"version {version}"


@pytest.mark.parametrize("publishes", [False, True], ids=["asked", "behind commits"])
@pytest.mark.parametrize("life", range(len(KINDS)))
@pytest.mark.sweep(3)
def test_delta_rs_sees_the_newest_version_whatever_changed_before(
    life: int, publishes: bool, tmp_path: Path
) -> None:
    """Truncates, quarantined rows, a clock that goes back, properties that change on the way."""
    deltalake = pytest.importorskip("deltalake")
    place, seen = str(tmp_path / "_delta"), []
    lived = MirroredTable(life, LocalStore(tmp_path), publishes=publishes, varies=True)

    def look() -> None:
        version = deltalake.DeltaTable(place).version() if lived.shown else None
        if version in lived.shown and version not in seen:
            expected = lived.shown[version]
            found = plain(by_delta_rs(place, version), expected.schema)
            assert canonical(found) == canonical(expected), f"version {version}"
            seen.append(version)

    lived.live(ACTS, look)
    look()
    assert deltalake.DeltaTable(place).version() == seen[-1] == max(lived.shown)
    lived.look()


@pytest.mark.slow
def test_lives_that_vary_have_truncates_quarantined_rows_and_other_manners() -> None:
    lived, quarantined = MirroredTable(3, publishes=True, varies=True), []
    lived.live(60, lambda: quarantined.append(sum(b.num_rows for b in lived.table.quarantine())))
    assert lived.done["truncate"]
    assert lived.done["change_manner"]
    assert lived.done["set_clock"]
    assert max(quarantined)
    found = [DeltaTable(lived.target, version) for version in lived.shown]
    assert {each.has_feed for each in found} == {False, True}
    assert {"upsertflow" in each.protocol["writerFeatures"] for each in found} == {False, True}


def test_52_delta_rs_sees_each_of_many_tables(tmp_path: Path) -> None:
    root, dice = LocalStore(tmp_path), random.Random(5)
    options = routed_options(publish="delta")
    for number in range(6):
        tasks = divided(dice, [row(dice, topic) for topic in TOPICS for _ in range(3)])
        write(root, options, tasks, transaction(number), overwrite=number == 4)
        if number == 3:
            table_below(root, "last").compact(full=True)
            table_below(root, "sum").restore(2)
        for topic in TOPICS:
            expected = table_below(root, topic).snapshot()
            place = str(tmp_path / topic / "_delta")
            version = DeltaTable(LocalStore(place)).version
            found = plain(by_delta_rs(place, version), expected.schema)
            assert canonical(found) == canonical(expected), f"{topic} behind batch {number}"


def test_delta_rs_sees_every_version_of_the_rows_that_a_view_keeps(tmp_path: Path) -> None:
    """Batches of the query come in any order, and again; deletes among them."""
    table, dice, shown = kept_rows(tmp_path / "kept", publish="delta"), random.Random(7), {}
    place = tmp_path / "kept" / "_delta"
    fields = [*table.schema.columns, *table.schema.order, pa.field("gone", pa.bool_())]
    for number in range(12):
        at = dice.randrange(20)
        rows = [
            {"id": id_, "v": f"v{id_} {at}", "_commit_version": at, "_diff": 1, "gone": id_ < 2}
            for id_ in dice.sample(range(8), 3)
        ]
        query = Transaction(
            writer=Transaction.writer_of_query("q"), number=number, is_consecutive=True
        )
        given = pa.Table.from_pylist(rows, schema=pa.schema(fields))
        for _ in range(2):
            table.upsert(given, deletes="gone", transaction=query)
        if number % 5 == 4:
            table.compact(full=True)
        shown[DeltaTable(LocalStore(place)).version] = table.snapshot()
    assert len(shown) > 6
    for version, expected in shown.items():
        found = plain(by_delta_rs(str(place), version), expected.schema)
        assert canonical(found) == canonical(expected), f"version {version}"


@READERS
def test_another_reader_sees_every_type(read: Read, tmp_path: Path) -> None:
    case = all_types(LocalStore(tmp_path))
    expected = case.table.snapshot()
    found = read(str(tmp_path / "_delta"), case.look().version)
    told = plain(found, expected.schema)
    assert canonical(told) == canonical(expected)


@pytest.mark.parametrize("life", range(len(KINDS)))
@pytest.mark.sweep(2)
def test_a_filter_of_another_reader_skips_no_row(life: int, tmp_path: Path) -> None:
    """Bounds are used by readers: NaN is above all numbers, whatever Parquet says."""
    deltalake = pytest.importorskip("deltalake")
    lived = MirroredTable(life, LocalStore(tmp_path))
    lived.live(ACTS)
    whole = lived.table.snapshot()
    table = deltalake.DeltaTable(str(tmp_path / "_delta"))
    query = deltalake.QueryBuilder().register("t", table)
    for condition, keep in _CONDITIONS.items():
        rows = pa.table(query.execute(f"select * from t where {condition}").read_all())
        wanted = whole.filter(pa.array([bool(keep(row)) for row in whole.to_pylist()]))
        assert canonical(plain(rows, whole.schema)) == canonical(wanted), condition


_CONDITIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "id > 3": lambda row: row["id"] > 3,
    "f > 2.0": lambda row: row["f"] is not None and not row["f"] <= 2.0,
    "x = ''": lambda row: row["x"] == "",
    "name >= 'c'": lambda row: row["name"] >= "c",
    "n is null": lambda row: row["n"] is None,
}
