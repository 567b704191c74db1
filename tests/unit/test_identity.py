"""A table is itself: what is remembered of another table, or of another copy, is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import CorruptionError, OtherTableError
from spark_upsert.store import LocalStore, Store
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.log import Log
from spark_upsert.table.table import Table
from tests.support.model import Command
from tests.support.stores import MemoryStore
from tests.support.tables import append, plan_epoch, rows_at, schema_of

SCHEMA = schema_of(Scope.EPOCH)
HOW_MANY = 3


def made(store: Store, epochs: int = HOW_MANY) -> Table:
    """Return a table with some epochs, key by key."""
    table = Table(store)
    table.ensure(schema_of(Scope.EPOCH))
    for key in range(epochs):
        append(table, [Command(key, key, key)])
    return table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def table(folder: Path) -> Table:
    return made(LocalStore(folder))


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def made_anew(epochs: int) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        shutil.rmtree(folder)
        made(LocalStore(folder), epochs)

    return replace


def restored(folder: Path) -> None:
    """Put back a copy that was made one version earlier."""
    (folder / commit_path(HOW_MANY)).unlink()


def restored_and_written(folder: Path) -> None:
    restored(folder)
    append(Table(LocalStore(folder)), [Command(99, 99, 99)])


ACCIDENTS = {
    "was removed": removed,
    "was made anew": made_anew(0),
    "was made anew and has as many versions": made_anew(HOW_MANY),
    "was made anew and has more versions": made_anew(HOW_MANY + 2),
    "was restored from an older copy": restored,
    "was restored and written to": restored_and_written,
}


@pytest.mark.parametrize("accident", ACCIDENTS.values(), ids=ACCIDENTS)
def test_a_commit_is_refused_where_the_table(
    accident: Callable[[Path], None], table: Table, folder: Path
) -> None:
    staged = plan_epoch(table, [[[Command(7, 7, 7)]]])
    accident(folder)
    records = sorted(folder.rglob("*.json"))
    for _ in range(2):  # It does not get used to it.
        with pytest.raises(OtherTableError, match="belongs to version 3 of the table"):
            append(table, [Command(7, 7, 7)])
    # Another process commits what was staged, as that of a streaming query does.
    with pytest.raises(OtherTableError):
        Table(LocalStore(folder)).commit(staged)
    assert sorted(folder.rglob("*.json")) == records


def test_a_table_that_was_moved_is_itself(table: Table, folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "moved")
    append(Table(LocalStore(tmp_path / "moved")), [Command(7, 7, 7)])
    (tmp_path / "moved").rename(folder)
    assert append(table, [Command(8, 8, 8)]) is not None
    assert rows_at(table) == {0: 0, 1: 1, 2: 2, 7: 7, 8: 8}


def test_the_process_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = made(LocalStore("table"))
    monkeypatch.chdir("table")
    append(table, [Command(7, 7, 7)])
    assert rows_at(Table(LocalStore(tmp_path / "table"))) == {0: 0, 1: 1, 2: 2, 7: 7}


# -- where there are no folders --------------------------------------------------------


class Unsteady(MemoryStore):
    """A bucket in which something happens right before the next commit is put."""

    happens: Callable[[], None] | None = None

    def put_if_absent(self, path: str, data: bytes) -> bool:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        return super().put_if_absent(path, data)


def test_a_table_is_not_made_among_the_rest_of_another() -> None:
    store = MemoryStore()
    made(store)
    del store.objects[commit_path(0)]
    with pytest.raises(CorruptionError, match="the rest of a table"):
        Table(store).ensure(SCHEMA)


# -- the chain ---------------------------------------------------------------------------


def test_a_splice_is_named() -> None:
    store, other = MemoryStore(), MemoryStore()
    made(store)
    made(other)
    store.objects[commit_path(2)] = other.objects[commit_path(2)]
    with pytest.raises(CorruptionError, match="belongs to another table") as caught:
        Log(store).head()
    assert commit_path(2) in str(caught.value)


def test_a_checkpoint_of_another_table_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", 2)
    store, other = MemoryStore(), MemoryStore()
    made(store)
    made(other)
    path = commit_path(2).replace(".json", ".checkpoint.json")
    head = Log(store).head()
    store.objects[path] = other.objects[path]
    assert Log(store).head() == head
    with pytest.raises(CorruptionError, match=path):
        Log(store).at(2)
