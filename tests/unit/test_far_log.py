"""A log that lies in a bucket: many commits are read side by side, few one after the other."""

from __future__ import annotations

import re
import threading
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError
from spark_upsert.store.protocol import OBJECT_BYTES_MAX
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import commit_path
from spark_upsert.table.table import Table
from tests.support.stores import FarStore, MemoryStore

VERSIONS = 40
WAIT_SECONDS_MAX = 30
"""For others to ask, too; whoever asks alone fails behind it."""

_COMMIT = re.compile(r"_log/0*(\d+)\.json")


class Far(FarStore):
    """A far store that notes which versions are read, and lets some be read at once only."""

    def __init__(self, objects: dict[str, bytes], groups: list[range] = []) -> None:  # noqa: B006
        super().__init__(objects)
        self.read_versions: list[int] = []
        self._meetings = {
            version: meeting
            for group in groups
            for meeting in [threading.Barrier(len(group), timeout=WAIT_SECONDS_MAX)]
            for version in group
        }

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        version = _COMMIT.fullmatch(path)
        if version is not None:
            number = int(version[1])
            is_first = number not in self.read_versions
            self.read_versions.append(number)
            if is_first and number in self._meetings:
                self._meetings[number].wait()
        return super().read(path, bytes_max=bytes_max)


def versions_of(count: int) -> MemoryStore:
    store = MemoryStore()
    table = Table(store)
    table.ensure(TableSchema.of(pa.schema({"k": pa.int64(), "n": pa.int64()}), keys=["k"]))
    for number in range(1, count):
        table.upsert(pa.table({"k": [number % 3], "n": [number]}))
    assert table.log.head().version == count - 1
    return store


def doubling(upper: int) -> list[range]:
    """Return what is read at once from version 0 on: one, one, two, four and so on."""
    groups, low, size = [], 2, 2
    while low < upper:
        groups.append(range(low, low + size))
        low, size = low + size, min(2 * size, storage.AT_ONCE)
    return groups


def test_a_first_look_reads_twice_as_many_at_once_and_twice_again() -> None:
    near = versions_of(VERSIONS)
    far = Far(near.objects, doubling(VERSIONS))
    head = Table(far).log.head()
    assert head == Table(near).log.head()
    assert set(far.read_versions) >= set(range(VERSIONS + 1)), "the one behind the last, too"


def test_where_one_is_new_no_more_than_that_is_asked_for() -> None:
    near = versions_of(VERSIONS)
    far = Far(near.objects)
    there = Table(far)
    there.log.head()
    del far.read_versions[:]
    Table(near).upsert(pa.table({"k": [1], "n": [1]}))
    assert there.log.head().version == VERSIONS
    assert sorted(set(far.read_versions)) == [VERSIONS - 1, VERSIONS, VERSIONS + 1]


def test_commits_that_are_known_to_be_there_are_read_at_once() -> None:
    near = versions_of(VERSIONS)
    far = Far(near.objects, [range(5, 5 + 32), range(37, 39)])
    log = Table(far).log
    assert list(log.commits(5, 39)) == list(Table(near).log.commits(5, 39))


@pytest.mark.parametrize("gone", [1, 2, 3, 20, 38])
def test_the_end_is_where_the_first_one_is_missing(gone: int) -> None:
    # The others are written after the listing, while this one is read.
    near = versions_of(VERSIONS)
    seen, path = dict(near.objects), commit_path(gone)
    data = seen.pop(path)
    seen = {path: data for path, data in seen.items() if "checkpoint" not in path}
    far = Far(seen)
    there = Table(far)
    listed = [info for info in far.list("_log") if info.path < path]
    with patch.object(far, "list", lambda *_, **__: iter(listed)):
        assert there.log.head().version == gone - 1
    assert not any(map(there.log.stored.is_cached, range(gone, VERSIONS)))
    far.objects[path] = data
    assert there.log.head() == Table(near).log.head()


@pytest.mark.parametrize("at", [0, 3, 17, 39])
def test_damage_is_told_as_where_one_reads_after_the_other(at: int) -> None:
    near, path = versions_of(VERSIONS), commit_path(at)
    near.objects[path] = near.objects[path][:-1]
    messages: list[str] = []
    for store in (near, Far(near.objects)):
        with pytest.raises(CorruptionError) as caught:
            Table(store).log.head()
        messages.append(caught.value.message.replace(store.url, ""))
    assert messages[0] == messages[1]
