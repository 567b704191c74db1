"""Local copies of objects: fetched once, bounded, and never torn."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from spark_upsert.errors import OptionError
from spark_upsert.store import cache
from spark_upsert.store.cache import CopyFile, LocalCopies


class Remote:
    """Objects of ``length`` bytes each; counts how often they are fetched."""

    def __init__(self, length: int = 100) -> None:
        self.length = length
        self.fetched: list[str] = []

    def fetch(self, name: str) -> Callable[[CopyFile], int]:
        def write(file: CopyFile) -> int:
            self.fetched.append(name)
            file.write_at(self.contents(name), 0)
            return self.length

        return write

    def contents(self, name: str) -> bytes:
        return name[:1].encode() * self.length


def mapped(copies: LocalCopies, remote: Remote, name: str) -> bytes:
    return copies.map(name, remote.fetch(name)).to_pybytes()


def names(copies: LocalCopies) -> list[str]:
    return sorted(os.listdir(copies.folder()))


@pytest.mark.parametrize("length", [100, 0])
def test_an_object_is_fetched_once_and_its_copy_outlives_the_process(
    tmp_path: Path, length: int
) -> None:
    remote = Remote(length)
    for _ in range(2):
        copies = LocalCopies(tmp_path)
        assert mapped(copies, remote, "a") == mapped(copies, remote, "a") == remote.contents("a")
    assert remote.fetched == ["a"]


def test_threads_that_want_the_same_object_fetch_it_once(tmp_path: Path) -> None:
    remote, copies = Remote(), LocalCopies(tmp_path)
    start = threading.Barrier(8)
    seen: list[bytes] = []

    def want() -> None:
        start.wait()
        seen.append(mapped(copies, remote, "a"))

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert remote.fetched == ["a"]
    assert seen == [remote.contents("a")] * 8


def test_who_waits_for_a_fetch_does_not_repeat_it(tmp_path: Path) -> None:
    remote, copies = Remote(), LocalCopies(tmp_path)
    other = threading.Thread(target=mapped, args=(copies, remote, "a"))

    def fetch_while_another_waits(file: CopyFile) -> int:
        other.start()
        other.join(0.05)  # It cannot end: the claim is held.
        return remote.fetch("a")(file)

    copies.map("a", fetch_while_another_waits)
    other.join()
    assert remote.fetched == ["a"]


def test_the_least_recently_mapped_copy_goes_first(tmp_path: Path) -> None:
    remote, copies = Remote(length=100), LocalCopies(tmp_path, capacity_bytes=400)
    for age, name in enumerate("abc"):
        mapped(copies, remote, name)
        os.utime(copies.folder() / name, (age, age))
    mapped(copies, remote, "a")
    mapped(copies, remote, "d")
    assert names(copies) == ["a", "c", "d"]


def test_a_removed_copy_stays_readable_where_it_is_mapped(tmp_path: Path) -> None:
    remote, copies = Remote(length=100), LocalCopies(tmp_path, capacity_bytes=200)
    held = copies.map("a", remote.fetch("a"))
    for name in "bcd":
        mapped(copies, remote, name)
    assert "a" not in names(copies)
    assert held.to_pybytes() == remote.contents("a")


def test_an_object_larger_than_the_bound_is_mapped_all_the_same(tmp_path: Path) -> None:
    remote, copies = Remote(length=1000), LocalCopies(tmp_path, capacity_bytes=10)
    assert mapped(copies, remote, "a") == remote.contents("a")
    assert mapped(copies, remote, "b") == remote.contents("b")
    assert names(copies) == ["b"]


def test_a_smaller_bound_is_kept_from_the_first_fetch(tmp_path: Path) -> None:
    remote = Remote(length=100)
    for name in "abcde":
        mapped(LocalCopies(tmp_path), remote, name)
    copies = LocalCopies(tmp_path, capacity_bytes=250)
    mapped(copies, remote, "f")
    assert len(names(copies)) == 2


@pytest.mark.parametrize("length", [0, 3, 15, 16, 50, 115, 1_000, None])
def test_a_copy_of_another_length_or_a_forgotten_one_is_fetched_again(
    tmp_path: Path, length: int | None
) -> None:
    remote, copies = Remote(length=100), LocalCopies(tmp_path)
    mapped(copies, remote, "a")
    if length is None:
        copies.forget("a")
        copies.forget("never was")
    else:
        os.truncate(copies.folder() / "a", length)
    assert mapped(copies, remote, "a") == remote.contents("a")
    assert remote.fetched == ["a", "a"]


def test_an_interrupted_fetch_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(file: CopyFile) -> int:
        file.write_at(b"half", 0)
        raise KeyboardInterrupt

    copies = LocalCopies(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        copies.map("a", interrupted)
    assert names(copies) == []


def test_files_that_a_crash_left_are_removed_and_spoil_no_fetch(tmp_path: Path) -> None:
    remote, copies = Remote(length=10), LocalCopies(tmp_path)
    for name in ("crashed.part", "a.part"):
        (copies.folder() / name).write_bytes(b"longer than the object itself is")
    assert mapped(copies, remote, "a") == mapped(copies, remote, "a") == remote.contents("a")
    assert remote.fetched == ["a"]
    assert names(copies) == ["a"]


def test_a_fetch_under_way_is_not_a_leftover(tmp_path: Path) -> None:
    remote = Remote()
    copies, other = LocalCopies(tmp_path), LocalCopies(tmp_path)

    def fetch_while_another_scans(file: CopyFile) -> int:
        mapped(other, remote, "b")
        return remote.fetch("a")(file)

    copies.map("a", fetch_while_another_scans)
    assert names(copies) == ["a", "b"]


def test_a_folder_that_a_cleaner_removed_is_made_again(tmp_path: Path) -> None:
    remote, copies = Remote(), LocalCopies(tmp_path)
    mapped(copies, remote, "a")
    for file in copies.folder().iterdir():
        file.unlink()
    copies.folder().rmdir()
    assert mapped(copies, remote, "a") == remote.contents("a")


def test_others_may_not_look_into_the_folder(tmp_path: Path) -> None:
    folder = LocalCopies(tmp_path).folder()
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.name == f"upsertflow-cache-{os.getuid()}"


def test_a_folder_of_another_user_or_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"upsertflow-cache-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").write_bytes(b"")
    for place, reason in ((tmp_path, "belongs to another user"), (tmp_path / "file", "cannot be")):
        with pytest.raises(OptionError, match=reason) as caught:
            LocalCopies(place).folder()
        assert "storage.cache_dir" in caught.value.hint


# -- blocks ----------------------------------------------------------------------------------

SIZE = 300 * 1024 + 100


class RemoteBlocks:
    """An object of `SIZE` bytes; notes the ranges that are fetched."""

    def __init__(self) -> None:
        self.contents = Random(1).randbytes(SIZE)
        self.fetched: list[tuple[int, int]] = []

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        self.fetched += ranges
        return [self.contents[low:high] for low, high in ranges]


def read_blocks(copies: LocalCopies, remote: RemoteBlocks, *ranges: tuple[int, int]) -> None:
    """Read ranges, given in blocks, and compare them with the object."""
    bounds = [(low * 1024, min(high * 1024, SIZE)) for low, high in ranges]
    found = copies.read_ranges("a", bounds, SIZE, remote.fetch)
    assert [bytes(each) for each in found] == [remote.contents[low:high] for low, high in bounds]


def test_blocks_are_fetched_once_and_outlive_the_process(tmp_path: Path) -> None:
    remote = RemoteBlocks()
    read_blocks(LocalCopies(tmp_path), remote, (0, 2), (100, 110), (299, 301))
    del remote.fetched[:]
    read_blocks(LocalCopies(tmp_path), remote, (1, 2), (100, 105), (108, 110), (300, 301))
    assert not remote.fetched
    read_blocks(LocalCopies(tmp_path), remote, (98, 103))
    assert remote.fetched == [(98 * 1024, 100 * 1024)]
    status = os.stat(LocalCopies(tmp_path).folder() / "a.blocks")
    assert status.st_blocks * 512 < SIZE


def test_blocks_between_missing_ones_are_fetched_again_where_this_saves_a_request(
    tmp_path: Path,
) -> None:
    remote = RemoteBlocks()
    read_blocks(LocalCopies(tmp_path), remote, (10, 20), (100, 180))
    del remote.fetched[:]
    read_blocks(LocalCopies(tmp_path), remote, (0, 200))
    assert remote.fetched == [(0, 100 * 1024), (180 * 1024, 200 * 1024)]


def test_blocks_beyond_the_bound_are_read_and_not_kept(tmp_path: Path) -> None:
    remote, copies = RemoteBlocks(), LocalCopies(tmp_path, capacity_bytes=60 << 10)
    for _ in range(2):
        for low in (0, 50, 100):
            read_blocks(copies, remote, (low, low + 40))
    kept = sum(os.stat(copies.folder() / name).st_blocks * 512 for name in names(copies))
    assert kept <= 60 << 10
    assert [low // 1024 for low, _ in remote.fetched] == [0, 50, 100, 50, 100]


def test_blocks_of_an_earlier_start_of_the_system_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteBlocks()
    read_blocks(LocalCopies(tmp_path), remote, (0, 2))
    # As a crash of the system may leave it: marked as present, and never written.
    with open(LocalCopies(tmp_path).folder() / "a.blocks", "r+b") as file:
        file.write(bytes(2048))
    monkeypatch.setattr(cache, "_boot_id", lambda: b"another start   ")
    read_blocks(LocalCopies(tmp_path), remote, (0, 2))
    assert len(remote.fetched) == 2


@pytest.mark.parametrize("step", ["forgotten", "removed", "copied whole"])
def test_blocks_that_are_gone_are_fetched_again(step: str, tmp_path: Path) -> None:
    remote, copies = RemoteBlocks(), LocalCopies(tmp_path)
    read_blocks(copies, remote, (0, 2))
    match step:
        case "forgotten":
            copies.forget("a")
        case "removed":
            for name in names(copies):
                (copies.folder() / name).unlink()
        case _:
            mapped(copies, Remote(), "a")
            assert names(copies) == ["a"]
    read_blocks(copies, remote, (0, 2))
    assert len(remote.fetched) == 2


def test_a_copy_is_reserved_only_beside_those_in_use(tmp_path: Path) -> None:
    remote = Remote(length=100)
    copies = LocalCopies(tmp_path, capacity_bytes=300 << 10)
    mapped(copies, remote, "a")
    assert not copies.reserve(300 << 10)
    assert copies.reserve(200 << 10)
    assert not copies.reserve(200 << 10), "what is reserved counts"
    os.utime(copies.folder() / "a", (1, 1))
    assert LocalCopies(tmp_path, capacity_bytes=300 << 10).reserve(300 << 10)
    LocalCopies(tmp_path).file_of("a")
    assert not LocalCopies(tmp_path, capacity_bytes=300 << 10).reserve(300 << 10), "in use again"


def test_blocks_are_read_where_none_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, data: memoryview, low: int) -> None:
        raise OSError(28, "No space left on device")

    remote, copies = RemoteBlocks(), LocalCopies(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(cache._CachedBlocks, "keep", full)
        for _ in range(2):
            read_blocks(copies, remote, (0, 2))
    assert len(remote.fetched) == 2
    read_blocks(copies, remote, (0, 2))
    read_blocks(copies, remote, (0, 2))
    assert len(remote.fetched) == 3


def test_blocks_that_are_read_again_are_in_use(tmp_path: Path) -> None:
    remote, copies = RemoteBlocks(), LocalCopies(tmp_path)
    read_blocks(copies, remote, (0, 2))
    file = copies.folder() / "a.blocks"
    os.utime(file, (1, 1))
    read_blocks(copies, remote, (0, 2))
    assert os.stat(file).st_mtime > 1
