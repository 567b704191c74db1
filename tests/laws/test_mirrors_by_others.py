"""Readers of Delta that share no code with us see each version of a mirror as the table was.

Each reader is left out where it is not installed, and said so; the reader of `tests.support.delta`
is asked in all other tests of mirrors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.store import LocalStore
from tests.support.mirrored import KINDS, MirroredTable, canonical, plain
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
def test_another_reader_sees_every_version(life: int, read: Read, tmp_path: Path) -> None:
    lived = MirroredTable(life, LocalStore(tmp_path))
    lived.live(ACTS)
    for version, expected in lived.shown.items():
        found = plain(read(str(tmp_path / "_delta"), version), expected.schema)
        assert canonical(found) == canonical(expected), f"version {version}"


@READERS
def test_another_reader_sees_every_type(read: Read, tmp_path: Path) -> None:
    case = all_types(LocalStore(tmp_path))
    expected = case.table.snapshot()
    found = read(str(tmp_path / "_delta"), case.look().version)
    told = plain(found, expected.schema)
    assert canonical(told) == canonical(expected)


@pytest.mark.parametrize("life", range(len(KINDS)))
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
