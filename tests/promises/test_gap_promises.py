"""P1 and P2 where objects are lost, their numbers are freed, or their folder is another tool's."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror, check_mirror
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.errors import CorruptionError, OptionError
from spark_upsert.options.write import WriteOptions
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.table import Table
from tests.support.clocked import HOUR_S, ClockedStore, Now
from tests.support.delta import DeltaTable
from tests.support.mirrored import canonical
from tests.support.stores import MemoryStore

SCHEMA = TableSchema.of(pa.schema({"id": pa.int64(), "n": pa.int64()}), keys=["id"])


class PublishedTable:
    """A table with a row for each version, and the mirror of each."""

    def __init__(self, versions: int) -> None:
        self.now = Now()
        self.store = ClockedStore(self.now)
        self.table = self.opened()
        self.table.ensure(SCHEMA)
        self.mirror = self.publisher()
        self.write(versions)

    def opened(self) -> Table:
        """Return the table for a process that remembers nothing."""
        return Table(self.store, clock=self.now)

    def publisher(self, place: Store | None = None) -> Mirror:
        """Return the mirror for a process that remembers nothing."""
        return Mirror(self.opened().log, self.store, place or open_mirror_store(self.store, None))

    def write(self, versions: int) -> None:
        """Append, and publish each version."""
        for _ in range(versions):
            self.now.advance(60)
            number = self.table.log.head().version + 1
            self.table.upsert(pa.table({"id": [number % 3], "n": [number]}))
            self.mirror.publish()

    def require_copy(self) -> None:
        """Require that the mirror has the rows of the table."""
        rows = DeltaTable(open_mirror_store(self.store, None)).rows()
        assert canonical(rows) == canonical(self.opened().snapshot())
        assert not list(check_mirror(self.publisher()))


def test_p1_a_process_that_begins_names_a_lost_version() -> None:
    written = PublishedTable(6)
    written.store.delete(commit_path(4))
    for use in (Table.snapshot, Table.check):
        with pytest.raises(CorruptionError, match=commit_path(4)):
            use(written.opened())


def test_p1_nothing_is_written_into_the_gap_of_a_lost_version() -> None:
    written = PublishedTable(3)
    before = written.opened()
    before.log.head()
    written.write(2)
    written.store.delete(commit_path(4))
    with pytest.raises(CorruptionError, match=commit_path(4)):
        before.upsert(pa.table({"id": [9], "n": [9]}))
    assert commit_path(4) not in written.store.objects


def test_p2_a_time_is_not_looked_up_past_a_lost_version() -> None:
    written = PublishedTable(6)
    time_ms = written.table.log.commit(3).timestamp_ms
    written.store.delete(commit_path(4))
    reader = written.opened()
    reader.log._head = written.table.log.head()
    with pytest.raises(CorruptionError, match=commit_path(4)):
        reader.log.version_at(time_ms)


def test_p1_nothing_is_published_into_the_gap_of_a_lost_commit() -> None:
    written = PublishedTable(3)
    before, written.mirror = written.mirror, written.publisher()
    written.write(2)
    lost = f"_delta/_delta_log/{3:020d}.json"
    written.store.delete(lost)
    for mirror in (before, written.publisher()):
        with pytest.raises(CorruptionError, match=lost):
            mirror.publish()
    assert lost not in written.store.objects


class Paused(PrefixStore):
    """The place of a mirror, for a publisher that is paused before its next commit."""

    def __init__(self, store: Store, pause: Callable[[], None]) -> None:
        super().__init__(store, "_delta")
        self._pauses = [pause]

    def put_if_absent(self, path: str, data: bytes) -> bool:
        while self._pauses:
            self._pauses.pop()()
        return super().put_if_absent(path, data)


def test_p1_a_publication_counts_where_readers_find_it() -> None:
    written = PublishedTable(3)
    written.table.upsert(pa.table({"id": [9], "n": [9]}))

    def pause() -> None:
        written.mirror = written.publisher()
        written.write(20)
        written.now.advance(8 * HOUR_S)
        written.write(10)
        written.mirror.vacuum(dry_run=False)

    done = written.publisher(Paused(written.store, pause)).publish()
    assert done.shown == written.table.log.head().version
    assert f"_delta/_delta_log/{3:020d}.json" not in written.store.objects
    written.require_copy()


def test_p1_a_cleaning_leaves_no_commit_before_one_that_it_removed() -> None:
    written = PublishedTable(32)
    written.now.advance(12 * HOUR_S)
    stuck = f"_delta/_delta_log/{3:020d}.json"
    data = written.store.objects[stuck]
    delete = written.store.delete

    def refuse(path: str) -> None:
        if path == stuck:
            raise OSError("not allowed")
        delete(path)

    written.store.delete = refuse  # type: ignore[method-assign]
    written.write(4)
    assert written.store.objects[stuck] == data
    assert f"_delta/_delta_log/{4:020d}.json" in written.store.objects


def test_p2_another_commit_of_the_same_number_is_not_the_one_that_is_remembered() -> None:
    written = PublishedTable(4)
    remembers, written.mirror = written.mirror, written.publisher()
    written.store.delete(f"_delta/_delta_log/{3:020d}.json")
    written.write(1)
    written.table.upsert(pa.table({"id": [1], "n": [99]}))
    remembers.publish()
    written.require_copy()


@pytest.mark.parametrize("path", ["_delta_log/0.json", "data/part-0.parquet"])
def test_p1_a_table_is_not_made_where_another_tool_removes_its_files(path: str) -> None:
    store = MemoryStore()
    store.objects[path] = b""
    for make in (
        lambda: Table(store).ensure(SCHEMA),
        lambda: plan_table_write(
            Table(store), WriteOptions(path=store.url, keys=("id",)), SCHEMA.columns
        ),
    ):
        with pytest.raises(OptionError, match="choose an empty folder"):
            make()
    assert list(store.objects) == [path]
