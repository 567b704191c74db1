"""Twins and deaths that writers prepare: what a publication takes of them, and what it makes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.delta import follow, prepared_files, publish
from spark_upsert.delta.check import check_mirror
from spark_upsert.delta.parquet_files import repetitive, run_of, write_parquet
from spark_upsert.delta.place import place_of
from spark_upsert.delta.publish import Mirror
from spark_upsert.delta.upkeep import ORPHAN_MS, Upkeep
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.table.state.prepared import PreparedFiles, Twin
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.own_rows import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns, WriteSet
from tests.support.clocked import ClockedStore, Now
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.stores import MemoryStore

COLUMNS = pa.schema({"id": pa.int64(), "x": pa.string()})


class Publishing:
    """A table that is published behind each commit."""

    def __init__(self, *, order: bool = False, now: Now | None = None) -> None:
        self.store = MemoryStore() if now is None else ClockedStore(now)
        schema = TableSchema.of(
            COLUMNS,
            keys=["id"],
            order=[pa.field("seq", pa.int64())] if order else [],
            scope=Scope.TABLE if order else Scope.ARRIVAL,
            hash_seed=7,
        )
        self.table = Table(self.store, clock=now or time.time)
        self.table.ensure(schema, {"publish": "delta"})
        self.target = place_of(self.store, None)

    def append(self, *rows: tuple[Any, ...], gone: bool = False, **how: Any) -> None:
        self.table.upsert(self.rows(*rows, gone=gone), deletes="gone", **how)

    def rows(self, *rows: tuple[Any, ...], gone: bool = False) -> pa.Table:
        fields = [*COLUMNS, *self.table.schema.order]
        given = zip(*rows, strict=True)
        columns = {f.name: pa.array(v, f.type) for f, v in zip(fields, given, strict=True)}
        return pa.table({**columns, "gone": pa.array([gone] * len(rows), pa.bool_())})

    def stage(self, *rows: tuple[Any, ...]) -> StagedRuns:
        """Stage rows as a task of Spark does, and let them travel."""
        head = self.table.log.head()
        given = self.rows(*rows)
        envelope = envelope_of_rows(head.schema, given.schema, deletes="gone")
        commands = map(envelope.commands, given.to_batches())
        staged = stage(Snapshot(self.store, head), commands)
        found: StagedRuns = pickle.loads(pickle.dumps(staged))
        return found

    def commit(self, *staged: StagedRuns) -> None:
        base = Snapshot(self.store, self.table.log.at(staged[0].base_version))
        self.table.commit(WriteSet(base=base, staged=staged, allow_unordered=True))

    def require_copy(self) -> DeltaTable:
        found = DeltaTable(self.target)
        assert canonical(found.rows()) == canonical(self.table.snapshot())
        assert not list(check_mirror(self.mirror()))
        return found

    def mirror(self) -> Mirror:
        return Mirror(self.table.log, self.store, self.target)

    def twin_names(self) -> set[str]:
        return {info.path for info in self.target.list("") if run_of(info.path) is not None}


@contextmanager
def counted(owner: Any, name: str) -> Iterator[list[Any]]:
    """Count the calls of a function."""
    calls: list[Any] = []
    original = getattr(owner, name)

    def note(*args: Any, **how: Any) -> Any:
        calls.append(args)
        return original(*args, **how)

    with patch.object(owner, name, note):
        yield calls


@contextmanager
def by_the_publication() -> Iterator[tuple[list[Any], list[Any]]]:
    """Count the twins that publications write themselves, and their look-ups."""
    with (
        counted(Mirror, "_write") as twins,
        counted(publish, "by_change") as by_change,
        counted(publish, "by_manifest") as by_manifest,
    ):
        looked_up: list[Any] = []
        yield twins, looked_up
        looked_up += by_change + by_manifest


def act_in_turn(case: Publishing) -> None:
    case.append((2, "b2"), (4, "d"))
    case.append((1, "a"), (9, "z"), gone=True)
    case.append((1, "a3"), (5, "e"))


def test_a_publication_copies_nothing_and_looks_nothing_up() -> None:
    case = Publishing()
    case.append((1, "a"), (2, "b"), (3, "c"))
    with by_the_publication() as (twins, looked_up):
        act_in_turn(case)
    assert not twins
    assert not looked_up
    assert case.require_copy().version == 3


def test_the_greater_order_wins_among_what_was_looked_up() -> None:
    """A late row is dead where it stands, and a tie belongs to the later row."""
    case = Publishing(order=True)
    case.append((1, "a", 5), (2, "b", 5), (3, "c", 5), (4, "d", 5))
    with by_the_publication() as (twins, looked_up):
        case.append((1, "late", 4), (2, "tied", 5), (3, "c", 5), (4, "newer", 6))
    assert not twins
    assert not looked_up
    rows = case.require_copy().rows().sort_by("id")
    assert rows.column("x").to_pylist() == ["a", "tied", "c", "newer"]


def test_new_keys_alone_are_looked_up_by_no_publication() -> None:
    """Whoever asks for it: that no row died follows from how many there are."""
    case = Publishing()
    case.table.alter(case.table.schema, {"publish": "none"})
    case.append((1, "a"), (2, "b"))
    case.table.publish()
    case.append((3, "c"))
    with by_the_publication() as (_, looked_up):
        case.table.publish()
    assert not looked_up
    assert case.require_copy().version == 1


def test_tasks_of_an_epoch_prepare_each_for_itself() -> None:
    case = Publishing()
    case.append((1, "a"), (2, "b"))
    with by_the_publication() as (twins, looked_up):
        case.commit(case.stage((1, "a2"), (3, "c")), case.stage((2, "b2")))
    assert not twins
    assert not looked_up
    case.require_copy()


def test_a_key_of_two_tasks_is_looked_up() -> None:
    case = Publishing(order=True)
    case.append((1, "a", 1), (2, "b", 1))
    with by_the_publication() as (twins, looked_up):
        case.commit(case.stage((1, "a3", 3)), case.stage((1, "a2", 2), (3, "c", 1)))
    assert not twins
    assert looked_up
    case.require_copy()


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda case: case.append((1, "other"), (7, "g")),
        lambda case: case.append((1, "other"), gone=True),
        lambda case: case.table.restore(1),
        lambda case: case.append((8, "h"), overwrite=True),
        lambda case: case.table.compact(full=True),
    ],
    ids=["an epoch", "deletes", "a restore", "an overwrite", "a compaction"],
)
def test_what_came_between_is_looked_up(meanwhile: Callable[[Publishing], Any]) -> None:
    case = Publishing()
    case.append((1, "a"), (2, "b"))
    case.append((2, "b2"), (3, "c"))
    staged = case.stage((1, "a2"), (2, "b3"))
    meanwhile(case)
    case.require_copy()
    with by_the_publication() as (twins, _):
        case.commit(staged)
    assert not twins
    case.require_copy()


def test_rows_of_an_older_schema_are_prepared(caplog: pytest.LogCaptureFixture) -> None:
    own = Publishing()
    with FeedbackUpsert(own.table, "source") as loop:
        loop.ingest(pa.record_batch({"id": [1], "x": ["a"]}, schema=COLUMNS), 0)
        schema = own.table.schema
        wider = schema.columns.append(pa.field("more", pa.string()))
        own.table.alter(schema.accept(wider, merge=True))
        loop.advance(1)
        assert len(loop.run()) == 1
    assert "twin not written" not in caplog.text
    own.require_copy()


def test_a_twin_that_is_missing_is_made(caplog: pytest.LogCaptureFixture) -> None:
    """As where a task has no room, or no way to the place of the mirror."""
    case = Publishing()
    case.append((1, "a"))
    with patch.object(
        prepared_files, "write_twin", side_effect=OSError(28, "No space left on device")
    ):
        staged = case.stage((1, "a2"), (2, "b"))
    assert "twin not written" in caplog.text
    assert "No space left" in caplog.text
    with by_the_publication() as (twins, looked_up):
        case.commit(staged)
    assert len(twins) == 1
    assert not looked_up
    case.require_copy()


def test_a_twin_of_other_columns_is_made_again() -> None:
    case = Publishing()
    case.append((1, "a"))
    staged = case.stage((2, "b"))
    case.table.alter(
        TableSchema.of(COLUMNS.append(pa.field("y", pa.int64())), keys=["id"], hash_seed=7)
    )
    with by_the_publication() as (twins, _):
        case.commit(staged)
    assert len(twins) == 1
    assert case.require_copy().rows().column_names == ["id", "x", "y"]


def test_the_values_of_a_deleted_row_do_not_live_on_in_a_twin() -> None:
    case = Publishing()
    case.append((1, "a"), (2, "b"))
    [twin] = case.stage((1, "a")).ahead.twins.values()  # type: ignore[union-attr]
    assert pq.read_table(pa.BufferReader(case.target.map(twin.path))).column("x").to_pylist() == [
        "a"
    ]
    case.table.upsert(
        pa.table({"id": [1, 3], "x": ["secret", "c"], "gone": [True, False]}), deletes="gone"
    )
    for name in case.twin_names():
        assert b"secret" not in bytes(case.target.read(name))
    case.require_copy()


def test_a_compaction_writes_its_twins() -> None:
    case = Publishing()
    case.append((1, "a"), (2, "b"))
    case.append((2, "b2"), (3, "c"))
    with by_the_publication() as (twins, looked_up):
        assert case.table.compact(full=True)
    assert not twins
    assert not looked_up, "all rows of one run live"
    case.require_copy()


def test_the_name_of_a_twin_is_of_use_for_an_hour() -> None:
    """Longer, and a cleaning might have taken it."""
    now = Now()
    told = prepared_files.PreparationCache(now)
    twin = Twin(path="t.parquet", bytes=1, stats={}, written_ms=int(now() * 1000))
    made = PreparedFiles(place="p", columns=COLUMNS, twins={"data/r.arrow": twin}, deaths={})
    told.add(3, [made])
    assert list(told.twins("p", COLUMNS).values()) == [twin]
    assert not told.twins("elsewhere", COLUMNS)
    now.advance(prepared_files.USED_FOR_MS / 1000 + 1)
    assert not told.twins("p", COLUMNS)


def test_what_is_kept_for_a_mirror_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_files, "TWINS_MAX", 3)
    monkeypatch.setattr(prepared_files, "DEATHS_MAX", 10)
    told = prepared_files.PreparationCache()
    for version in range(5):
        twin = Twin(path=f"{version}", bytes=1, stats={}, written_ms=0)
        deaths = {"run": np.arange(4, dtype=np.uint32)}
        made = PreparedFiles(place="p", columns=COLUMNS, twins={"run": twin}, deaths=deaths)
        told.add(version, [made])
    assert len(told.deaths(-1, 9)) == 2
    assert told.drop(3, "p") == ["3"]
    assert told.drop(None, "p") == ["4"]


def test_too_many_deaths_do_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_files, "DEATHS_MAX", 1)
    case = Publishing()
    case.append((1, "a"), (2, "b"))
    staged = case.stage((1, "a2"), (2, "b2"))
    assert staged.ahead is not None
    assert not staged.ahead.deaths
    case.commit(staged)
    case.require_copy()


def test_a_task_that_was_tried_twice_leaves_a_twin_that_goes_a_day_later() -> None:
    now = Now()
    case = Publishing(now=now)
    case.append((1, "a"), (5, "e"))
    lost, kept = (case.stage((1, "a2"), (2, "b")) for _ in range(2))
    case.commit(kept)
    [orphan] = case.twin_names() - case.require_copy().adds.keys()
    assert lost.ahead is not None
    assert [orphan] == [twin.path for twin in lost.ahead.twins.values()]
    mirror = case.mirror()
    mirror.state()
    for seconds, left in ((ORPHAN_MS / 2000, {orphan}), (ORPHAN_MS / 1000, set[str]())):
        now.advance(seconds)
        case.append((1, f"after {seconds}"))
        mirror.state()
        now_ms = int(now() * 1000)
        upkeep = Upkeep(case.target, mirror._delta)
        upkeep.vacuum(now_ms=now_ms, retention_ms=10**12, dry_run=False)
        assert (case.twin_names() & {orphan}) == left
    case.require_copy()


def test_twins_that_no_step_is_going_to_name_are_removed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a table that is far behind, of a mirror that fails, and of runs without a living row."""
    case = Publishing()
    case.append((1, "a"), (2, "b"))
    live = case.twin_names()
    case.append((9, "z"), gone=True)
    assert case.twin_names() == live
    case.target.put("_delta_log/00000000000000000001.json", b"{}")
    case.append((3, "c"))
    assert "mirror not kept up" in caplog.text
    assert case.twin_names() == live
    case.target.delete("_delta_log/00000000000000000001.json")
    monkeypatch.setattr(follow, "STEP_ROWS", 0)
    monkeypatch.setattr(follow, "_TIMES", 0)
    case.append((4, "d"))
    assert "left behind" in caplog.text
    assert case.twin_names() == live
    monkeypatch.undo()
    case.table.publish()
    case.require_copy()


def test_twins_of_a_commit_in_doubt_stay() -> None:
    """A put that failed may take effect yet, and then its files are the table's."""
    case = Publishing()
    case.append((1, "a"))
    mirror = case.mirror()
    staged = case.stage((2, "b"))
    case.table.alter(case.table.schema, {"publish": "none"})
    case.commit(staged)
    assert staged.ahead is not None
    mirror.prepared.add(case.table.log.head().version, [staged.ahead])
    with (
        patch.object(type(mirror._delta), "put", side_effect=TimeoutError("no answer")),
        pytest.raises(TimeoutError),
    ):
        mirror.publish()
    mirror.give_up_ahead()
    [twin] = staged.ahead.twins.values()
    assert twin.path in case.twin_names()
    mirror.publish()
    case.require_copy()
    assert twin.path in DeltaTable(case.target).adds


def test_columns_whose_values_come_again_have_a_dictionary() -> None:
    count = 10_000
    batch = pa.record_batch(
        {
            "id": pa.array(range(count)),
            "p.q": pa.array([each % 7 for each in range(count)]),
            "tags": pa.array([["a", "b"]] * count),
            "of": pa.array([[("k", 1)]] * count, pa.map_(pa.string(), pa.int64())),
            "in": pa.array([{"s": "x"}] * count),
        }
    )
    assert repetitive(batch) == [
        "p.q",
        "tags.list.element",
        "of.key_value.key",
        "of.key_value.value",
        "in.s",
    ]
    store = MemoryStore()
    _, footer = write_parquet(store, "t.parquet", batch.schema, [batch], {})
    group = footer.row_group(0)
    encodings = [set(group.column(at).encodings) for at in range(group.num_columns)]
    assert ["RLE_DICTIONARY" in each for each in encodings] == [False, True, True, True, True, True]
