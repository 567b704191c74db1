"""Readers of Delta that others wrote see each version of a mirror, and each change, as the table.

Spark with Delta, DuckDB and delta-kernel, each in an environment of its own; delta-rs and Polars
are asked in `tests/laws/test_mirrors_by_others.py`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from integration.pages import code_of
from integration.readers.apart import READERS, Reader, RefusedError, running
from spark_upsert.core.schema import TableSchema
from spark_upsert.delta.checkpoints import checksum_path
from spark_upsert.store import LocalStore
from spark_upsert.table.table import Table
from tests.support.delta import DeltaTable
from tests.support.mirrored import KINDS, MirroredTable, as_now, canonical, folded, plain
from tests.support.tables import Ticks
from tests.unit.test_mirror import Case, all_types

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGE = "docs/delta.md"
ACTS = 8
AGE_S = 3_600.0
"""A life is that old when it begins: Spark and delta-kernel hold times against their own clocks,
and refuse what is older than the retention."""

LIVES = pytest.mark.parametrize("life", range(len(KINDS)))
ALL = pytest.mark.parametrize("name", READERS)


@pytest.fixture(scope="module")
def readers(
    spark_environ: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Reader]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(running(name, tmp_path_factory.mktemp(name), spark_environ))
            for name in READERS
        }


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> list[MirroredTable]:
    """Return a life of each kind of table, with a change feed."""
    folder = tmp_path_factory.mktemp("lives")
    return [lived(life, folder / str(life)) for life in range(len(KINDS))]


def lived(life: int, folder: Path) -> MirroredTable:
    """Live once more what a number says, in a folder."""
    folder.mkdir()
    found = MirroredTable(life, LocalStore(folder), now_s=time.time() - AGE_S, has_feed=True)
    found.live(ACTS)
    return found


def place_of(lived: MirroredTable) -> str:
    return lived.target.url.removeprefix("file://")


def rows_at(lived: MirroredTable, version: int, columns: pa.Schema) -> Counter[str]:
    """Return the rows of a version, as a later one has them."""
    return Counter(canonical(as_now(lived.shown[version], columns)))


VALIDATED = """
from py4j.protocol import Py4JError

delta = spark._jvm.org.apache.spark.sql.delta.DeltaLog
delta.clearCache()
snapshot = delta.forTable(spark._jsparkSession, PLACE).unsafeVolatileSnapshot()
try:
    context = getattr(snapshot, "validateChecksum$default$1")()
    said = str(snapshot.checksumOpt().isDefined() and snapshot.validateChecksum(context))
except Py4JError as error:
    said = str(error)
found = spark.createDataFrame([(said,)], "said string")
"""
"""What Delta itself says of the checksum of the newest version, beside the log's own replay."""

# -- rows ----------------------------------------------------------------------------------


@LIVES
@ALL
def test_a_reader_sees_every_version(
    name: str, life: int, readers: Mapping[str, Reader], lives: list[MirroredTable]
) -> None:
    shown = lives[life].shown
    # The package of delta-kernel knows no other version than the newest.
    for version in shown if name != "kernel" else [max(shown)]:
        found = readers[name].ask("rows", place=place_of(lives[life]), version=version)
        columns = shown[version].schema
        assert found.column_names == columns.names, f"version {version}"
        told = canonical(plain(found, columns))
        assert told == canonical(shown[version]), f"version {version}"


@LIVES
def test_delta_finds_the_checksum_of_a_version_right(
    life: int, lives: list[MirroredTable], readers: Mapping[str, Reader]
) -> None:
    code = VALIDATED.replace("PLACE", repr(place_of(lives[life])))
    found = readers["spark"].ask("code", code=code, name="found")
    assert found.column("said").to_pylist() == ["True"]


def test_delta_would_tell_of_a_wrong_checksum(
    readers: Mapping[str, Reader], tmp_path: Path
) -> None:
    case = Case(store=LocalStore(tmp_path))
    case.put((1, "a"))
    case.publish()
    path = checksum_path(0)
    case.target.put(path, case.target.read(path).replace(b'"numFiles":1', b'"numFiles":2'))
    code = VALIDATED.replace("PLACE", repr(str(tmp_path / "_delta")))
    [said] = readers["spark"].ask("code", code=code, name="found").column("said").to_pylist()
    assert "numFiles" in said or "files" in said, said


@ALL
def test_a_reader_sees_every_type(name: str, readers: Mapping[str, Reader], tmp_path: Path) -> None:
    case = all_types(LocalStore(tmp_path))
    expected = case.table.snapshot()
    found = readers[name].ask("rows", place=str(tmp_path / "_delta"), version=case.look().version)
    assert canonical(plain(found, expected.schema)) == canonical(expected)


@ALL
def test_a_reader_sees_names_as_they_are(
    name: str, readers: Mapping[str, Reader], tmp_path: Path
) -> None:
    names = ["a b", "c,d;{}()=", "p.q", "日本.x y"]
    columns = pa.schema({"id": pa.int64(), **dict.fromkeys(names, pa.string())})
    case = Case(columns, store=LocalStore(tmp_path))
    case.put((1, *"abcd"), (2, *"efgh"))
    case.publish()
    case.put((2, *"wxyz"))
    case.publish()
    found = readers[name].ask("rows", place=str(tmp_path / "_delta"), version=1)
    assert canonical(plain(found, columns)) == canonical(case.table.snapshot())


CONDITIONS = {
    "id > 3": pc.field("id") > 3,
    "f > 2.0": pc.is_nan(pc.field("f")) | (pc.field("f") > 2.0),
    "x = ''": pc.field("x") == "",
    "name >= 'c'": pc.field("name") >= "c",
    "n is null": pc.is_null(pc.field("n")),
}


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("name", ["spark", "duckdb"])
def test_a_filter_skips_no_row(
    name: str, condition: str, readers: Mapping[str, Reader], lives: list[MirroredTable]
) -> None:
    """Bounds are used by readers: NaN is above all numbers, whatever Parquet says."""
    for each in lives[2::3]:
        expected = each.table.snapshot().filter(CONDITIONS[condition])
        found = readers[name].ask("rows", place=place_of(each), where=condition)
        assert canonical(plain(found, expected.schema)) == canonical(expected)


def test_49_a_time_means_the_same_in_both_tables(
    readers: Mapping[str, Reader], lives: list[MirroredTable]
) -> None:
    each = lives[0]
    times = DeltaTable(each.target).times
    for version, time_ms in enumerate(times):
        stamp = pa.scalar(time_ms, pa.timestamp("ms")).cast(pa.string()).as_py()
        found = readers["spark"].ask("rows", place=place_of(each), time=stamp)
        expected = each.shown[version]
        assert canonical(plain(found, expected.schema)) == canonical(expected)


# -- changes -------------------------------------------------------------------------------


@LIVES
@pytest.mark.parametrize("name", ["spark", "kernel"])
def test_a_feed_leads_from_each_version_to_the_next(
    name: str, life: int, readers: Mapping[str, Reader], lives: list[MirroredTable]
) -> None:
    each = lives[life]
    for version in range(1, max(each.shown) + 1):
        columns = each.shown[version].schema
        of_it = {"place": place_of(each), "first": version, "last": version}
        if name == "spark" and not _fits(columns, each.table.schema.columns):
            with pytest.raises(RefusedError, match="INCOMPATIBLE_DATA_SCHEMA"):
                readers[name].ask("feed", **of_it)
            continue
        feed = readers[name].ask("feed", **of_it)
        before = rows_at(each, version - 1, columns)
        behind = Counter(canonical(each.shown[version]))
        assert folded(before, feed, columns) == behind, f"version {version}"


def _fits(columns: pa.Schema, newest: pa.Schema) -> bool:
    """Return whether Spark reads a feed: it takes the newest types, wherever the feed ends."""
    return all(newest.field(each.name).type == each.type for each in columns)


@LIVES
def test_50_a_stream_of_changes_folds_to_the_rows(
    life: int, readers: Mapping[str, Reader], tmp_path: Path
) -> None:
    """File by file, across compactions, overwrites and restores.

    Without what Spark refuses: a stream ends where a column becomes wider, and begins anew there.
    """
    each = MirroredTable(life, LocalStore(tmp_path), now_s=time.time() - AGE_S, has_feed=True)
    each.append()
    each.publish()
    each.live(ACTS, without=[each.widen, each.add_column, each.expire])
    each.squeeze()
    each.publish()
    feed = readers["spark"].ask("stream", place=place_of(each), first=0, feed=True)
    columns = each.shown[0].schema
    rows: Counter[str] = Counter()
    for version in sorted(each.shown):
        of_it = feed.filter(pc.equal(feed.column("_commit_version"), version))
        rows = folded(rows, of_it, columns)
        assert rows == Counter(canonical(each.shown[version])), f"version {version}"
    batches = pc.max(feed.column("_batch")).as_py()
    assert batches > 2, "the stream came in one piece"


def test_a_stream_without_a_feed_sees_appends_once_and_no_compaction(
    readers: Mapping[str, Reader], tmp_path: Path
) -> None:
    """A compaction is marked as one that changes no data, which streams pass over."""
    path = str(tmp_path / "table")
    schema = pa.schema({"id": pa.int64(), "x": pa.string()})
    table = Table.create(path, schema, keys=["id"])
    for number in range(5):
        ids = list(range(5 * number, 5 * number + 5))
        table.upsert(pa.table({"id": ids, "x": [f"x{each}" for each in ids]}))
        table.publish()
    assert table.compact(full=True)
    version = table.publish().delta_version
    assert DeltaTable(LocalStore(tmp_path / "table" / "_delta"), version).data_changes == {False}
    found = readers["spark"].ask("stream", place=f"{path}/_delta", first=0, feed=False)
    assert sorted(found.column("id").to_pylist()) == list(range(25))


def test_30_a_feed_across_a_wider_type_is_refused_by_spark(
    readers: Mapping[str, Reader], tmp_path: Path
) -> None:
    """What the page says of it: a reader of the feed begins anew behind such a commit."""
    columns = pa.schema({"id": pa.int64(), "n": pa.int32()})
    case = Case(columns, store=LocalStore(tmp_path), clock=Ticks(time.time() - AGE_S))
    case.put((1, 1))
    case.publish(change_feed=True)
    case.put((2, 2))
    case.publish()
    wide = TableSchema.of(
        pa.schema({"id": pa.int64(), "n": pa.int64()}), keys=("id",), scope=case.schema.scope
    )
    case.table.alter(wide)
    case.publish()
    case.put((3, 1 << 40))
    case.publish()
    place = str(tmp_path / "_delta")
    with pytest.raises(RefusedError, match="INCOMPATIBLE_DATA_SCHEMA"):
        readers["spark"].ask("feed", place=place, first=1, last=3)
    found = readers["spark"].ask("feed", place=place, first=3, last=3)
    assert found.column("n").to_pylist() == [1 << 40]
    assert readers["spark"].ask("rows", place=place, version=1).num_rows == 2


# -- writers -------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["INSERT INTO {} VALUES (9, 'x')", "OPTIMIZE {}"])
def test_29_spark_writes_into_no_mirror(
    statement: str, readers: Mapping[str, Reader], tmp_path: Path
) -> None:
    case = Case(store=LocalStore(tmp_path))
    case.put((1, "a"), (2, "b"))
    case.put((2, "c"))
    case.publish()
    name = f"delta.`{tmp_path / '_delta'}`"
    with pytest.raises(RefusedError, match="DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"):
        readers["spark"].ask("statement", sql=statement.format(name))
    history = readers["spark"].ask("statement", sql=f"DESCRIBE HISTORY {name}")
    assert history.num_rows == 1


def test_what_stands_on_the_page_runs(readers: Mapping[str, Reader], tmp_path: Path) -> None:
    """As it stands there; in a catalog nothing needs a refresh behind a commit."""

    def codes(language: str) -> list[str]:
        found = code_of(PAGE, language, runner="integration/test_mirror_readers.py")
        return [code.replace("/lake/", f"{tmp_path}/") for code in found]

    schema = pa.schema({"order_id": pa.int64(), "amount": pa.int64()})
    orders = Table.create(str(tmp_path / "orders"), schema, keys=["order_id"])
    orders.upsert(pa.table({"order_id": [1, 2], "amount": [5, 6]}))
    orders.publish(change_feed=True)
    scan, create = codes("sql")
    [code] = codes("python")
    readers["spark"].ask("statement", sql=create)
    orders.upsert(pa.table({"order_id": [2], "amount": [7]}))
    orders.publish()
    assert readers["duckdb"].ask("statement", sql=scan).to_pydict() == {"sum(amount)": [12]}
    counts = {
        name: readers["spark"].ask("code", code=code, name=name).num_rows
        for name in ("latest", "before", "changes")
    }
    assert counts == {"latest": 2, "before": 2, "changes": 2}
    found = readers["spark"].ask("statement", sql="SELECT amount FROM orders ORDER BY amount")
    assert found.column("amount").to_pylist() == [5, 7]
    # The names of a catalog outlive a test.
    readers["spark"].ask("statement", sql="DROP TABLE orders")
