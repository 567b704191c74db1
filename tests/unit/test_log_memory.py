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


def made(store: LocalStore | MemoryStore, epochs: int = EPOCHS, first: int = 0) -> Table:
    """Return a table with some epochs, a key each."""
    table = Table(store)
    table.ensure(SCHEMA)
    for key in range(first, first + epochs):
        append(table, [Command(key, key, key)])
    return table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "table"


def reads_of(store: LocalStore, *, memory: LogMemory | None) -> int:
    """Return how many objects a new log reads to find its end."""
    steps = Steps()
    LogReader(FaultyStore(store, steps), memory=memory).try_head()
    return sum(name.startswith("read ") for name in steps.names)


def test_who_opens_a_known_table_reads_no_commit_again(folder: Path) -> None:
    made(LocalStore(folder))
    assert reads_of(LocalStore(folder), memory=LOGS) == 2
    assert reads_of(LocalStore(folder), memory=None) == EPOCHS + 4


def test_who_opens_it_reads_what_others_have_committed_since(folder: Path) -> None:
    made(LocalStore(folder))
    memory = LogMemory()
    LogReader(LocalStore(folder), memory=memory).head()
    append(Table(LocalStore(folder)), [Command(70, 7, 7)])
    assert reads_of(LocalStore(folder), memory=memory) == 3


def test_the_end_of_the_process_is_the_end_of_its_memory(folder: Path) -> None:
    made(LocalStore(folder))
    forget_runs_and_logs()
    assert len(LOGS) == 0
    assert reads_of(LocalStore(folder), memory=LOGS) == EPOCHS + 4


# -- another table at the same place ------------------------------------------------------


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def made_anew(epochs: int) -> Callable[[Path], None]:
    def replace_it(folder: Path) -> None:
        shutil.rmtree(folder)
        elsewhere = folder.parent / "elsewhere"
        made(LocalStore(elsewhere), epochs, first=50)
        elsewhere.rename(folder)

    return replace_it


def set_back(folder: Path) -> None:
    (folder / commit_path(EPOCHS)).unlink()


def set_back_and_written(folder: Path) -> None:
    set_back(folder)
    moved = folder.rename(folder.parent / "elsewhere")
    append(Table(LocalStore(moved)), [Command(99, 99, 99)])
    append(Table(LocalStore(moved)), [Command(99, 98, 100)])
    moved.rename(folder)


def written_on(folder: Path) -> None:
    moved = folder.rename(folder.parent / "elsewhere")
    append(Table(LocalStore(moved)), [Command(99, 99, 99)])
    moved.rename(folder)


CHANGES = [
    pytest.param(removed, id="it was removed"),
    pytest.param(made_anew(2), id="another one that is shorter took its place"),
    pytest.param(made_anew(EPOCHS), id="another one of the same length took its place"),
    pytest.param(made_anew(EPOCHS + 3), id="another one that is longer took its place"),
    pytest.param(set_back, id="it was set back"),
    pytest.param(set_back_and_written, id="it was set back and written on"),
    pytest.param(written_on, id="it was written on elsewhere"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_remembered_is_proven_by_the_storage(
    folder: Path, change: Callable[[Path], None]
) -> None:
    made(LocalStore(folder))
    assert LOGS.recall(LocalStore(folder)) is not None
    change(folder)
    found = LogReader(LocalStore(folder)).try_head()
    assert found == LogReader(LocalStore(folder), memory=None).try_head()


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_disproven_is_forgotten(folder: Path, change: Callable[[Path], None]) -> None:
    made(LocalStore(folder))
    change(folder)
    head = LogReader(LocalStore(folder)).try_head()
    known = LOGS.recall(LocalStore(folder))
    assert known == head
    assert reads_of(LocalStore(folder), memory=LOGS) == (1 if known is None else 2)


def test_a_version_that_was_cut_off_is_no_beginning() -> None:
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


def test_damage_of_the_newest_version_is_told_at_once(folder: Path) -> None:
    made(LocalStore(folder))
    damage(folder, EPOCHS)
    with pytest.raises(CorruptionError, match=commit_path(EPOCHS)):
        Table.open(str(folder))


def test_damage_of_a_version_that_is_folded_already_is_told_to_who_needs_it(folder: Path) -> None:
    made(LocalStore(folder))
    damage(folder, 2)
    table = Table.open(str(folder))
    assert len(rows_at(table, EPOCHS)) == EPOCHS
    with pytest.raises(CorruptionError, match=commit_path(2)):
        table.changes(2)
    with pytest.raises(CorruptionError, match=commit_path(2)):
        table.snapshot(3)


def test_a_check_and_another_process_tell_it_as_well(folder: Path) -> None:
    table = made(LocalStore(folder))
    damage(folder, 2)
    with pytest.raises(CorruptionError, match=commit_path(2)):
        table.check()
    with pytest.raises(CorruptionError, match=commit_path(2)):
        Table.open(str(folder)).check()
    forget_runs_and_logs()
    with pytest.raises(CorruptionError, match=commit_path(2)):
        Table.open(str(folder))


def test_a_check_of_an_open_table_still_knows_which_one_it_is(folder: Path) -> None:
    table = made(LocalStore(folder))
    made_anew(EPOCHS)(folder)
    with pytest.raises(OtherTableError):
        table.check()
    removed(folder)
    with pytest.raises(TableNotFoundError):
        Table(LocalStore(folder)).check()


# -- whose memory it is -------------------------------------------------------------------

S3 = {"region": "eu-west-1", "access_key_id": "us", "secret_access_key": "hush"}


@pytest.mark.parametrize(
    ("url", "settings", "variables", "is_shared"),
    [
        pytest.param("s3://b/t", {}, {}, True, id="the same place and settings"),
        pytest.param("s3://b/t/", {}, {}, True, id="the same place, written otherwise"),
        pytest.param("s3://b/other", {}, {}, False, id="another place"),
        pytest.param("s3://b/t", {"secret_access_key": "x"}, {}, False, id="another credential"),
        pytest.param("s3://b/t", {"endpoint": "https://e"}, {}, False, id="another server"),
        pytest.param("s3://b/t", {"timeout": "9s"}, {}, False, id="another setting of the client"),
        pytest.param("s3://b/t", {}, {"AWS_PROFILE": "x"}, False, id="another environment"),
    ],
)
def test_a_memory_belongs_to_a_place_and_its_settings(
    url: str,
    settings: dict[str, str],
    variables: dict[str, str],
    is_shared: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = open_store("s3://b/t", S3).cache_key
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    other = open_store(url, {**S3, **settings}).cache_key
    assert one is not None
    assert (one == other) is is_shared
    assert "hush" not in repr(one)


def test_a_store_without_a_key_is_not_remembered() -> None:
    store = MemoryStore()
    memory = LogMemory()
    made(store)
    LogReader(store, memory=memory).head()
    assert len(memory) == 0
    assert memory.recall(store) is None


# -- bounds -------------------------------------------------------------------------------


class Place(MemoryStore):
    """A store of which only the place is of interest."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    @property
    def cache_key(self) -> str:
        return self._name


def version(number: int, table_id: str = "t", slices: int = 0) -> Manifest:
    head = made(MemoryStore(), 1).log.head()
    return replace(
        head,
        version=number,
        table_id=table_id,
        token=f"{table_id}-{number}",
        slices=head.slices * slices,
    )


def test_the_least_recently_used_table_is_forgotten_first() -> None:
    memory = LogMemory(count_max=2)
    one, two, three = Place("one"), Place("two"), Place("three")
    memory.keep(one, version(1))
    memory.keep(two, version(1))
    assert memory.recall(one) is not None
    memory.keep(three, version(1))
    assert memory.recall(two) is None
    assert memory.recall(one) is not None
    assert len(memory) == 2


def test_bytes_are_bounded() -> None:
    memory = LogMemory(bytes_max=1 << 20)
    for name in "abcdefgh":
        memory.keep(Place(name), version(1, slices=300))
        assert memory.bytes_used <= 1 << 20
    assert 1 < len(memory) < 8
    memory.keep(Place("a large one"), version(1, slices=3000))
    assert memory.recall(Place("a large one")) is None
    assert memory.recall(Place("h")) is not None
    memory.clear()
    assert (len(memory), memory.bytes_used) == (0, 0)


def test_a_newer_version_of_a_table_is_not_replaced_by_an_older_one() -> None:
    memory, place = LogMemory(), Place("a")
    new, old, other = version(7), version(6), version(2, table_id="another")
    memory.keep(place, new)
    memory.keep(place, old)
    assert memory.recall(place) is new
    memory.keep(place, other)
    assert memory.recall(place) is other


def test_only_what_was_disproven_is_forgotten() -> None:
    memory, place = LogMemory(), Place("a")
    old, new = version(6), version(7)
    memory.keep(place, old)
    memory.keep(place, new)
    memory.forget(place, old)
    assert memory.recall(place) is new
    memory.forget(place, new)
    assert memory.recall(place) is None
    assert memory.bytes_used == 0


def test_threads_share_it() -> None:
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
    memory.clear()
    assert memory.bytes_used == 0
