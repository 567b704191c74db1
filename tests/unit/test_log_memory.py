"""What a process remembers of a log is a hint: it saves reads, and nothing else depends on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import CorruptionError, OtherTableError, TableNotFoundError
from spark_upsert.store import LocalStore
from spark_upsert.store.open import open_store
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.log.reader import LOGS, LogMemory, LogReader
from spark_upsert.table.table import Table
from tests.support.clocked import ClockedStore, Now
from tests.support.model import Command
from tests.support.stores import FaultyStore, MemoryStore, Steps, forget_runs_and_logs
from tests.support.tables import append, rows_at, schema_of

SCHEMA = schema_of(Scope.EPOCH)
EPOCHS = 5


def filled(store: LocalStore | MemoryStore, epochs: int = EPOCHS, first: int = 0) -> Table:
    """Return a table with some epochs, a key each."""
    table = Table(store)
    table.ensure(SCHEMA)
    for key in range(first, first + epochs):
        append(table, [Command(key, key, key)])
    return table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    filled(LocalStore(tmp_path / "table"))
    return tmp_path / "table"


def reads_of(folder: Path, *, memory: LogMemory | None = LOGS) -> int:
    """Return how many objects a new log reads to find its end."""
    steps = Steps()
    LogReader(FaultyStore(LocalStore(folder), steps), memory=memory).try_head()
    return sum(name.startswith("read ") for name in steps.names)


def test_new_log_of_a_known_table_reads_what_others_have_committed_since(folder: Path) -> None:
    assert reads_of(folder) == 2
    assert reads_of(folder, memory=None) == EPOCHS + 4
    memory = LogMemory()
    LogReader(LocalStore(folder), memory=memory).head()
    append(Table(LocalStore(folder)), [Command(70, 7, 7)])
    assert reads_of(folder, memory=memory) == 3
    forget_runs_and_logs()
    assert len(LOGS) == 0
    assert reads_of(folder) == EPOCHS + 5


# -- another table at the same place ------------------------------------------------------


def another(epochs: int) -> Callable[[Path], None]:
    def replace_table(folder: Path) -> None:
        shutil.rmtree(folder)
        elsewhere = folder.parent / "elsewhere"
        filled(LocalStore(elsewhere), epochs, first=50)
        elsewhere.rename(folder)

    return replace_table


def set_back(folder: Path) -> None:
    (folder / commit_path(EPOCHS)).unlink()


def written_on(folder: Path) -> None:
    moved = folder.rename(folder.parent / "elsewhere")
    append(Table(LocalStore(moved)), [Command(99, 99, 99)])
    append(Table(LocalStore(moved)), [Command(99, 98, 100)])
    moved.rename(folder)


def set_back_and_written_on(folder: Path) -> None:
    set_back(folder)
    written_on(folder)


CHANGES: dict[str, Callable[[Path], None]] = {
    "is removed": shutil.rmtree,
    "is another, shorter one": another(2),
    "is another one of the same length": another(EPOCHS),
    "is another, longer one": another(EPOCHS + 3),
    "is set back": set_back,
    "is set back and written on": set_back_and_written_on,
    "is written on elsewhere": written_on,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_memory_is_proven_by_the_storage_or_forgotten_where_a_table(
    folder: Path, change: Callable[[Path], None]
) -> None:
    assert LOGS.recall(LocalStore(folder)) is not None
    change(folder)
    head = LogReader(LocalStore(folder)).try_head()
    assert head == LogReader(LocalStore(folder), memory=None).try_head()
    assert LOGS.recall(LocalStore(folder)) == head
    assert reads_of(folder) == (1 if head is None else 2)


def test_remembered_version_that_was_cut_off_is_no_beginning() -> None:
    now, memory = Now(), LogMemory()
    store = FaultyStore(ClockedStore(now), Steps(), process="a process that sleeps")
    table = Table(store, clock=now)
    table.ensure(SCHEMA)
    append(table, [Command(1, 1, 1)])
    LogReader(store, memory=memory).head()
    for key in range(60):
        append(table, [Command(key, key, key)])
    now.advance(40 * 24 * 3600)
    table.expire(retain_versions=1, retain_ms=0)
    now.advance(40 * 24 * 3600)
    table.vacuum()
    with pytest.raises(FileNotFoundError):
        store.read(commit_path(1))
    assert LogReader(store, memory=memory).head() == table.log.head()


# -- damage -------------------------------------------------------------------------------


def damage(folder: Path, version: int) -> None:
    path = folder / commit_path(version)
    path.write_bytes(path.read_bytes().replace(b'"kind"', b'"kinb"'))


def test_damage_of_the_newest_version_is_named_at_once(folder: Path) -> None:
    damage(folder, EPOCHS)
    with pytest.raises(CorruptionError, match=commit_path(EPOCHS)):
        Table.open(str(folder))


def test_damage_of_a_remembered_version_is_named_where_it_is_read(folder: Path) -> None:
    damage(folder, 2)
    table = Table.open(str(folder))
    assert len(rows_at(table, EPOCHS)) == EPOCHS
    for read in (lambda: table.changes(2), lambda: table.snapshot(3), table.check):
        with pytest.raises(CorruptionError, match=commit_path(2)):
            read()
    forget_runs_and_logs()
    with pytest.raises(CorruptionError, match=commit_path(2)):
        Table.open(str(folder))


def test_check_of_an_open_table_still_knows_which_one_it_is(folder: Path) -> None:
    table = Table(LocalStore(folder))
    table.log.head()
    another(EPOCHS)(folder)
    with pytest.raises(OtherTableError):
        table.check()
    shutil.rmtree(folder)
    with pytest.raises(TableNotFoundError):
        Table(LocalStore(folder)).check()


# -- whose memory it is -------------------------------------------------------------------

S3 = {"region": "eu-west-1", "access_key_id": "us", "secret_access_key": "hush"}


def test_memory_belongs_to_a_place_and_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    key = open_store("s3://b/t", S3).cache_key
    assert key is not None
    assert key == open_store("s3://b/t/", S3).cache_key
    assert "hush" not in repr(key)
    assert key != open_store("s3://b/other", S3).cache_key
    for setting in ({"secret_access_key": "x"}, {"endpoint": "https://e"}, {"timeout": "9s"}):
        assert key != open_store("s3://b/t", {**S3, **setting}).cache_key
    monkeypatch.setenv("AWS_PROFILE", "x")
    assert key != open_store("s3://b/t", S3).cache_key


# -- bounds -------------------------------------------------------------------------------


class Place(MemoryStore):
    """A store of which only the place is of interest."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self._name = name

    @property
    def cache_key(self) -> str | None:
        return self._name


def version(number: int, table_id: str = "t", slices: int = 0) -> Manifest:
    head = filled(MemoryStore(), 1).log.head()
    token = f"{table_id}-{number}"
    many = tuple(head.slices) * slices
    return replace(head, version=number, table_id=table_id, token=token, slices=many)


def test_log_memory_is_bounded_and_of_stores_with_a_key() -> None:
    memory = LogMemory(bytes_max=1 << 20)
    for name in "abcdefgh":
        memory.keep(Place(name), version(1, slices=300))
        assert memory.bytes_used <= 1 << 20
    assert 1 < len(memory) < 8
    for place in (Place("a large one"), Place(None)):
        memory.keep(place, version(1, slices=3000 if place.cache_key else 0))
        assert memory.recall(place) is None
    assert memory.recall(Place("h")) is not None
    memory.clear()
    assert (len(memory), memory.bytes_used) == (0, 0)


def test_only_an_older_version_or_a_disproven_one_gives_way() -> None:
    memory, place = LogMemory(), Place("a")
    old, new, other = version(6), version(7), version(2, table_id="another")
    memory.keep(place, new)
    memory.keep(place, old)
    memory.forget(place, old)
    assert memory.recall(place) is new
    memory.keep(place, other)
    assert memory.recall(place) is other
    memory.forget(place, other)
    assert memory.recall(place) is None
    assert memory.bytes_used == 0


def test_threads_share_the_log_memory() -> None:
    memory = LogMemory(count_max=3)
    versions = [version(number) for number in range(20)]

    def use(seed: int) -> None:
        place = Place(f"{seed % 5}")
        for manifest in versions:
            memory.keep(place, manifest)
            known = memory.recall(place)
            if seed % 3 == 0 and known is not None:
                memory.forget(place, known)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(64)))
    assert len(memory) <= 3
    kept = [memory.recall(Place(f"{n}")) for n in range(5)]
    assert (memory.bytes_used == 0) == (not any(kept))
