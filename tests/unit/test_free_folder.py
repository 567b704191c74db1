"""A table is made in a folder of its own: other files are refused unless an option allows them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert import Table
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError, OtherTableError, UpsertFlowError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.routed.plan import plan_routed
from spark_upsert.routed.replay import replay_dead_letters
from spark_upsert.store import LocalStore
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.keep_history import keep_history
from spark_upsert_sink.writers import plan_sink
from tests.support.routed_worlds import routed_options, rows_of, transaction, write
from tests.support.stores import MemoryStore

COLUMNS = pa.schema({"id": pa.int64(), "n": pa.int64()})
ROWS = pa.table({"id": [1], "n": [1]})

FOREIGN = {
    "a Delta table": "_delta_log/00000000000000000000.json",
    "a Hudi table": ".hoodie/hoodie.properties",
    "'part-0.parquet'": "part-0.parquet",
    "'metadata'": "metadata/v1.metadata.json",
    "'day=1'": "day=1/part-0.parquet",
    "'data/part-0.parquet'": "data/part-0.parquet",
    "'data/day=1'": "data/day=1/part-0.parquet",
}

HARMLESS = (
    "_checkpoints/metadata",
    ".crc",
    "_SUCCESS",
    "_consumers/reader.json",
    "data/1f3870be274f6c49b3e31a0c6728957f.arrow",
)


def put(root: Path, path: str) -> None:
    """Make a file with some bytes."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"x")


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def create(path: Path, *, allow: bool = False) -> None:
    Table.create(str(path), COLUMNS, keys=["id"], allow_non_empty_path=allow)


def ensure(path: Path, *, allow: bool = False) -> None:
    schema = TableSchema.of(COLUMNS, keys=["id"])
    Table(LocalStore(path)).ensure(schema, allow_non_empty_path=allow)


def plan(path: Path, *, allow: bool = False) -> None:
    """Plan a write of Spark, whose commit makes the table."""
    allowed = {"allowNonEmptyPath": "true"} if allow else {}
    options = WriteOptions.parse({"path": str(path), "keys": "id", **allowed})
    plan_sink(options, COLUMNS, overwrite=False)


WAYS: Mapping[str, Callable[..., None]] = {"create": create, "ensure": ensure, "a write": plan}
each_way = pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)


@each_way
def test_a_folder_with_files_of_others_is_refused_unless_allowed(
    make: Callable[..., None], tmp_path: Path
) -> None:
    for number, (named, path) in enumerate(FOREIGN.items()):
        root = tmp_path / str(number)
        put(root / "t", path)
        with pytest.raises(OptionError, match=f"it holds {named}"):
            make(root / "t")
        assert files(root) == {f"t/{path}"}
        make(root / "t", allow=True)


@each_way
def test_a_folder_below_that_of_a_delta_table_is_refused_unless_allowed(
    make: Callable[..., None], tmp_path: Path
) -> None:
    put(tmp_path, FOREIGN["a Delta table"])
    with pytest.raises(OptionError, match=f"'{tmp_path}' holds a Delta table"):
        make(tmp_path / "a" / "t")
    assert not (tmp_path / "a").exists()
    make(tmp_path / "a" / "t", allow=True)


@each_way
def test_files_that_are_no_part_of_a_table_of_others_are_no_matter(
    make: Callable[..., None], tmp_path: Path
) -> None:
    """A run of a task that was killed is among them: the write may be tried again."""
    for path in HARMLESS:
        put(tmp_path / "t", path)
    make(tmp_path / "t")


def test_a_table_that_is_there_is_opened_whatever_lies_in_its_folder(tmp_path: Path) -> None:
    create(tmp_path)
    for path in FOREIGN.values():
        put(tmp_path, path)
    ensure(tmp_path)
    plan(tmp_path)
    Table.open(str(tmp_path)).upsert(ROWS)


def test_a_table_that_keeps_a_history(tmp_path: Path) -> None:
    create(tmp_path / "t")
    put(tmp_path / "kept", FOREIGN["'part-0.parquet'"])
    with pytest.raises(OptionError, match="part-0"):
        keep_history(Table.open(str(tmp_path / "t")), Table(LocalStore(tmp_path / "kept")))


ROOTS = {"a Delta table": "_delta_log/0.json", "'part-0.parquet'": "part-0.parquet"}


@pytest.mark.parametrize(("named", "path"), ROOTS.items(), ids=ROOTS)
def test_a_root_with_files_of_others_is_refused_unless_allowed(named: str, path: str) -> None:
    store = MemoryStore()
    store.objects[path] = b"x"
    with pytest.raises(OptionError, match=f"it holds {named}"):
        write(store, routed_options(), [ROUTED_ROWS], transaction(0))
    assert list(store.objects) == [path]
    write(store, routed_options(allowNonEmptyPath="true"), [ROUTED_ROWS], transaction(0))
    write(store, routed_options(), [ROUTED_ROWS], transaction(1))


ROUTED_ROWS = rows_of(random.Random(1))


def test_a_root_may_hold_folders_of_others() -> None:
    store = MemoryStore()
    store.objects["theirs/_delta_log/0.json"] = b"x"
    assert write(store, routed_options(), [ROUTED_ROWS], transaction(0)) is not None


def test_a_table_of_many_whose_folder_has_files_of_others_is_parked_or_stops_the_write() -> None:
    topic = ROUTED_ROWS[0]["topic"]
    refusing, parking = MemoryStore(), MemoryStore()
    for store in (refusing, parking):
        store.objects[f"{topic}/part-0.parquet"] = b"x"
    with pytest.raises(OptionError, match=f"table '{topic}'.*part-0"):
        write(refusing, routed_options(onTableError="fail"), [ROUTED_ROWS], transaction(0))
    write(parking, routed_options(onTableError="park"), [ROUTED_ROWS], transaction(0))
    assert Table(PrefixStore(parking, topic)).log.try_head() is None
    allowed = routed_options(**{f"table.{topic}.allowNonEmptyPath": "true"})
    write(refusing, allowed, [ROUTED_ROWS], transaction(0))
    assert replay_dead_letters(parking, options={"allowNonEmptyPath": "true"})
    for store in (refusing, parking):
        assert Table(PrefixStore(store, topic)).log.try_head() is not None


def test_a_root_below_a_delta_table(tmp_path: Path) -> None:
    put(tmp_path, FOREIGN["a Delta table"])
    options = RoutedOptions.parse({"path": f"{tmp_path}/lake/{{topic}}", "keys": "id"})
    with pytest.raises(OptionError, match="holds a Delta table"):
        plan_routed(options, pa.schema({"topic": pa.string(), "id": pa.int64()}))


@pytest.mark.parametrize(
    "path", ["place/part-0.parquet", "place/_delta_log/0.json", "_delta_log/0.json"]
)
def test_a_mirror_is_not_begun_among_files_of_others(path: str, tmp_path: Path) -> None:
    put(tmp_path / "outer", path)
    place = str(tmp_path / "outer" / "place")
    published = {"publish": "delta", "publishPath": place}
    before = files(tmp_path)
    with pytest.raises(UpsertFlowError):
        Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"], properties=published)
    assert files(tmp_path) == before
    create(tmp_path / "t")
    with pytest.raises((OtherTableError, UpsertFlowError)):
        Table.open(str(tmp_path / "t")).publish(place)
    assert {each for each in files(tmp_path) if not each.startswith("t/")} == before


def test_a_table_allowed_in_the_folder_of_a_delta_table_is_published(tmp_path: Path) -> None:
    put(tmp_path, FOREIGN["a Delta table"])
    create(tmp_path, allow=True)
    table = Table.open(str(tmp_path))
    table.upsert(ROWS)
    assert table.publish().shown == 1


def test_the_folders_above_one_in_a_bucket() -> None:
    objects = pytest.importorskip("spark_upsert.store.object_store")
    store = objects.ObjectStore("s3://bucket/lake/orders", {"region": "eu-west-1"})
    assert [each.url for each in store.iter_above()] == ["s3://bucket/lake", "s3://bucket"]
    assert [each.url for each in PrefixStore(store, "a/b").iter_above()] == [
        "s3://bucket/lake/orders/a",
        "s3://bucket/lake/orders",
    ]
