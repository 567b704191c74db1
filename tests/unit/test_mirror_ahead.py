"""Twins and deaths that writers prepare: what a publication takes of them, and what it makes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.delta import follow, prepared_files, publish
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.parquet_files import repetitive, run_id_of_copy, write_parquet
from spark_upsert.delta.publish import Mirror
from spark_upsert.delta.upkeep import ORPHAN_MS
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.table.state.prepared import PreparedFiles, Twin
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns, WriteSet
from tests.support.clocked import ClockedStore, Now
from tests.support.delta import DeltaTable
from tests.support.mirrored import require_copy
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
        self.target = open_mirror_store(self.store, None)

    def append(self, *rows: tuple[Any, ...], gone: bool = False, **how: Any) -> None:
        self.table.upsert(self.rows(*rows, gone=gone), deletes="gone", **how)

    def rows(self, *rows: tuple[Any, ...], gone: bool = False) -> pa.Table:
        fields = [*COLUMNS, *self.table.schema.order]
        values = zip(*rows, strict=True)
        columns = {f.name: pa.array(v, f.type) for f, v in zip(fields, values, strict=True)}
        return pa.table({**columns, "gone": pa.array([gone] * len(rows), pa.bool_())})

    def stage(self, *rows: tuple[Any, ...]) -> StagedRuns:
        """Stage rows as a task of Spark does, and let them travel."""
        head = self.table.log.head()
        batch = self.rows(*rows)
        envelope = envelope_of_rows(head.schema, batch.schema, deletes="gone")
        commands = map(envelope.commands, batch.to_batches())
        staged: StagedRuns = pickle.loads(pickle.dumps(stage(Snapshot(self.store, head), commands)))
        return staged

    def commit(self, *staged: StagedRuns) -> None:
        base = Snapshot(self.store, self.table.log.at(staged[0].base_version))
        self.table.commit(WriteSet(base=base, staged=staged, allow_unordered=True))

    def require_copy(self) -> DeltaTable:
        return require_copy(self.table, self.target)

    def mirror(self) -> Mirror:
        return Mirror(self.table.log, self.store, self.target)

    def twin_names(self) -> set[str]:
        return {info.path for info in self.target.list("") if run_id_of_copy(info.path) is not None}


@contextmanager
def made_by_the_publication(*, twins: int = 0, look_ups: int = 0) -> Iterator[None]:
    """Require how many twins publications write themselves, and how often they look rows up."""
    with ExitStack() as stack:
        write, vectors_after_changes, vectors_of_manifest = (
            stack.enter_context(
                patch.object(owner, name, autospec=True, side_effect=getattr(owner, name))
            )
            for owner, name in (
                (Mirror, "_write"),
                (publish, "vectors_after_changes"),
                (publish, "vectors_of_manifest"),
            )
        )
        yield
    assert write.call_count == twins
    assert vectors_after_changes.call_count + vectors_of_manifest.call_count == look_ups


def put_and_delete(case: Publishing) -> None:
    case.append((2, "b2", 2), (9, "i", 2))
    case.append((1, "a", 2), (8, "z", 2), gone=True)
    case.append((1, "a3", 3), (5, "e", 3))


def commit_tasks(case: Publishing) -> None:
    case.commit(case.stage((1, "a2", 2), (9, "i", 2)), case.stage((2, "b2", 2)))


def commit_tasks_with_a_common_key(case: Publishing) -> None:
    case.commit(case.stage((1, "a3", 3)), case.stage((1, "a2", 2), (9, "i", 1)))


def commit_behind_another_epoch(case: Publishing) -> None:
    staged = case.stage((1, "a3", 3), (2, "b3", 3))
    case.append((1, "a2", 2), (9, "i", 1))
    case.commit(staged)


def add_a_column_before_the_commit(case: Publishing) -> None:
    staged = case.stage((9, "i", 1))
    wide = COLUMNS.append(pa.field("y", pa.int64()))
    case.table.alter(replace(case.table.schema, columns=wide))
    case.commit(staged)


def publish_new_keys_by_hand(case: Publishing) -> None:
    case.table.alter(case.table.schema, {"publish": "none"})
    case.append((9, "i", 1))
    case.table.publish()


@pytest.mark.parametrize(
    ("act", "twins", "look_ups"),
    [
        (put_and_delete, 0, 0),
        (lambda case: case.append((1, "late", 0), (2, "tied", 1), (3, "newer", 2)), 0, 0),
        (commit_tasks, 0, 0),
        (lambda case: case.table.compact(full=True), 0, 0),
        (commit_tasks_with_a_common_key, 0, 1),
        (commit_behind_another_epoch, 0, 1),
        (add_a_column_before_the_commit, 1, 0),
        (publish_new_keys_by_hand, 1, 0),
    ],
    ids=[
        "puts and deletes",
        "late and tied rows",
        "tasks",
        "a compaction",
        "tasks with a common key",
        "a commit behind another epoch",
        "a column that came before the commit",
        "new keys that are published by hand",
    ],
)
def test_a_publication_writes_no_twin_and_looks_nothing_up_without_need(
    act: Callable[[Publishing], Any], twins: int, look_ups: int
) -> None:
    case = Publishing(order=True)
    case.append((1, "a", 1), (2, "b", 1), (3, "c", 1))
    case.append((3, "c2", 1), (4, "d", 1))
    with made_by_the_publication(twins=twins, look_ups=look_ups):
        act(case)
    case.require_copy()


def test_rows_of_an_older_schema_are_prepared(caplog: pytest.LogCaptureFixture) -> None:
    case = Publishing()
    with FeedbackUpsert(case.table, "source") as loop:
        loop.ingest(pa.record_batch({"id": [1], "x": ["a"]}, schema=COLUMNS), 0)
        schema = case.table.schema
        wider = schema.columns.append(pa.field("more", pa.string()))
        case.table.alter(schema.accept(wider, merge=True))
        loop.advance(1)
        assert len(loop.run()) == 1
    assert "twin not written" not in caplog.text
    case.require_copy()


def test_a_twin_that_is_missing_is_made(caplog: pytest.LogCaptureFixture) -> None:
    """As where a task has no room, or no way to the place of the mirror."""
    case = Publishing()
    case.append((1, "a"))
    full = OSError(28, "No space left on device")
    with patch.object(prepared_files, "write_data_file", side_effect=full):
        staged = case.stage((1, "a2"), (2, "b"))
    assert "twin not written" in caplog.text
    assert "No space left" in caplog.text
    with made_by_the_publication(twins=1):
        case.commit(staged)
    case.require_copy()


def test_the_values_of_a_deleted_row_do_not_live_on_in_a_twin() -> None:
    case = Publishing()
    case.append((1, "a"), (2, "b"))
    rows = pa.table({"id": [1, 3], "x": ["secret", "c"], "gone": [True, False]})
    case.table.upsert(rows, deletes="gone")
    for name in case.twin_names():
        assert b"secret" not in bytes(case.target.read(name))
    case.require_copy()


def prepared(path: str, *, written_ms: int = 0, deaths: int = 0) -> PreparedFiles:
    """Return a twin, and the deaths of some rows."""
    twin = Twin(path=path, bytes=1, stats={}, written_ms=written_ms)
    dead = {"run": np.arange(deaths, dtype=np.uint32)}
    return PreparedFiles(place="p", columns=COLUMNS, twins={"run": twin}, deaths=dead)


def test_a_prepared_twin_is_used_for_an_hour() -> None:
    """Longer, and a cleaning might have taken it."""
    now = Now()
    cache = prepared_files.PreparationCache(now)
    cache.add(3, [prepared("t.parquet", written_ms=int(now() * 1000))])
    assert [twin.path for twin in cache.twins("p", COLUMNS).values()] == ["t.parquet"]
    assert not cache.twins("elsewhere", COLUMNS)
    now.advance(prepared_files.USED_FOR_MS / 1000 + 1)
    assert not cache.twins("p", COLUMNS)


def test_what_is_kept_for_a_mirror_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_files, "TWINS_MAX", 3)
    monkeypatch.setattr(prepared_files, "DEATHS_MAX", 10)
    cache = prepared_files.PreparationCache()
    for version in range(5):
        cache.add(version, [prepared(f"{version}", deaths=4)])
    assert len(cache.deaths(-1, 9)) == 2
    assert cache.drop(3, "p") == ["3"]
    assert cache.drop(None, "p") == ["4"]


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
    for seconds, left in ((ORPHAN_MS / 2000, {orphan}), (ORPHAN_MS / 1000, set[str]())):
        now.advance(seconds)
        case.append((1, f"after {seconds}"))
        case.table.vacuum()
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
    mirror.discard_prepared()
    [twin] = staged.ahead.twins.values()
    assert twin.path in case.twin_names()
    mirror.publish()
    case.require_copy()
    assert twin.path in DeltaTable(case.target).adds


def test_columns_whose_values_come_again_have_a_dictionary() -> None:
    count = 10_000
    columns = {
        "id": pa.array(range(count)),
        "p.q": pa.array([each % 7 for each in range(count)]),
        "tags": pa.array([["a", "b"]] * count),
        "of": pa.array([[("k", 1)]] * count, pa.map_(pa.string(), pa.int64())),
        "in": pa.array([{"s": "x"}] * count),
    }
    batch = pa.record_batch(columns)
    paths = ["p.q", "tags.list.element", "of.key_value.key", "of.key_value.value", "in.s"]
    assert repetitive(batch) == paths
    store = MemoryStore()
    _, footer = write_parquet(store, "t.parquet", batch.schema, [batch], {})
    group = footer.row_group(0)
    encodings = [set(group.column(at).encodings) for at in range(group.num_columns)]
    assert ["RLE_DICTIONARY" in each for each in encodings] == [False] + [True] * 5
