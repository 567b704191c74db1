"""Indexes, piece by piece: two at once, faults, bounds, types, and what they are as tables."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from integration.pages import code_of
from spark_upsert.core.schema import ErrorPolicy, Scope, TableSchema
from spark_upsert.errors import (
    CorruptionError,
    DataLossError,
    OptionError,
    SchemaError,
    UpsertFlowError,
)
from spark_upsert.metadata import VIEWS
from spark_upsert.options.inputs import Pattern
from spark_upsert.options.read import Metadata
from spark_upsert.streams.inputs.discovered import Discovery
from spark_upsert.table.index import build
from spark_upsert.table.index import build as advancing
from spark_upsert.table.index import index as index_rows
from spark_upsert.table.index.build import advance
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.properties import index_folder
from spark_upsert.table.state import snapshot as snapshots
from spark_upsert.table.state.reduce import RowsByKey
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    forget_runs_and_logs,
)

COLUMNS = pa.schema({"id": pa.int64(), "c": pa.int64(), "v": pa.string()})
WITHOUT_UPKEEP = patch.object(build.Indexes, "follow", lambda self, commit: None)


def table_of(store: MemoryStore, *, index_by: str = "c", **how: Any) -> Table:
    table = Table(store)
    table.ensure(TableSchema.of(COLUMNS, keys=["id"], **how), {"indexBy": index_by})
    return table


def rows(*records: tuple[int | None, int | None]) -> pa.Table:
    ids, values = (pa.array([r[place] for r in records], pa.int64()) for place in (0, 1))
    return pa.table({"id": ids, "c": values, "v": ["x"] * len(records)})


def ids(table: Table, *values: Any, column: str = "c", version: int | None = None) -> list[int]:
    """Return the keys of the rows that have one of some values."""
    return sorted(table.rows_having(column, values, version=version).column("id").to_pylist())


def index_of(table: Table, column: str = "c") -> Index:
    index = table.index_of(column)
    assert index is not None
    return index


def entries(table: Table, *values: Any, column: str = "c") -> list[int]:
    """Return the keys that the index alone has for some values."""
    return sorted(index_of(table, column).keys_having(pa.array(values)).keys["id"].to_pylist())


def shown_version(table: Table) -> int:
    return index_of(table).keys_having(pa.array([0])).shows_version


def split(store: MemoryStore) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the objects of a table, and those of its indexes."""
    index = {p: data for p, data in store.objects.items() if p.startswith("_index/")}
    return {p: data for p, data in store.objects.items() if p not in index}, index


def test_an_index_is_a_table_below_the_table() -> None:
    store = MemoryStore()
    table_of(store).upsert(rows((1, 7), (2, 8), (3, None)))
    index = Table(index_of(Table(store)).store)
    assert index.store.url == f"{store.url}/_index/c"
    assert index.schema.keys == ("c", "id")
    assert index.schema.hash_prefix == 1
    expected = [{"c": 7, "id": 1}, {"c": 8, "id": 2}]
    assert sorted(index.snapshot().to_pylist(), key=str) == expected
    assert ids(Table(store), None, 7) == [1], "a null finds nothing"
    assert all(path.startswith(("_log/", "data/", "_index/c/")) for path in store.objects)
    assert Discovery(store, Pattern.parse("*/*")).folders() == [], "it is no table of a root"


@pytest.mark.parametrize("name", ["a/b", "..", "Ü %", "c"])
def test_a_name_of_a_column_is_a_name_of_a_folder(name: str) -> None:
    assert index_folder(name).count("/") == 1
    assert ".." not in index_folder(name)
    columns = pa.schema({"id": pa.int64(), name: pa.int64()})
    table = Table(MemoryStore())
    table.ensure(TableSchema.of(columns, keys=["id"]), {"indexBy": f"`{name}`"})
    table.upsert(pa.table([[1], [7]], schema=columns))
    assert ids(table, 7, column=name) == [1]


LISTS = pa.schema({"id": pa.int64(), "l": pa.list_(pa.int64())})
BAD = {
    "an unknown column": ("x", COLUMNS, SchemaError, "'x'"),
    "the key": ("id", COLUMNS, OptionError, "the whole key"),
    "a column twice": ("c,C", COLUMNS, OptionError, "each column once"),
    "an empty name": ("c,,v", COLUMNS, OptionError, "comma-separated"),
    "a list": ("l", LISTS, SchemaError, "has no hash"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_column_that_cannot_be_indexed_is_refused(case: str) -> None:
    text, columns, error, match = BAD[case]
    schema = TableSchema.of(columns, keys=["id"])
    with pytest.raises(error, match=match):
        Table(MemoryStore()).ensure(schema, {"indexBy": text})
    table = Table(MemoryStore())
    table.ensure(schema)
    with pytest.raises(error, match=match):
        table.alter(schema, {"indexBy": text})
    assert "indexBy" not in table.log.head().properties


def test_the_keys_of_a_value_are_looked_up_in_pieces() -> None:
    """The table holds the rows that it returns, and never all keys beside them."""
    table = table_of(MemoryStore())
    table.upsert(rows(*((key, 7) for key in range(900))))
    version = table.log.head().version
    table.upsert(rows((3, 8), (5, 7), (901, 7)))
    Table(index_of(table).store).expire(retain_versions=0, safety_ms=0)
    sizes: list[int] = []
    look_up = Snapshot.look_up

    def noting(snapshot: Snapshot, keys: list[pa.Array], names: Any) -> RowsByKey:
        sizes.append(len(keys[0]))
        return look_up(snapshot, keys, names)

    with (
        patch.object(Snapshot, "look_up", noting),
        patch.object(index_rows, "CHUNK_ROWS", 2),
        patch.object(snapshots, "CHUNK_ROWS", 100),
    ):
        assert ids(table, 7, 8, 7, version=version) == list(range(900))
    assert sum(sizes) == 901, "each key once, also those of the bridge"
    assert max(sizes) < 400


# -- types, kinds of tables ------------------------------------------------------------------


def test_errors_of_a_quarantine_and_stale_rows_are_no_entries() -> None:
    order = [pa.field("seq", pa.int64())]
    table = table_of(MemoryStore(), on_error=ErrorPolicy.QUARANTINE, order=order)

    def write(seq: int | None, *records: tuple[int | None, int]) -> None:
        orders = pa.array([seq] * len(records), pa.int64())
        table.upsert(rows(*records).append_column("seq", orders))

    write(5, (1, 7), (2, 7), (None, 7))
    write(None, (3, 7))
    assert ids(table, 7) == ids(table, 7, version=1) == entries(table, 7) == [1, 2]
    write(4, (1, 8))
    assert (entries(table, 7), entries(table, 8)) == ([1, 2], [])


def test_an_epoch_that_moves_nothing_writes_no_file_of_the_index() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7)))
    table.upsert(rows((1, 7)).set_column(2, "v", pa.array(["other"])))
    assert shown_version(table) == 2
    log = index_of(table).log
    assert log.commit(log.head().version).added == ()


# -- two at once, and faults -------------------------------------------------------------------


def test_of_two_who_bring_an_index_up_to_date_one_does() -> None:
    """Else the later one would undo, or leave out, what the earlier one did."""
    store = MemoryStore()
    with WITHOUT_UPKEEP:
        table = table_of(store)
        table.upsert(rows((1, 1)))
        table.build_indexes()
        table.upsert(rows((1, 2)))
        between = Table(store).indexes()[0]
        table.upsert(rows((1, 1)))
    latest = table.indexes()[0]
    whole = advancing._commands_for_changes

    def slowly(index: Index, *how: Any) -> Any:
        yield from whole(index, *how)
        if index is latest:  # The other one, which has seen less, comes first.
            with patch.object(between.table_log, "head", lambda: table.log.at(2)):
                assert advance(between).shows == 2

    with patch.object(advancing, "_commands_for_changes", slowly):
        assert not advance(latest).is_done
    assert shown_version(table) == 2
    assert entries(table, 1) == []
    assert advance(latest).is_done
    assert (entries(table, 1), entries(table, 2)) == ([1], [])


def test_an_index_whose_types_another_process_has_widened_shows_what_it_holds() -> None:
    store = MemoryStore()
    table, other = Table(store), Table(store)
    narrow = COLUMNS.set(0, pa.field("id", pa.int32()))
    table.ensure(TableSchema.of(narrow, keys=["id"]), {"indexBy": "c"})
    table.upsert(rows((1, 5), (2, 5)).cast(narrow))
    with WITHOUT_UPKEEP:
        table.upsert(rows((3, 5)), merge_schema=True)
    widen = build._widen_types

    def widen_late(*args: Any) -> Any:
        with patch.object(build, "_widen_types", widen):
            other.delete(1)
        return widen(*args)

    before = table.log.head().version
    with patch.object(build, "_widen_types", widen_late):
        advance(index_of(table))
    assert table.check().is_sound
    assert ids(table, 5, version=before) == [1, 2, 3]
    assert ids(table, 5) == [2, 3]


def test_threads_that_share_versions_keep_one_index() -> None:
    store = MemoryStore()
    tables = [table_of(store), Table(store)]
    go = threading.Barrier(8)

    def write(number: int) -> None:
        go.wait(300)
        for n in range(5):
            tables[number % 2].upsert(rows((number * 10 + n % 3, n)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    table = Table(store)
    records = table.snapshot().to_pylist()
    for value in range(5):
        assert ids(table, value) == sorted(row["id"] for row in records if row["c"] == value)
    assert tables[0].index_failures == tables[1].index_failures == 0
    table.build_indexes()
    assert table.check().is_sound
    assert shown_version(table) == table.log.head().version


def test_a_commit_stands_whatever_becomes_of_the_index(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7)))
    with patch.object(build, "advance", side_effect=OSError("s3://k:secret@b is full")):
        assert table.upsert(rows((2, 7))) is not None
    assert table.index_failures == 1
    assert "index not kept up" in caplog.text
    assert "failures=1" in caplog.text
    assert "secret" not in caplog.text
    assert ids(table, 7) == [1, 2], "by the bridge"
    table.upsert(rows((3, 8)))
    assert entries(table, 7) == [1, 2]


FAULTS = [
    (kind, moment)
    for kind in (KilledError, BrokenError)
    for moment in (Moment.BEFORE, Moment.AFTER)
]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["an append", "the first append", "a build"])
def test_after_a_fault_at_any_step_the_rows_are_found(what: str) -> None:
    """P6: nothing needs to be done; the next commit brings the index up to date."""
    before = MemoryStore()
    table = table_of(before)
    if what != "the first append":
        table.upsert(rows((1, 7), (2, 8)))

    def act(table: Table) -> None:
        if what == "a build":
            table.build_indexes(rebuild=True)
        else:
            table.upsert(rows((1, 8), (3, 7)))

    def copied() -> MemoryStore:
        store = MemoryStore()
        store.objects = dict(before.objects)
        return store

    whole = Steps()
    act(Table(FaultyStore(copied(), whole)))
    for step in range(len(whole.names)):
        kind, moment = FAULTS[step % len(FAULTS)]
        store = copied()
        forget_runs_and_logs()
        with suppress(KilledError, BrokenError, UpsertFlowError):
            act(Table(FaultyStore(store, Steps(Fault(step, moment, kind)))))
        forget_runs_and_logs()
        table = Table(store)
        for last in ("behind the fault", "behind the next commit"):
            for value in (7, 8):
                scanned = [r["id"] for r in table.snapshot().to_pylist() if r["c"] == value]
                where = f"{whole.names[step]}, step {step}, {last}"
                assert ids(table, value) == sorted(scanned), where
            table.upsert(rows((4, 9)))
        assert shown_version(table) == table.log.head().version, f"{whole.names[step]}, step {step}"


# -- bounds, lag, and what is of no use ----------------------------------------------------------


def test_a_step_behind_a_commit_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(MemoryStore(), index_by="")
    table.upsert(rows(*((n, n % 3) for n in range(50))))
    table.alter(table.schema, {"indexBy": "c"})
    with patch.object(build, "STEP_ROWS", 10):
        table.upsert(rows((99, 1)))
        assert table.index_of("c") is None
        assert ids(table, 1)[-1] == 99, "found by reading all rows"
        assert "run 'upsertflow index'" in caplog.text
        assert table.index_failures == 0
        table.build_indexes()
        with WITHOUT_UPKEEP:
            for n in range(25):
                table.upsert(rows((n, 9)))
        versions = []
        for n in range(4):
            table.upsert(rows((n, 8)))
            versions.append(shown_version(table))
            assert ids(table, 8) == list(range(n + 1))
        assert versions == [13, 23, 31, 32]
        table.upsert(rows((1, 5)), overwrite=True)
        assert shown_version(table) == 32
    assert (ids(table, 5), ids(table, 1, 2, 8, 9)) == ([1], [])
    table.build_indexes()
    assert entries(table, 5) == [1]


def test_an_index_whose_past_is_expired_is_built_anew() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7)))
    with WITHOUT_UPKEEP:
        for n in range(4):
            table.upsert(rows((n, 8)))
    index = index_of(table)
    table.expire(retain_versions=1, safety_ms=0)
    assert table.index_of("c") is None
    with pytest.raises(DataLossError, match="shows no version of the table"):
        index.keys_having(pa.array([7]))
    assert ids(table, 8) == [0, 1, 2, 3]
    table.upsert(rows((9, 7)))
    assert entries(table, 7) == [9]


def test_an_index_of_another_table_at_the_path_is_built_anew() -> None:
    store = MemoryStore()
    table_of(store).upsert(rows((1, 7)))
    _, store.objects = split(store)
    forget_runs_and_logs()
    table = table_of(store)
    assert table.index_of("c") is None
    table.upsert(rows((2, 7)))
    assert entries(table, 7) == [2]


def test_an_index_of_a_table_that_was_set_back_is_built_anew() -> None:
    """It shows a version of the same number that is another one."""
    store = MemoryStore()
    table = table_of(store)
    table.upsert(rows((1, 7)))
    early, _ = split(store)
    table.upsert(rows((2, 7)))
    _, late = split(store)
    store.objects = {**early, **late}
    forget_runs_and_logs()
    table = Table(store)
    assert table.index_of("c") is None
    assert ids(table, 7) == [1]
    with WITHOUT_UPKEEP:
        table.upsert(rows((3, 7)))
    assert table.index_of("c") is None
    table.upsert(rows((4, 8)))
    assert ids(table, 7) == entries(table, 7) == [1, 3]


@pytest.mark.parametrize("after", ["removed", "made anew", "in a copy without it"])
def test_a_table_goes_on_when_its_index_is_removed_or_replaced(after: str) -> None:
    store = MemoryStore()
    table = table_of(store)
    table.upsert(rows((1, 7), (2, 8)))
    assert entries(table, 7) == [1]
    store.objects, _ = split(store)
    if after == "made anew":
        Table(store).build_indexes()
    if after == "in a copy without it":
        forget_runs_and_logs()
        table = Table(store)
    assert (table.index_of("c") is not None) == (after == "made anew")
    assert ids(table, 7) == [1]
    assert table.check().is_sound
    table.upsert(rows((3, 7)))
    assert table.index_failures == 0
    assert ids(table, 7) == entries(table, 7) == [1, 3]


def test_rows_are_found_once_where_an_index_breaks_behind_the_first() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7), (2, 7), (3, 8)))

    def breaking(*_: object) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise CorruptionError("a file of the index is damaged", hint="build it anew")

    with patch.object(Index, "keys_in", breaking):
        assert ids(table, 7) == [1, 2]


DAMAGES = {"its log": "_index/c/_log/00000000000000000000.json", "a file": "_index/c/data/"}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_index_stops_nothing(what: str) -> None:
    store = MemoryStore()
    table = table_of(store)
    table.upsert(rows((1, 7)))
    [path] = [path for path in store.objects if path.startswith(DAMAGES[what])]
    store.objects[path] = b"x" * len(store.objects[path])
    forget_runs_and_logs()
    table = Table(store)
    assert ids(table, 7) == [1]
    assert not table.check().is_sound
    table.upsert(rows((1, 8), (2, 7)))
    table.expire(retain_versions=0, safety_ms=0)
    table.vacuum(grace_ms=0)
    assert ids(table, 7) == [2]
    assert table.index_failures > 0
    store.objects, _ = split(store)
    forget_runs_and_logs()
    table = Table(store)
    table.build_indexes()
    assert table.check().is_sound
    assert entries(table, 7) == [2]


# -- upkeep --------------------------------------------------------------------------------------


def test_the_past_of_an_index_is_vacuumed_with_that_of_its_table() -> None:
    store = MemoryStore()
    table = table_of(store)
    for n in range(20):
        table.upsert(rows((n % 5, n)))
    assert sum(slice_.file.rows for slice_ in index_of(table).log.head().slices) <= 5 * 8
    table.expire(retain_versions=1, safety_ms=0)
    removed = table.vacuum(grace_ms=0)
    assert any(file.path.startswith("_index/c/data/") for file in removed.expired)
    assert ids(table, 15, 16, 17) == [0, 1, 2]
    assert table.check().is_sound


def test_a_check_finds_an_index_that_does_not_hold_what_it_shows() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7), (2, 8)))
    assert table.check().is_sound
    Table(index_of(table).store).upsert(pa.table({"c": [9], "id": [1]}))
    report = table.check()
    assert not report.is_sound
    assert "_index/c" in str(report.findings[0])
    table.build_indexes(rebuild=True)
    assert table.check().is_sound


def test_a_table_without_indexes_pays_nothing() -> None:
    store = MemoryStore()
    table = Table(store)
    table.ensure(TableSchema.of(COLUMNS, keys=["id"], scope=Scope.ARRIVAL))
    with patch.object(build.Indexes, "of", side_effect=AssertionError("asked")):
        table.upsert(rows((1, 7)))
    assert not any(path.startswith("_index") for path in store.objects)


def test_indexes_are_shown_as_rows() -> None:
    table = table_of(MemoryStore(), index_by="c,v")
    table.upsert(rows((1, 7), (2, None)))
    with WITHOUT_UPKEEP:
        table.upsert(rows((3, 8)))
    table.alter(table.schema, {"indexBy": "c"})
    [row] = [row for batch in VIEWS[Metadata.INDEXES].read(table) for row in batch.to_pylist()]
    assert (row["column"], row["path"]) == ("c", "_index/c")
    assert (row["shows_version"], row["versions_behind"]) == (1, 2)
    assert (row["entries"], row["runs"], row["files"]) == (1, 1, 1)
    assert row["bytes"] > 0


@pytest.mark.parametrize("place", [0, 1], ids=["an index", "a prefix"])
def test_the_code_of_the_page_runs(place: int, tmp_path: Path) -> None:
    blocks = code_of("docs/rows-by-key.md", "python", runner="tests/unit/test_indexes.py")
    exec(blocks[place].replace('"/lake/', f'"{tmp_path}/'), {})


def test_an_epoch_that_makes_the_table_makes_its_index() -> None:
    store = MemoryStore()
    table = Table(store)
    unborn = Table.unborn(TableSchema.of(COLUMNS, keys=["id"]), {"indexBy": "c"})
    base = Snapshot(store, unborn)
    commands = envelope_of_rows(unborn.schema, COLUMNS).commands(rows((1, 7)).to_batches()[0])
    table.commit(WriteSet(base=base, staged=(stage(base, [commands]),)))
    assert shown_version(table) == 0
