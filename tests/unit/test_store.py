"""The promises of `store.protocol`, kept by every store.

obstore's own stores in memory and on disk stand in for a bucket: what a server does beside
is in `integration/test_object_store.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import obstore.store
import pytest

from spark_upsert.errors import OptionError, StorageError
from spark_upsert.store import Store, local
from spark_upsert.store.local import LocalStore
from spark_upsert.store.object_store import RANGE_BYTES, ObjectStore
from spark_upsert.store.open import open_store
from spark_upsert.store.protocol import PROBE
from tests.support.counted_s3 import Traffic, counted_s3
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


COUNTED = "the gateway that counts"


@pytest.fixture(params=[*STORES, COUNTED])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with ExitStack() as stack:
        if request.param == COUNTED:
            gateway = stack.enter_context(counted_s3(tmp_path / "s3"))
            store = open_store(gateway.url("table"), gateway.storage(tmp_path / "cache"))
        else:
            store = STORES[request.param](tmp_path)
        store.prepare("_log")
        store.delete(PROBE)
        yield store


def paths(store: Store, prefix: str, *, after: str = "") -> list[str]:
    return [each.path for each in store.list(prefix, after=after)]


def write(store: Store, path: str, data: bytes) -> None:
    with store.create(path) as sink:
        sink.write(data)


def test_an_object_is_put_replaced_and_deleted(store: Store) -> None:
    store.delete("data/a")  # Deleting an absent object is no error.
    store.put("data/a", b"a longer first text")
    store.put("data/a", b"second")
    assert store.read("data/a") == b"second"
    store.delete("data/a")
    assert paths(store, "data") == []
    for read in (store.read, store.map):
        with pytest.raises(FileNotFoundError):
            read("data/a")


def test_put_if_absent_creates_once(store: Store) -> None:
    one, other = bytes(bytearray(b"same")), bytes(bytearray(b"same"))
    assert store.put_if_absent("_log/0.json", one)
    assert not store.put_if_absent("_log/0.json", other), "the same bytes of another call"
    assert not store.put_if_absent("_log/0.json", b"second")
    for _ in range(2):
        store.sync("_log/0.json")
    assert store.read("_log/0.json") == b"same"
    assert paths(store, "_log") == ["_log/0.json"], "a lost race leaves nothing behind"
    store.delete("_log/0.json")
    assert store.put_if_absent("_log/0.json", b"second")


def test_put_if_absent_makes_no_folder(tmp_path: Path) -> None:
    """Else a commit to a table that was removed would be acknowledged, and be nowhere."""
    store = LocalStore(tmp_path / "table")
    with pytest.raises(StorageError, match="No such file"):
        store.put_if_absent("_log/1.json", b"")
    assert not (tmp_path / "table").exists()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that are made durable, one after the other."""
    folders: list[Path] = []
    monkeypatch.setattr(local, "sync_folder", folders.append)
    return folders


def test_the_folders_above_a_table_are_made_durable_by_the_first_store(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, one, two = (tmp_path / name for name in ("lake", "lake/one", "lake/two"))
    LocalStore(one).prepare("_log")
    assert synced[:3] == [one, lake, tmp_path]
    synced.clear()
    LocalStore(one).prepare("_log")
    assert synced == []
    LocalStore(two).prepare("_log")
    assert synced == [two, lake]
    # A folder that is made again, as of a file system that gives the same number again.
    monkeypatch.setattr(local, "_number", lambda folder: (1, 1))
    store = LocalStore(lake / "three")
    store.prepare("_log")
    (lake / "three" / "_log").rmdir()
    (lake / "three").rmdir()
    synced.clear()
    store.prepare("_log")
    assert synced == [lake / "three", lake]


def test_a_process_remembers_a_bounded_number_of_folders() -> None:
    known = local._Folders(count_max=2)
    for number, name in enumerate("abac"):
        known.remember(Path(name), (1, number))
    assert len(known) == 2
    assert not known.is_durable(Path("b"), (1, 1))
    assert known.is_durable(Path("a"), (1, 2))


def test_a_relative_path_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = LocalStore("table")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.put("a", b"here")
    assert (tmp_path / "table" / "a").read_bytes() == b"here"
    assert store.url == str(tmp_path / "table")


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


@pytest.mark.parametrize(
    "pieces",
    [[], [b"one"], [b"one", b"", memoryview(b"two")], [b"x" * RANGE_BYTES, b"tail"]],
    ids=["nothing", "one piece", "several pieces", "more than one part"],
)
def test_a_closed_sink_is_read_and_mapped_whole(store: Store, pieces: list[bytes]) -> None:
    with store.create("data/a.arrow") as sink:
        assert [sink.write(piece) for piece in pieces] == [len(piece) for piece in pieces]
    whole = b"".join(pieces)
    assert store.read("data/a.arrow") == whole
    mapped = store.map("data/a.arrow")
    assert mapped.to_pybytes() == whole
    assert store.map("data/a.arrow").equals(mapped)
    assert [(each.path, each.bytes) for each in store.list("data")] == [
        ("data/a.arrow", len(whole))
    ]
    store.delete("data/a.arrow")
    assert mapped.to_pybytes() == whole, "a mapped object outlives its delete"


@pytest.mark.parametrize("byte_count", [0, 3, RANGE_BYTES + 1])
def test_a_sink_that_an_error_interrupts_leaves_nothing(store: Store, byte_count: int) -> None:
    def interrupted() -> None:
        with store.create("data/a.arrow") as sink:
            sink.write(b"x" * byte_count)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert paths(store, "data") == []


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


def test_a_listing_is_sorted_and_shows_objects_directly_below_with_their_lengths(
    store: Store,
) -> None:
    for name in ("b", "a", "_hint", "10", "2"):
        store.put(f"data/{name}", b"x" * len(name))
    for path in ("data/deep/b", "database/c", "d"):
        store.put(path, b"")
    assert [(each.path, each.bytes) for each in store.list("data")] == [
        ("data/10", 2),
        ("data/2", 1),
        ("data/_hint", 5),
        ("data/a", 1),
        ("data/b", 1),
    ]
    assert len(paths(store, "data", after="data/")) == 5
    assert paths(store, "data/deep") == ["data/deep/b"]
    assert paths(store, "") == ["d"]
    assert paths(store, "nowhere") == []


def test_a_listing_begins_behind_a_path(store: Store) -> None:
    for name in "231":
        store.put(f"_log/{name}", b"")
    for after, expected in (("", "123"), ("0", "123"), ("1", "23"), ("15", "23"), ("3", "")):
        behind = paths(store, "_log", after=f"_log/{after}" if after else "")
        assert behind == [f"_log/{name}" for name in expected]


def test_folders_are_those_directly_below(store: Store) -> None:
    for path in ["_log/1", "a/1", "a b/1", "data/a", "data/deep/b", "data/deeper/b", "file", "é/x"]:
        store.put(path, b"")
    assert list(store.folders("")) == ["_log", "a", "a b", "data", "é"]
    assert list(store.folders("data")) == ["deep", "deeper"]
    for prefix in ("data/deep", "d", "nowhere", "data/a"):
        assert list(store.folders(prefix)) == []


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
        [info] = store.list("data")
        assert abs(info.modified_s - time.time()) < 60


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


def test_a_store_does_not_show_its_secrets() -> None:
    options = {"access_key_id": "me", "secret_access_key": "hush"}
    options |= {"proxy_url": "http://me:hush@proxy:3128"}
    store = open_store("s3://bucket/table", options)
    assert repr(store) == "ObjectStore('s3://bucket/table')"
    assert "hush" not in repr(vars(store))


def test_options_that_make_no_connection_are_an_option_error() -> None:
    with pytest.raises(OptionError, match="service account file"):
        open_store("gs://bucket/table", {"service_account": "/nowhere/key.json"})


def test_the_gateway_counts_requests_and_bytes(tmp_path: Path) -> None:
    with counted_s3(tmp_path / "s3") as gateway:
        store = open_store(gateway.url("table"), gateway.storage(tmp_path / "cache"))
        store.put("data/a", bytes(80_000))
        assert store.put_if_absent("_log/0.json", b"first")
        gateway.take()
        assert not store.put_if_absent("_log/0.json", b"second")
        assert store.read("_log/0.json") == b"first"
        store.read_ranges("data/a", [(0, 1_024), (75_776, 80_000)], 80_000)
        assert len(paths(store, "data")) == 1
        with pytest.raises(FileNotFoundError):
            store.read("data/b")
        store.delete("data/a")
        counted = gateway.take()
        assert counted == Traffic(
            gets=4,
            puts=1,
            lists=1,
            deletes=1,
            refused=1,
            get_bytes=5 + 1_024 + 4_224,
            data_bytes=1_024 + 4_224,
            at_once=counted.at_once,
        )
        write(store, "data/c", bytes(RANGE_BYTES + 1))
        assert gateway.take().put_bytes == RANGE_BYTES + 1
        assert store.map("data/c").size == RANGE_BYTES + 1
        assert gateway.take().data_bytes >= RANGE_BYTES + 1
