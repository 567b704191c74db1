"""Indexes, piece by piece: two at once, faults, bounds, types, and what they are as tables."""

from __future__ import annotations

import logging
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
from spark_upsert.table.index import build as advancing
from spark_upsert.table.index import lookup as index_rows
from spark_upsert.table.index import upkeep
from spark_upsert.table.index.build import advance
from spark_upsert.table.index.index import Index
from spark_upsert.table.index.lookup import keys_between
from spark_upsert.table.log.properties import index_folder
from spark_upsert.table.state import snapshot as snapshots
from spark_upsert.table.state.reduce import RowsByKey
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.own_rows import envelope_of_rows
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


def table_of(store: MemoryStore, *, index_by: str = "c", **how: Any) -> Table:
    table = Table(store)
    table.ensure(TableSchema.of(COLUMNS, keys=["id"], **how), {"indexBy": index_by})
    return table


def rows(*records: tuple[int, int | None]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([r[0] for r in records], pa.int64()),
            "c": pa.array([r[1] for r in records], pa.int64()),
            "v": ["x"] * len(records),
        }
    )


def ids(found: pa.Table) -> list[int]:
    return sorted(found.column("id").to_pylist())


def index_of(table: Table, column: str = "c") -> Index:
    index = table.index_of(column)
    assert index is not None
    return index


def test_an_index_is_a_table_below_the_table() -> None:
    store = MemoryStore()
    table_of(store).upsert(rows((1, 7), (2, 8), (3, None)))
    index = Table(index_of(Table(store)).store)
    assert index.store.url == f"{store.url}/_index/c"
    assert index.schema.keys == ("c", "id")
    assert index.schema.hash_prefix == 1
    assert sorted(index.snapshot().to_pylist(), key=str) == [
        {"c": 7, "id": 1},
        {"c": 8, "id": 2},
    ]
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
    assert ids(table.rows_having(name, [7])) == [1]


def test_several_columns_have_an_index_each() -> None:
    table = table_of(MemoryStore(), index_by="c, V")
    table.upsert(rows((1, 7), (2, 8)))
    assert [index.column for index in table.indexes()] == ["c", "v"]
    assert ids(table.rows_having("v", ["x"])) == [1, 2]
    assert index_of(table, "v").keys_having(pa.array(["x"])).keys.num_rows == 2
    assert table.index_of("id") is None


BAD = {
    "an unknown column": ("x", COLUMNS, SchemaError, "'x'"),
    "the key": ("id", COLUMNS, OptionError, "the whole key"),
    "a column twice": ("c,C", COLUMNS, OptionError, "each column once"),
    "an empty name": ("c,,v", COLUMNS, OptionError, "comma-separated"),
    "a list": (
        "l",
        pa.schema({"id": pa.int64(), "l": pa.list_(pa.int64())}),
        SchemaError,
        "has no hash",
    ),
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


def test_a_table_that_is_there_gets_an_index_by_a_property() -> None:
    table = table_of(MemoryStore(), index_by="")
    table.upsert(rows((1, 7)))
    table.alter(table.schema, {"indexBy": "c"})
    assert table.index_of("c") is None
    assert ids(table.rows_having("c", [7])) == [1], "found by reading all rows"
    [index] = table.build_indexes()
    assert index.keys_having(pa.array([7])).keys.column("id").to_pylist() == [1]


def test_an_index_that_leads_is_read_as_it_was() -> None:
    table = table_of(MemoryStore())
    versions = []
    for key in range(20):
        table.upsert(rows((key, 7), (100, key)))
        versions.append(table.log.head().version)
    [index] = table.indexes()
    for version, key in zip(versions, range(20), strict=True):
        assert index.iter_keys_having(pa.array([7]), near=version)[0] == version
        assert set(ids(table.rows_having("c", [7], version=version))) >= set(range(key + 1))
    shows = index.iter_keys_having(pa.array([7]), near=versions[0] - 1)[0]
    assert shows <= versions[0], "the oldest that there is"
    Table(index.store).expire(retain_versions=0, safety_ms=0)
    assert index.iter_keys_having(pa.array([7]), near=versions[3])[0] == versions[-1]
    assert len(ids(table.rows_having("c", [7], version=versions[3]))) == 4


def test_the_keys_of_a_value_are_looked_up_in_pieces() -> None:
    """The table holds what is found, and never all keys beside it; the bridge counts once."""
    table = table_of(MemoryStore())
    table.upsert(rows(*((key, 7) for key in range(900))))
    version = table.log.head().version
    table.upsert(rows((3, 8), (5, 7), (901, 7)))
    [index] = table.indexes()
    Table(index.store).expire(retain_versions=0, safety_ms=0)  # What it was is forgotten.
    looked: list[int] = []
    look_up = Snapshot.look_up

    def noting(snapshot: Snapshot, keys: list[pa.Array], names: Any) -> RowsByKey:
        looked.append(len(keys[0]))
        return look_up(snapshot, keys, names)

    with (
        patch.object(Snapshot, "look_up", noting),
        patch.object(index_rows, "CHUNK_ROWS", 2),
        patch.object(snapshots, "CHUNK_ROWS", 100),
    ):
        found = table.rows_having("c", [7, 8, 7], version=version)
    assert ids(found) == list(range(900))
    assert sum(looked) == 901, "each key once, also those of the bridge"
    assert max(looked) < 400


def test_an_index_that_breaks_behind_the_first_rows_is_done_without() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7), (2, 7), (3, 8)))

    def breaking(self: Index, values: pa.Array, **_: Any) -> tuple[int, Iterator[pa.RecordBatch]]:
        def pieces() -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"id": [1]})
            raise CorruptionError("a file of the index is damaged", hint="build it anew")

        return table.log.head().version, pieces()

    with patch.object(Index, "iter_keys_having", breaking):
        assert ids(table.rows_having("c", [7])) == [1, 2]


# -- nulls, types, kinds of tables -----------------------------------------------------------


def test_a_null_is_not_in_an_index_and_finds_nothing() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, None), (2, 7)))
    table.upsert(rows((2, None)))
    assert ids(table.rows_having("c", [None, 7])) == []
    assert Table(index_of(table).store).log.head().live_rows == 0


def test_a_widened_column_is_found_by_old_and_new_values() -> None:
    table = Table(MemoryStore())
    narrow = TableSchema.of(pa.schema({"id": pa.int32(), "c": pa.int32()}), keys=["id"])
    table.ensure(narrow, {"indexBy": "c"})
    table.upsert(pa.table([[1], [7]], schema=narrow.columns))
    wide = TableSchema.of(pa.schema({"id": pa.int64(), "c": pa.int64()}), keys=["id"])
    table.alter(wide)
    lagging = index_of(table).keys_having(pa.array([2**40, 7]))
    assert lagging.keys.to_pydict() == {"id": [1]}
    table.upsert(pa.table([[2**50], [2**40]], schema=wide.columns))
    assert ids(table.rows_having("c", [2**40, 7])) == [1, 2**50]
    assert ids(table.rows_having("c", [7], version=1)) == [1]
    assert table.rows_having("c", [7], version=1).schema == narrow.columns


def test_errors_of_a_quarantine_are_no_rows_of_an_index() -> None:
    table = table_of(
        MemoryStore(), on_error=ErrorPolicy.QUARANTINE, order=[pa.field("seq", pa.int64())]
    )

    def ordered(seq: int | None, *records: tuple[int | None, int]) -> pa.Table:
        data = pa.table({"id": pa.array([r[0] for r in records], pa.int64())})
        data = data.append_column("c", pa.array([r[1] for r in records], pa.int64()))
        data = data.append_column("v", pa.array(["x"] * len(records)))
        return data.append_column("seq", pa.array([seq] * len(records), pa.int64()))

    table.upsert(ordered(1, (1, 7), (2, 7), (None, 7)))
    assert ids(table.rows_having("c", [7])) == [1, 2]
    assert ids(table.rows_having("c", [7], version=1)) == [1, 2]
    table.upsert(ordered(None, (3, 7)))
    assert index_of(table).keys_having(pa.array([7])).keys.num_rows == 2
    assert ids(table.rows_having("c", [7], version=1)) == [1, 2]


def test_stale_rows_do_not_move_an_entry() -> None:
    schema = pa.schema({"id": pa.int64(), "c": pa.int64(), "seq": pa.int64()})
    table = Table(MemoryStore())
    order = [pa.field("seq", pa.int64())]
    table.ensure(TableSchema.of(schema, keys=["id"], order=order), {"indexBy": "c"})
    table.upsert(pa.table([[1], [7], [5]], schema=schema))
    table.upsert(pa.table([[1], [8], [4]], schema=schema))
    assert index_of(table).keys_having(pa.array([7, 8])).keys.num_rows == 1
    assert (ids(table.rows_having("c", [7])), ids(table.rows_having("c", [8]))) == ([1], [])


def test_an_epoch_that_moves_nothing_writes_no_file() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7)))
    table.upsert(rows((1, 7)).set_column(2, "v", pa.array(["other"])))
    index = index_of(table)
    assert index.keys_having(pa.array([7])).shows_version == 2
    assert index.log.commit(index.log.head().version).added == ()


# -- two at once, and faults -------------------------------------------------------------------


def test_of_two_who_bring_an_index_up_to_date_one_does() -> None:
    """Else the later one would undo, or leave out, what the earlier one did."""
    store = MemoryStore()
    with patch.object(upkeep.Indexes, "follow", lambda self, commit: None):
        table = table_of(store)
        table.upsert(rows((1, 1)))
        table.build_indexes()
        table.upsert(rows((1, 2)))
        between = Table(store).indexes()[0]
        table.upsert(rows((1, 1)))
    own = table.indexes()[0]
    whole = advancing._of_changes

    def slowly(index: Index, *how: Any) -> Any:
        yield from whole(index, *how)
        if index is own:  # The other one, which has seen less, comes first.
            with patch.object(between.table_log, "head", lambda: table.log.at(2)):
                assert advance(between).shows == 2

    with patch.object(advancing, "_of_changes", slowly):
        assert not advance(own).is_done
    assert index_of(table).keys_having(pa.array([1, 2])).shows_version == 2
    assert index_of(table).keys_having(pa.array([1])).keys.num_rows == 0
    assert advance(own).is_done
    assert index_of(table).keys_having(pa.array([1])).keys.to_pydict() == {"id": [1]}
    assert index_of(table).keys_having(pa.array([2])).keys.num_rows == 0


def test_a_commit_stands_whatever_becomes_of_the_index(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7)))
    with patch.object(upkeep, "advance", side_effect=OSError("s3://k:secret@b is full")):
        assert table.upsert(rows((2, 7))) is not None
    assert table.index_failures == 1
    assert "index not kept up" in caplog.text
    assert "failures=1" in caplog.text
    assert "secret" not in caplog.text
    assert ids(table.rows_having("c", [7])) == [1, 2], "by the bridge"
    table.upsert(rows((3, 8)))
    assert index_of(table).keys_having(pa.array([7])).keys.num_rows == 2


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

    whole = Steps()
    act(Table(FaultyStore(_copy(before), whole)))
    for step in range(len(whole.names)):
        kind, moment = FAULTS[step % len(FAULTS)]
        store = _copy(before)
        forget_runs_and_logs()
        with suppress(KilledError, BrokenError, UpsertFlowError):
            act(Table(FaultyStore(store, Steps(Fault(step, moment, kind)))))
        forget_runs_and_logs()
        table = Table(store)
        for last in ("behind the fault", "behind the next commit"):
            for value in (7, 8):
                scanned = [r["id"] for r in table.snapshot().to_pylist() if r["c"] == value]
                found = ids(table.rows_having("c", [value]))
                assert found == sorted(scanned), f"{whole.names[step]}, step {step}, {last}"
            table.upsert(rows((4, 9)))
        shows = index_of(table).keys_having(pa.array([9])).shows_version
        assert shows == table.log.head().version, f"{whole.names[step]}, step {step}"


def _copy(store: MemoryStore) -> MemoryStore:
    copied = MemoryStore()
    copied.objects = dict(store.objects)
    return copied


# -- bounds, lag, and what is of no use ----------------------------------------------------------


def test_a_step_behind_a_commit_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    table = table_of(MemoryStore(), index_by="")
    table.upsert(rows(*((n, n % 3) for n in range(50))))
    table.alter(table.schema, {"indexBy": "c"})
    with patch.object(upkeep, "STEP_ROWS", 10):
        table.upsert(rows((99, 1)))
        assert table.index_of("c") is None
        assert "run 'upsertflow index'" in caplog.text
        assert table.index_failures == 0
        table.build_indexes()
        with patch.object(upkeep.Indexes, "follow", lambda self, commit: None):
            for n in range(25):
                table.upsert(rows((n, 9)))
        shown = []
        for n in range(4):
            table.upsert(rows((n, 8)))
            shown.append(index_of(table).keys_having(pa.array([8])).shows_version)
            assert ids(table.rows_having("c", [8])) == list(range(n + 1))
    assert shown == [13, 23, 31, 32]


def test_an_overwrite_of_much_is_left_to_whoever_has_time() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows(*((n, n % 3) for n in range(50))))
    with patch.object(upkeep, "STEP_ROWS", 10):
        table.upsert(rows((1, 5)), overwrite=True)
    assert index_of(table).keys_having(pa.array([5])).shows_version == 1
    assert ids(table.rows_having("c", [5])) == [1]
    assert ids(table.rows_having("c", [1, 2])) == []
    table.build_indexes()
    assert index_of(table).keys_having(pa.array([5])).keys.num_rows == 1


def test_an_index_whose_past_is_expired_is_built_anew() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7)))
    with patch.object(upkeep.Indexes, "follow", lambda self, commit: None):
        for n in range(4):
            table.upsert(rows((n, 8)))
    index = index_of(table)
    table.expire(retain_versions=1, safety_ms=0)
    assert table.index_of("c") is None
    with pytest.raises(DataLossError, match="shows no version of the table"):
        index.keys_having(pa.array([7]))
    assert ids(table.rows_having("c", [8])) == [0, 1, 2, 3]
    table.upsert(rows((9, 7)))
    assert index_of(table).keys_having(pa.array([7])).keys.to_pydict() == {"id": [9]}


def test_an_index_of_another_table_at_the_path_is_built_anew() -> None:
    store = MemoryStore()
    table_of(store).upsert(rows((1, 7)))
    store.objects = {p: data for p, data in store.objects.items() if p.startswith("_index/")}
    forget_runs_and_logs()
    table = table_of(store)
    assert table.index_of("c") is None
    table.upsert(rows((2, 7)))
    assert index_of(table).keys_having(pa.array([7])).keys.to_pydict() == {"id": [2]}


@pytest.mark.parametrize("is_made_anew", [False, True], ids=["removed", "made anew"])
def test_a_process_goes_on_when_its_index_is_replaced(is_made_anew: bool) -> None:
    store = MemoryStore()
    table = table_of(store)
    table.upsert(rows((1, 7), (2, 8)))
    assert index_of(table).keys_having(pa.array([7])).keys.num_rows == 1
    for path in [path for path in store.objects if path.startswith("_index/")]:
        del store.objects[path]
    if is_made_anew:
        Table(store).build_indexes()
    assert (table.index_of("c") is not None) == is_made_anew
    assert ids(table.rows_having("c", [7])) == [1]
    table.upsert(rows((3, 7)))
    assert table.index_failures == 0
    assert ids(table.rows_having("c", [7])) == [1, 3]
    assert index_of(table).keys_having(pa.array([7])).keys.num_rows == 2


def test_an_index_of_a_table_that_was_set_back_is_built_anew() -> None:
    """It shows a version of the same number that is another one."""
    store = MemoryStore()
    table = table_of(store)
    table.upsert(rows((1, 7)))
    early = {p: data for p, data in store.objects.items() if not p.startswith("_index/")}
    table.upsert(rows((2, 7)))
    late = {p: data for p, data in store.objects.items() if p.startswith("_index/")}
    store.objects = {**early, **late}
    forget_runs_and_logs()
    table = Table(store)
    assert table.index_of("c") is None
    assert ids(table.rows_having("c", [7])) == [1]
    with patch.object(upkeep.Indexes, "follow", lambda self, commit: None):
        table.upsert(rows((3, 7)))
    assert table.index_of("c") is None
    table.upsert(rows((4, 8)))
    assert ids(table.rows_having("c", [7])) == [1, 3]
    assert index_of(table).keys_having(pa.array([7])).keys.num_rows == 2


def test_the_bridge_is_the_keys_of_commands_in_between() -> None:
    table = table_of(MemoryStore())
    for n in range(1, 5):
        table.upsert(rows((n, 7), (n + 1, 7)))
    index = index_of(table)

    def between(shows: int, at: int) -> list[int] | None:
        keys = keys_between(index, shows, table.log.at(at))
        return None if keys is None else sorted(keys.column("id").to_pylist())

    assert between(2, 2) == []
    assert between(2, 4) == between(4, 2) == [3, 4, 5]
    table.restore(1)
    assert between(4, 5) is None, "what a restore takes away has no command"
    table.expire(retain_versions=2, safety_ms=0)
    assert between(1, 4) is None


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
    assert ids(table.rows_having("c", [7])) == [1]
    assert not table.check().is_sound
    table.upsert(rows((1, 8), (2, 7)))
    table.expire(retain_versions=0, safety_ms=0)
    table.vacuum(grace_ms=0)
    assert ids(table.rows_having("c", [7])) == [2]
    assert table.index_failures > 0
    for damaged in [path for path in store.objects if path.startswith("_index/c/")]:
        store.delete(damaged)
    forget_runs_and_logs()
    table = Table(store)
    table.build_indexes()
    assert table.check().is_sound
    assert index_of(table).keys_having(pa.array([7])).keys.to_pydict() == {"id": [2]}


# -- upkeep --------------------------------------------------------------------------------------


def test_an_index_is_compacted_behind_commits() -> None:
    table = table_of(MemoryStore())
    for n in range(40):
        table.upsert(rows((n % 5, n)))
    own = index_of(table).log.head()
    assert own.run_count <= 8
    assert sum(slice_.file.rows for slice_ in own.slices) <= 5 * 8, "deletes are forgotten"


def test_the_past_of_an_index_goes_with_that_of_its_table() -> None:
    store = MemoryStore()
    table = table_of(store)
    for n in range(20):
        table.upsert(rows((n % 5, n)))
    before = len([p for p in store.objects if p.startswith("_index/c/data/")])
    table.expire(retain_versions=1, safety_ms=0)
    removed = table.vacuum(grace_ms=0)
    assert any(file.path.startswith("_index/c/data/") for file in removed.expired)
    after = [p for p in store.objects if p.startswith("_index/c/data/")]
    assert len(after) < before
    assert ids(table.rows_having("c", [15, 16, 17])) == [0, 1, 2]
    assert table.check().is_sound


def test_a_check_finds_an_index_that_does_not_hold_what_it_shows() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7), (2, 8)))
    assert table.check().is_sound
    index = Table(index_of(table).store)
    index.upsert(pa.table({"c": [9], "id": [1]}))
    report = table.check()
    assert not report.is_sound
    assert "_index/c" in str(report.findings[0])
    table.build_indexes(rebuild=True)
    assert table.check().is_sound


def test_a_restore_moves_the_entries_back() -> None:
    table = table_of(MemoryStore())
    table.upsert(rows((1, 7)))
    table.upsert(rows((1, 8), (2, 8)))
    table.restore(1)
    proposals = index_of(table).keys_having(pa.array([7, 8]))
    assert (proposals.keys.to_pydict(), proposals.shows_version) == ({"id": [1]}, 3)


def test_a_table_without_indexes_pays_nothing() -> None:
    store = MemoryStore()
    table = Table(store)
    table.ensure(TableSchema.of(COLUMNS, keys=["id"], scope=Scope.ARRIVAL))
    with patch.object(upkeep.Indexes, "of", side_effect=AssertionError("asked")):
        table.upsert(rows((1, 7)))
    assert not any(path.startswith("_index") for path in store.objects)


def test_nothing_is_told_of_indexes_that_are_up_to_date(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    table_of(MemoryStore()).upsert(rows((1, 7)))
    assert caplog.text == ""


def test_indexes_are_shown_as_rows() -> None:
    table = table_of(MemoryStore(), index_by="c,v")
    table.upsert(rows((1, 7), (2, None)))
    with patch.object(upkeep.Indexes, "follow", lambda self, commit: None):
        table.upsert(rows((3, 8)))
    table.alter(table.schema, {"indexBy": "c"})
    view = VIEWS[Metadata.INDEXES]
    [row] = [row for batch in view.read(table) for row in batch.to_pylist()]
    assert row["column"] == "c"
    assert row["path"] == "_index/c"
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
    assert index_of(table).keys_having(pa.array([7])).shows_version == 0


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
    for value in range(5):
        scanned = sorted(r["id"] for r in table.snapshot().to_pylist() if r["c"] == value)
        assert ids(table.rows_having("c", [value])) == scanned
    assert tables[0].index_failures == tables[1].index_failures == 0
    table.build_indexes()
    assert table.check().is_sound
    assert index_of(table).keys_having(pa.array([4])).shows_version == table.log.head().version


def test_a_copy_without_its_indexes_is_whole() -> None:
    store = MemoryStore()
    table_of(store).upsert(rows((1, 7), (2, 8)))
    copied = MemoryStore()
    copied.objects = {p: d for p, d in store.objects.items() if not p.startswith("_index/")}
    forget_runs_and_logs()
    copy = Table(copied)
    assert ids(copy.rows_having("c", [7])) == [1]
    assert copy.check().is_sound
    copy.upsert(rows((3, 7)))
    assert index_of(copy).keys_having(pa.array([7])).keys.num_rows == 2


def test_who_was_too_slow_goes_on_with_what_the_other_did(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    table, other = table_of(store), Table(store)
    table.upsert(rows((1, 1)))
    table.upsert(rows((1, 2)))
    write = advancing._write
    lost: list[Index] = []

    def slowly(index: Index, *how: Any, **more: Any) -> bool:
        if index.table_log is table.log and not lost:
            lost.append(index)
            assert advance(other.indexes()[0]).is_done
        return write(index, *how, **more)

    with patch.object(advancing, "_write", slowly):
        table.upsert(rows((2, 2)))
    assert len(lost) == 1
    assert index_of(table).keys_having(pa.array([2])).shows_version == table.log.head().version
    assert caplog.text == ""
