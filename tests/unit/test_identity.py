"""A table is itself: what is remembered of another table, or of another copy, is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import CorruptionError, OtherTableError
from spark_upsert.store import LocalStore, Store
from spark_upsert.store.records import encode
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import commit_path, manifest_from_json, manifest_to_json
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, apply
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
    accident(folder)
    before = sorted(folder.rglob("*"))
    with pytest.raises(OtherTableError, match="belongs to version 3 of the table"):
        append(table, [Command(7, 7, 7)])
    assert [path for path in sorted(folder.rglob("*")) if path.suffix == ".json"] == [
        path for path in before if path.suffix == ".json"
    ]
    with pytest.raises(OtherTableError):  # It does not get used to it.
        append(table, [Command(7, 7, 7)])


@pytest.mark.parametrize("accident", ACCIDENTS.values(), ids=ACCIDENTS)
def test_a_staged_epoch_is_refused_where_the_table(
    accident: Callable[[Path], None], table: Table, folder: Path
) -> None:
    """It is committed by another process, as that of a streaming query is."""
    epoch = plan_epoch(table, [[[Command(7, 7, 7)]]])
    accident(folder)
    with pytest.raises(OtherTableError):
        Table(LocalStore(folder)).commit(epoch)


def test_a_table_that_was_moved_is_itself(table: Table, folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "moved")
    moved = Table(LocalStore(tmp_path / "moved"))
    assert moved.log.head().table_id == table.log._head.table_id  # type: ignore[union-attr]
    append(moved, [Command(7, 7, 7)])
    (tmp_path / "moved").rename(folder)
    assert append(table, [Command(8, 8, 8)]) is not None
    assert rows_at(table) == {0: 0, 1: 1, 2: 2, 7: 7, 8: 8}


def test_the_process_may_change_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = made(LocalStore("table"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
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


def test_a_commit_into_nothing_is_not_acknowledged_and_taken_back() -> None:
    store = Unsteady()
    table = made(store)
    store.happens = store.objects.clear
    with pytest.raises(OtherTableError, match="no table"):
        append(table, [Command(7, 7, 7)])
    assert not [path for path in store.objects if path.startswith("_log/")]


def test_a_commit_into_another_log_is_not_acknowledged_and_taken_back() -> None:
    store = Unsteady()
    table = made(store)
    other = made(MemoryStore())

    def replace() -> None:
        store.objects.clear()
        store.objects.update(other.store.objects)  # type: ignore[attr-defined]

    store.happens = replace
    with pytest.raises(OtherTableError, match=r"but at .* lies version 3 of the table"):
        append(table, [Command(7, 7, 7)])
    # The other table goes on as if nothing had been.
    assert append(Table(store), [Command(8, 8, 8)]) is not None


def test_a_table_is_not_made_among_the_rest_of_another() -> None:
    store = MemoryStore()
    made(store)
    del store.objects[commit_path(0)]
    with pytest.raises(CorruptionError, match="the rest of a table"):
        Table(store).ensure(SCHEMA)


# -- the chain ---------------------------------------------------------------------------


def commit(version: int, token: str, previous: str) -> Commit:
    return Commit(
        version=version,
        kind=Kind.APPEND if version else Kind.CREATE,
        timestamp_ms=version,
        token=token,
        previous=previous,
        schema=None if version else SCHEMA,
    )


def test_a_table_is_named_by_the_token_of_its_first_version() -> None:
    manifest = apply(apply(None, commit(0, "a", "")), commit(1, "b", "a"))
    assert (manifest.table_id, manifest.token) == ("a", "b")
    assert manifest_from_json(manifest_to_json(manifest)).table_id == "a"


@pytest.mark.parametrize(
    ("before", "spliced"),
    [
        pytest.param(None, commit(0, "a", "x"), id="as the first"),
        pytest.param(apply(None, commit(0, "a", "")), commit(1, "b", "x"), id="behind the first"),
    ],
)
def test_a_version_of_another_log_is_refused(before: Manifest | None, spliced: Commit) -> None:
    with pytest.raises(CorruptionError, match="made upon 'x'"):
        apply(before, spliced)


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
    assert encode({})  # The records end with a checksum; these two were whole.
