"""Writers of one table at once, in virtual time: requests per commit, fairness, and what they read.

One thread runs at a time, and each request takes its time by a clock that jumps to the next event.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError
from spark_upsert.store import ObjectInfo
from spark_upsert.store.protocol import OBJECT_BYTES_MAX
from spark_upsert.store.records import encode, read_record
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import commit_from_json, commit_path, commits_from_json
from spark_upsert.table.log.log import CommitTurns, Log
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    is_place,
)

REQUEST_S = 0.03
COLUMNS = pa.schema({"id": pa.int64(), "n": pa.int64()})


class VirtualTime:
    """A clock for threads of which one runs: it jumps to the next one's time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, threading.Event]] = []
        self._numbers = itertools.count()

    def wait(self, seconds: float) -> None:
        event = self._at(self.now_s + seconds)
        self._go_on()
        event.wait()

    def run(self, tasks: list[Callable[[], object]]) -> None:
        """Run tasks to their ends, each in a thread; raise the first error."""
        errors: list[BaseException] = []

        def body(task: Callable[[], object], event: threading.Event) -> None:
            event.wait()
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                errors.append(error)
            self._go_on()

        threads = [
            threading.Thread(
                target=body, args=(task, self._at(self.now_s + 0.001 * number)), daemon=True
            )
            for number, task in enumerate(tasks)
        ]
        for thread in threads:
            thread.start()
        self._go_on()
        for thread in threads:
            thread.join(60)
        assert not errors, errors

    def _at(self, time_s: float) -> threading.Event:
        event = threading.Event()
        heapq.heappush(self._events, (time_s, next(self._numbers), event))
        return event

    def _go_on(self) -> None:
        if self._events:
            self.now_s, _, event = heapq.heappop(self._events)
            event.set()


class Line(MemoryStore):
    """A process's line to the objects: each request takes its time, and is counted."""

    are_far = True

    def __init__(self, objects: dict[str, bytes], clock: VirtualTime, dice: random.Random) -> None:
        super().__init__("memory:///contended")
        self.objects, self.clock, self.dice = objects, clock, dice
        self.counts: Counter[str] = Counter()
        self.is_parallel = False

    def _request(self, name: str, act: Callable[[], Any]) -> Any:
        self.counts[name] += 1
        seconds = 0.0 if self.is_parallel else REQUEST_S * (0.4 + 0.2 * self.dice.random())
        self.clock.wait(seconds)
        try:
            return act()
        finally:
            self.clock.wait(seconds)

    def read(self, path: str, *, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        read = super().read
        return self._request("get", lambda: read(path, bytes_max=bytes_max))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        put = super().put_if_absent
        return self._request("put", lambda: put(path, data))

    def put(self, path: str, data: bytes) -> None:
        put = super().put
        self._request("put", lambda: put(path, data))

    def create(self, path: str) -> Any:
        create = super().create
        return self._request("put", lambda: create(path))

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        listed = super().list
        yield from self._request("list", lambda: [*listed(prefix, after=after)])


def one_after_the_other(read: Any, versions: list[int], threads: int) -> Iterator[Any]:
    """Read versions as if in parallel: it takes the time of one."""
    if threads <= 1:
        return map(read, versions)
    line = read.__self__.store
    line.is_parallel = True
    found = [read(version) for version in versions]
    line.is_parallel = False
    line.clock.wait(REQUEST_S)
    return iter(found)


class Writers:
    """Writers of one table, each in a process of its own."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(storage, "map_in_order", one_after_the_other)
        self.clock = VirtualTime()
        self.memory = MemoryStore("memory:///contended")
        Table(self.memory).ensure(TableSchema.of(COLUMNS, keys=["id"]))
        self.lines = [
            Line(self.memory.objects, self.clock, random.Random(number)) for number in range(count)
        ]
        self.tables = [Table(line, sleep=self.clock.wait) for line in self.lines]
        for number, table in enumerate(self.tables):
            dice = random.Random(number)
            table.log._turns = CommitTurns(lambda: self.clock.now_s, dice.random)
        self.commits = Counter[int]()

    def write(self, *, until_s: float) -> None:
        """Let each append as often as it can."""

        def go(number: int) -> None:
            while self.clock.now_s < until_s:
                self.commits[number] += 1
                rows = {"id": [1000 * number + self.commits[number]], "n": [number]}
                self.tables[number].upsert(pa.table(rows))

        self.clock.run([lambda n=number: go(n) for number in range(len(self.tables))])  # type: ignore[misc]

    @property
    def requests(self) -> int:
        return sum(sum(line.counts.values()) for line in self.lines)


@pytest.mark.parametrize(
    ("count", "requests", "seconds"),
    [(1, 7.5, 2), (4, 10, 4), (16, 12, 6)],
)
def test_requests_of_a_commit(
    count: int, requests: float, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 writers, a commit took 90 requests when each loser tried again without waiting."""
    writers = Writers(count, monkeypatch)
    writers.write(until_s=4)  # They get to know each other.
    begun, commits = writers.requests, Counter(writers.commits)
    writers.write(until_s=4 + seconds)
    commits = writers.commits - commits
    per_commit = (writers.requests - begun) / commits.total()
    assert per_commit <= requests
    assert max(commits.values()) <= 1.5 * min(commits.values()) + 2, "somebody starves"
    # Their rows and their log are those of writers in a row.
    head = Log(writers.memory).head()
    assert head.version == writers.commits.total()
    keys = {1000 * n + k for n in range(count) for k in range(1, writers.commits[n] + 1)}
    assert set(Table(writers.memory).snapshot()["id"].to_pylist()) == keys


# -- versions that repeat recent commits -------------------------------------------------


def write(table: Table, *ids: int, number: int | None = None) -> None:
    transaction = None if number is None else Transaction(writer="w", number=number)
    table.upsert(pa.table({"id": ids, "n": ids}), transaction=transaction)


class Rivals:
    """A writer that has lost races to a rival, which commits at a chosen step."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.memory.are_far = True
        self.rival = Table(self.memory)
        self.rival.ensure(TableSchema.of(COLUMNS, keys=["id"]))
        self.steps = Steps()
        self.table = Table(FaultyStore(self.memory, self.steps), sleep=lambda _: None)
        for number in range(4):
            write(self.rival, number)
            self.table.log._turns.lose()
            write(self.table, 10 + number)

    def write_while(self, fault: Fault | None, *, rival_at: int) -> None:
        """Append once more; a rival commits after one of the steps."""
        count = itertools.count()

        def watch() -> None:
            if next(count) == rival_at:
                write(self.rival, 30)

        self.steps.begin_anew(fault, watch=watch)
        write(self.table, 40, number=1)


def test_a_version_repeats_those_before_it_while_writers_compete() -> None:
    rivals = Rivals()
    version = Log(rivals.memory).head().version
    commits = read_record(rivals.memory, commit_path(version), commits_from_json)
    assert commits is not None
    each = [read_record(rivals.memory, commit_path(c.version), commit_from_json) for c in commits]
    assert commits == each, "it repeats something else"
    assert len(commits) == 1 + 2 * 2, "two writers, two rounds"
    # Without other writers, there is no need for it.
    write(rivals.table, 50)
    write(rivals.table, 51)
    commits = read_record(rivals.memory, commit_path(version + 2), commits_from_json)
    assert commits is not None
    assert len(commits) == 1


@pytest.mark.parametrize("field", ["token", "version"])
def test_a_repeated_commit_of_another_log_is_damage(field: str) -> None:
    rivals = Rivals()
    path = commit_path(Log(rivals.memory).head().version)
    record = json.loads(rivals.memory.objects[path])
    del record["crc"]
    record["recent"][0][field] = {"token": "0" * 32, "version": 1}[field]
    rivals.memory.objects[path] = encode(record)
    with pytest.raises(CorruptionError, match="does not continue version"):
        Log(rivals.memory).head()


def test_a_lost_version_is_a_gap_although_a_later_one_repeats_it() -> None:
    rivals = Rivals()
    newest = Log(rivals.memory).head().version
    del rivals.memory.objects[commit_path(newest - 2)]
    with pytest.raises(CorruptionError, match="is missing"):
        Log(rivals.memory).head()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, KilledError, BrokenError])
@pytest.mark.parametrize("moment", list(Moment))
def test_a_fault_at_any_step_of_a_writer_among_others(
    kind: type[BaseException] | None, moment: Moment
) -> None:
    """The same transaction is repeated after it, so it is committed once, and so is the rival."""
    rivals = Rivals()
    rivals.write_while(None, rival_at=2)
    names = rivals.steps.names
    for step in (step for step in range(len(names)) if is_place(names, step)):
        rivals = Rivals()
        fault = None if kind is None else Fault(step, moment, kind)
        rival_at = step if moment is Moment.BEFORE else step // 2
        with suppress(KilledError, BrokenError):
            rivals.write_while(fault, rival_at=rival_at)
        write(Table(rivals.memory), 40, number=1)
        table = Table(rivals.memory)
        ids = table.snapshot()["id"].to_pylist()
        assert sorted(set(ids) - {30}) == [*range(4), *range(10, 14), 40]
        commits = list(table.log.commits(1, table.log.head().upper))
        assert len(commits) == 9 + (30 in ids), step
        assert table.check().is_sound
