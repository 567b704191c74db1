"""The promises of `store.protocol`, kept by every store.

obstore's own stores in memory and on disk stand in for a bucket: what a server does beside
is in `integration/test_object_store.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import obstore.store
import pytest

from spark_upsert.errors import OptionError, StorageError
from spark_upsert.store import Store, local
from spark_upsert.store.local import LocalStore
from spark_upsert.store.object_store import RANGE_BYTES, ObjectStore
from spark_upsert.store.open import open_store
from tests.support.stores import MemoryStore

MakeStore = Callable[[Path], Store]


def bucket_in_memory(folder: Path) -> Store:
    options = {"cache_dir": str(folder / "cache")}
    return ObjectStore("s3://bucket/table", options, client=obstore.store.MemoryStore())


def bucket_on_disk(folder: Path) -> Store:
    options = {"cache_dir": str(folder / "cache")}
    client = obstore.store.LocalStore(folder / "bucket", mkdir=True)
    return ObjectStore("s3://bucket/table", options, client=client)


STORES: dict[str, MakeStore] = {
    "a local folder": lambda folder: LocalStore(folder / "table"),
    "a bucket in memory": bucket_in_memory,
    "a bucket on disk": bucket_on_disk,
    "the double of other tests": lambda folder: MemoryStore(),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    made = STORES[request.param](tmp_path)
    made.prepare("_log")
    return made


def paths(store: Store, prefix: str, *, after: str = "") -> list[str]:
    return [each.path for each in store.list(prefix, after=after)]


def write(store: Store, path: str, data: bytes) -> None:
    with store.create(path) as sink:
        sink.write(data)


# -- reading and writing whole objects -------------------------------------------------


def test_what_was_put_is_read(store: Store) -> None:
    store.put("_log/hint", b"seven")
    assert store.read("_log/hint") == b"seven"


def test_put_replaces(store: Store) -> None:
    store.put("_log/hint", b"a longer first text")
    store.put("_log/hint", b"second")
    assert store.read("_log/hint") == b"second"


def test_an_absent_object_is_a_file_not_found(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.read("_log/none")


def test_an_absent_object_cannot_be_mapped(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.map("data/none.arrow")


def test_a_deleted_object_is_absent(store: Store) -> None:
    store.put("data/a", b"a")
    store.delete("data/a")
    assert paths(store, "data") == []
    with pytest.raises(FileNotFoundError):
        store.read("data/a")


def test_deleting_what_is_absent_is_no_error(store: Store) -> None:
    store.delete("data/none")


# -- the commit point ------------------------------------------------------------------


def test_put_if_absent_creates_once(store: Store) -> None:
    assert store.put_if_absent("_log/0.json", b"first")
    assert not store.put_if_absent("_log/0.json", b"second")
    assert store.read("_log/0.json") == b"first"


def test_put_if_absent_makes_no_folder(tmp_path: Path) -> None:
    """Else a commit to a table that was removed would be acknowledged, and be nowhere."""
    store = LocalStore(tmp_path / "table")
    with pytest.raises(StorageError, match="No such file"):
        store.put_if_absent("_log/1.json", b"")
    assert not (tmp_path / "table").exists()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that are made durable, one after the other."""
    found: list[Path] = []
    monkeypatch.setattr(local, "sync_folder", found.append)
    return found


def test_the_folders_above_a_table_are_made_durable_by_the_first_store(
    tmp_path: Path, synced: list[Path]
) -> None:
    LocalStore(tmp_path / "lake" / "one").prepare("_log")
    above = [tmp_path / "lake" / "one", tmp_path / "lake", tmp_path]
    assert synced[:3] == above
    synced.clear()
    LocalStore(tmp_path / "lake" / "one").prepare("_log")
    assert synced == []
    LocalStore(tmp_path / "lake" / "two").prepare("_log")
    assert synced == [tmp_path / "lake" / "two", tmp_path / "lake"]


def test_a_folder_that_is_made_again_is_made_durable_again(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a file system that gives the same number again.
    monkeypatch.setattr(local, "_number", lambda folder: (1, 1))
    store = LocalStore(tmp_path / "table")
    store.prepare("_log")
    (tmp_path / "table" / "_log").rmdir()
    (tmp_path / "table").rmdir()
    synced.clear()
    store.prepare("_log")
    assert synced == [tmp_path / "table", tmp_path]


def test_a_process_remembers_a_bounded_number_of_folders() -> None:
    known = local._Folders(count_max=2)
    for number, name in enumerate("abac"):
        known.remember(Path(name), (1, number))
    assert len(known) == 2
    assert not known.is_durable(Path("b"), (1, 1))
    assert known.is_durable(Path("a"), (1, 2))
    assert known.is_durable(Path("c"), (1, 3))


def test_a_relative_path_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("table")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.put("a", b"here")
    assert (tmp_path / "table" / "a").read_bytes() == b"here"
    assert store.url == str(tmp_path / "table")


def test_put_if_absent_creates_again_after_a_delete(store: Store) -> None:
    assert store.put_if_absent("_log/0.json", b"first")
    store.delete("_log/0.json")
    assert store.put_if_absent("_log/0.json", b"second")


def test_put_if_absent_refuses_the_same_bytes_of_another_call(store: Store) -> None:
    one, other = bytes(bytearray(b"same")), bytes(bytearray(b"same"))
    assert store.put_if_absent("_log/0.json", one)
    assert not store.put_if_absent("_log/0.json", other)


def test_what_another_created_can_be_made_durable(store: Store) -> None:
    store.put_if_absent("_log/0.json", b"first")
    store.sync("_log/0.json")
    store.sync("_log/0.json")
    assert store.read("_log/0.json") == b"first"


def test_a_lost_race_leaves_nothing_behind(store: Store) -> None:
    store.put_if_absent("_log/0.json", b"first")
    store.put_if_absent("_log/0.json", b"second")
    assert paths(store, "_log") == ["_log/0.json"]


def test_of_many_threads_one_creates(store: Store) -> None:
    keys, thread_count = 20, 4
    won: list[tuple[int, int]] = []
    start = threading.Barrier(thread_count)

    def race(thread: int) -> None:
        for key in range(keys):
            start.wait()
            if store.put_if_absent(f"_log/{key}.json", b"%d" % thread):
                won.append((key, thread))

    threads = [threading.Thread(target=race, args=(index,)) for index in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for key, _ in won) == list(range(keys))
    assert all(store.read(f"_log/{key}.json") == b"%d" % thread for key, thread in won)


# -- sinks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="nothing"),
        pytest.param([b"one"], id="one piece"),
        pytest.param([b"one", b"", memoryview(b"two")], id="several pieces"),
        pytest.param([b"x" * RANGE_BYTES, b"tail"], id="more than one part"),
    ],
)
def test_a_closed_sink_is_read_and_mapped_whole(store: Store, pieces: list[bytes]) -> None:
    with store.create("data/a.arrow") as sink:
        assert [sink.write(piece) for piece in pieces] == [len(piece) for piece in pieces]
    whole = b"".join(pieces)
    assert store.read("data/a.arrow") == whole
    assert store.map("data/a.arrow").to_pybytes() == whole
    assert [(each.path, each.bytes) for each in store.list("data")] == [
        ("data/a.arrow", len(whole))
    ]


@pytest.mark.parametrize("byte_count", [0, 3, RANGE_BYTES + 1])
def test_a_sink_that_an_error_interrupts_leaves_nothing(store: Store, byte_count: int) -> None:
    def interrupted() -> None:
        with store.create("data/a.arrow") as sink:
            sink.write(b"x" * byte_count)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert paths(store, "data") == []


def test_two_sinks_do_not_mix(store: Store) -> None:
    with store.create("data/a") as one, store.create("data/b") as other:
        one.write(b"a")
        other.write(b"b")
        one.write(b"A")
    assert (store.read("data/a"), store.read("data/b")) == (b"aA", b"b")


# -- mapping ---------------------------------------------------------------------------


def test_a_mapped_object_outlives_its_delete(store: Store) -> None:
    write(store, "data/a.arrow", b"immutable")
    mapped = store.map("data/a.arrow")
    store.delete("data/a.arrow")
    assert mapped.to_pybytes() == b"immutable"


def test_what_is_mapped_has_a_length_until_it_is_gone(tmp_path: Path) -> None:
    # Not of the double, which maps no file.
    for name, make in STORES.items():
        if name == "the double of other tests":
            continue
        store = make(tmp_path / name)
        write(store, "data/a", b"x" * 5000)
        buffer = store.map("data/a")
        file = store.mapped_file("data/a")
        assert file is not None
        assert file.length == 5000 == buffer.size
        assert store.mapped_file("data/a") == file
        store.delete("data/a")
        store.forget("data/a")
        assert store.mapped_file("data/a") is None


def test_mapping_twice_gives_the_same_bytes(store: Store) -> None:
    write(store, "data/a.arrow", b"immutable")
    assert store.map("data/a.arrow").equals(store.map("data/a.arrow"))


# -- listing ---------------------------------------------------------------------------


def test_a_listing_is_sorted_and_shows_lengths(store: Store) -> None:
    for name in ("b", "a", "_hint", "10", "2"):
        store.put(f"_log/{name}", b"x" * len(name))
    assert [(each.path, each.bytes) for each in store.list("_log")] == [
        ("_log/10", 2),
        ("_log/2", 1),
        ("_log/_hint", 5),
        ("_log/a", 1),
        ("_log/b", 1),
    ]


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("", ["_log/1", "_log/2", "_log/3"]),
        ("_log/0", ["_log/1", "_log/2", "_log/3"]),
        ("_log/1", ["_log/2", "_log/3"]),
        ("_log/15", ["_log/2", "_log/3"]),
        ("_log/3", []),
    ],
)
def test_a_listing_begins_behind_a_path(store: Store, after: str, found: list[str]) -> None:
    for name in "231":
        store.put(f"_log/{name}", b"")
    assert paths(store, "_log", after=after) == found


@pytest.mark.parametrize("after", ["", "data/"])
def test_a_listing_shows_objects_directly_below(store: Store, after: str) -> None:
    store.put("data/a", b"")
    store.put("data/deep/b", b"")
    store.put("database/c", b"")
    store.put("d", b"")
    assert paths(store, "data", after=after) == ["data/a"]
    assert paths(store, "data/deep") == ["data/deep/b"]


def test_the_root_can_be_listed(store: Store) -> None:
    store.put("a", b"")
    store.put("data/b", b"")
    assert paths(store, "") == ["a"]


def test_a_folder_that_never_was_is_empty(store: Store) -> None:
    assert paths(store, "nowhere") == []


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ("", ["_log", "a", "a b", "data", "é"]),
        ("data", ["deep", "deeper"]),
        ("data/deep", []),
        ("d", []),
        ("nowhere", []),
        ("data/a", []),
    ],
)
def test_folders_are_those_directly_below(store: Store, prefix: str, found: list[str]) -> None:
    store.put("_log/1", b"")
    for path in ("a/1", "a b/1", "data/a", "data/deep/b", "data/deeper/b", "file", "é/x"):
        store.put(path, b"")
    assert list(store.folders(prefix)) == found


def test_a_long_listing_is_whole(store: Store) -> None:
    names = [f"data/{index:04d}" for index in range(120)]
    for name in names:
        store.put(name, b"")
    assert paths(store, "data") == names
    assert paths(store, "data", after=names[59]) == names[60:]


def test_an_object_has_the_time_of_its_writing(tmp_path: Path) -> None:
    # Not of the double, which has no clock.
    for make in (STORES["a local folder"], bucket_in_memory, bucket_on_disk):
        store = make(tmp_path)
        store.put("data/a", b"")
        (found,) = store.list("data")
        assert abs(found.modified_s - time.time()) < 60


# -- what is peculiar to one kind ------------------------------------------------------


def test_files_in_the_making_are_invisible_on_disk(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("_log/a", b"")
    (tmp_path / "_log" / ".tmp-of-a-crash").write_bytes(b"torn")
    assert paths(store, "_log") == ["_log/a"]


def test_an_object_of_a_bucket_appears_when_its_sink_closes(tmp_path: Path) -> None:
    store = bucket_in_memory(tmp_path)
    with store.create("data/a") as sink:
        sink.write(b"x" * (RANGE_BYTES + 1))
        assert paths(store, "data") == []
    assert paths(store, "data") == ["data/a"]


@pytest.mark.parametrize(
    ("path", "kind", "url"),
    [
        ("/tmp/table", LocalStore, "/tmp/table"),
        ("file:///tmp/a%20table", LocalStore, "/tmp/a table"),
        ("s3://bucket/table/", ObjectStore, "s3://bucket/table"),
        ("s3a://bucket/table", ObjectStore, "s3a://bucket/table"),
        ("gs://bucket/table", ObjectStore, "gs://bucket/table"),
        ("abfss://container@account.dfs.core.windows.net/table", ObjectStore, None),
    ],
)
def test_a_path_says_where_a_table_lies(path: str, kind: type, url: str | None) -> None:
    store = open_store(path)
    assert isinstance(store, kind)
    assert store.url == (url or path)


def test_a_store_does_not_show_its_secrets() -> None:
    options = {"access_key_id": "me", "secret_access_key": "hush"}
    store = open_store("s3://bucket/table", options)
    assert repr(store) == "ObjectStore('s3://bucket/table')"
    assert "hush" not in repr(vars(store))


def test_a_store_does_not_show_the_password_of_a_proxy() -> None:
    store = open_store("s3://bucket/table", {"proxy_url": "http://me:hush@proxy:3128"})
    assert "hush" not in repr(vars(store))


def test_options_that_make_no_connection_are_an_option_error() -> None:
    with pytest.raises(OptionError, match="service account file"):
        open_store("gs://bucket/table", {"service_account": "/nowhere/key.json"})
