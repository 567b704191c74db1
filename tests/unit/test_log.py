"""The log: a chain of versions that each exist whole or not at all, made by one writer each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import (
    ContentionError,
    CorruptionError,
    DataLossError,
    EarlierFormatError,
    NewerFormatError,
    OtherTableError,
    TableNotFoundError,
    UpsertFlowError,
    VersionNotFoundError,
)
from spark_upsert.store import Store
from spark_upsert.store.records import encode
from spark_upsert.table.log import log as log_module
from spark_upsert.table.log.codec import HINT_PATH, checkpoint_path, commit_path
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Kind, Manifest, Transaction
from spark_upsert.table.log.snapshot import LogSnapshot, Versions
from spark_upsert.table.log.storage import CHECKPOINT_EVERY
from tests.support.lived import body_of
from tests.support.stores import BrokenError, FaultyStore, MemoryStore, Steps
from tests.support.tables import Ticks, schema_of

SCHEMA = schema_of(Scope.TABLE)
FIRST = Draft(kind=Kind.CREATE, schema=SCHEMA)


def created(store: Store) -> Log:
    log = Log(store, clock=Ticks())
    assert log.create(FIRST)
    return log


def of(writer: str, number: int) -> Transaction:
    return Transaction(writer=writer, number=number)


def epoch(*transactions: Transaction) -> Callable[[Manifest], Draft | None]:
    """Return what proposes an empty epoch, once per transaction."""

    def propose(head: Manifest) -> Draft | None:
        if any(head.has(each) for each in transactions):
            return None
        return Draft(kind=Kind.APPEND, transactions=transactions, live_rows=head.live_rows + 1)

    return propose


def grown(store: Store, count: int) -> Log:
    log = created(store)
    for _ in range(count):
        log.append(epoch())
    return log


def counted(store: Store) -> tuple[Log, list[str]]:
    """Return a log that knows the newest version, and the list of the steps that follow."""
    steps = Steps()
    log = Log(FaultyStore(store, steps), clock=Ticks())
    log.try_head()
    del steps.names[:]
    return log, steps.names


def version_of(look: LogSnapshot | None) -> int:
    assert look is not None
    return look.head().version


# -- reading -------------------------------------------------------------------------


def test_table_is_created_once_as_version_0() -> None:
    store, steps = MemoryStore(), Steps()
    log = Log(FaultyStore(store, steps), clock=Ticks())
    assert log.try_refresh() is None
    assert steps.names == [f"read {HINT_PATH}", "list _log"]
    for read in (log.head, log.cached_snapshot):
        with pytest.raises(TableNotFoundError):
            read()
    created(store)
    assert (log.head().version, log.head().schema) == (0, SCHEMA)
    assert log.create(FIRST) is None


def test_each_append_takes_the_next_version_and_every_version_stays_readable() -> None:
    store = MemoryStore()
    reader, writer = created(store), Log(store, clock=Ticks())
    commits = [writer.append(epoch()) for _ in range(3)]
    assert [commit and commit.version for commit in commits] == [1, 2, 3]
    assert reader.head().version == 3
    manifests = [reader.at(version) for version in range(4)]
    assert [(each.version, each.live_rows) for each in manifests] == [(n, n) for n in range(4)]
    assert [commit.version for commit in reader.commits(1, 3)] == [1, 2]
    for version in (-1, 4):
        for read in (reader.at, reader.commit):
            with pytest.raises(DataLossError, match=f"version {version} "):
                read(version)


class Follower:
    """A log that remembers version 3, in a store of which others know version 5."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.other = grown(self.store, 3)
        self.log, self.steps = counted(self.store)
        self.other.append(epoch())
        self.other.append(epoch())
        self.place = self.other.head().version_ref

    def read_versions(self) -> list[int]:
        """Return which commits were read since the last call."""
        reads = [step for step in self.steps if step.startswith("read ")]
        del self.steps[:]
        return [version for step in reads for version in range(9) if commit_path(version) in step]


def test_look_from_a_told_version_begins_there() -> None:
    follower = Follower()
    look = follower.log.try_refresh(reported=follower.place)
    assert look is not None
    assert look.head() == follower.other.head()
    assert f"sync {commit_path(5)}" not in follower.steps
    assert follower.read_versions() == [6, 4, 5]


def test_look_from_a_told_version_does_not_take_another_commit_for_it() -> None:
    follower = Follower()
    del follower.store.objects[commit_path(5)]
    commit = Log(follower.store, clock=Ticks()).append(epoch())
    look = follower.log.try_refresh(reported=follower.place)
    assert look is not None
    assert commit is not None
    assert look.head().token == commit.token != follower.place.token


def test_look_at_a_proven_version_reads_nothing_behind_it() -> None:
    follower = Follower()
    for reads in ([4, 5], []):
        assert version_of(follower.log.snapshot_at(follower.place)) == 5
        assert follower.read_versions() == reads


def test_look_shows_its_version_whatever_is_committed_since() -> None:
    store = MemoryStore()
    other = grown(store, 5)
    log, steps = counted(store)
    look = log.refresh()
    steps.clear()
    with log.cached_snapshot() as last:
        assert last.version_ref(5).version == last.head().version
        assert not steps, "what reads nothing proves nothing"
    with log.cached_snapshot() as last:
        other.append(epoch())
        assert (last.head().version, last.at(3).version, last.before(3).version) == (5, 3, 2)
    with log.pin_snapshot():
        assert (log.head().version, log.at(3).version, log.commit(2).version) == (5, 3, 2)
        with log.pin_snapshot():
            pass
        assert log.head().version == 5
    assert f"read {commit_path(6)}" not in steps
    assert steps[-1] == f"read {commit_path(5)}", "what was read is proven"
    assert log.head().version == log.cached_snapshot().head().version == 6
    assert (look.head().version, look.at(5).version) == (5, 5)
    with pytest.raises(DataLossError, match="version 6 does not exist: the newest version is 5"):
        look.at(6)


@pytest.mark.parametrize(
    ("is_damaged", "remembered"),
    [(True, ()), (False, ()), (False, (1, 2)), (False, (3, 4))],
    ids=["damaged", "replaced", "replaced, of which 1 and 2 are known", "replaced, 3 and 4"],
)
def test_log_that_changes_behind_a_look(is_damaged: bool, remembered: tuple[int, ...]) -> None:
    reads: tuple[Callable[[Versions], object], ...] = (
        lambda log: list(log.commits(1, 4)),
        lambda log: log.at(2),
        lambda log: (log.at(1), list(log.commits(2, 5))),
    )

    def change_and_read(read: Callable[[Versions], object]) -> None:
        store, another = MemoryStore(), MemoryStore()
        grown(another, 5)
        log = grown(store, 5)
        with log.cached_snapshot() as look:
            if is_damaged:
                store.objects[commit_path(2)] += b"x"
            else:
                store.objects.update(another.objects)
            for version in set(log.stored._commits) - set(remembered):
                log.stored._commits.pop(version)
            read(look)

    for read in reads:
        with pytest.raises(CorruptionError if is_damaged else OtherTableError):
            change_and_read(read)


def test_version_that_expires_behind_a_look_is_expired_and_no_damage() -> None:
    store = MemoryStore()
    log = grown(store, 5)
    with log.cached_snapshot() as look:
        expire = Draft(kind=Kind.EXPIRE, live_rows=5, since=5)
        Log(store, clock=Ticks()).append(lambda _: expire)
        for version in range(5):
            store.delete(commit_path(version))
        log.stored._commits.clear()
        with pytest.raises(DataLossError, match="version 3"):
            look.at(3)


def test_log_that_follows_a_table_reads_no_checkpoint_for_the_state_before() -> None:
    store = MemoryStore()
    other = grown(store, 60)
    log, steps = counted(store)
    for _ in range(2):
        base = log.head().version
        other.append(epoch())
        head, before = log.head(), len(steps)
        with log.cached_snapshot() as look:
            assert look.before(head.version) == other.at(base)
        assert len(steps) == before


# -- time ----------------------------------------------------------------------------


def test_timestamps_grow_even_if_the_clock_goes_back() -> None:
    times = iter([5.0, 9.0, 3.0, 3.0, 20.0])
    log = Log(MemoryStore(), clock=lambda: next(times))
    log.create(FIRST)
    for _ in range(4):
        log.append(epoch())
    stamps = [commit.timestamp_ms for commit in log.commits(0, 5)]
    assert stamps == [5000, 9000, 9001, 9002, 20000]


def test_timestamps_in_the_future_and_before_the_table_are_refused() -> None:
    log = Log(MemoryStore(), clock=lambda: 5.0)
    log.create(FIRST)
    log.append(epoch())
    assert log.at_timestamp(5001).version == 1, "a version may be younger than the clock"
    with pytest.raises(VersionNotFoundError, match=r"00:00:05\.002Z is in the future: it is .*05Z"):
        log.at_timestamp(5002)
    with pytest.raises(DataLossError, match="1970-01-01T00:00:05Z"):
        log.at_timestamp(1)


# -- races ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_shared", [False, True], ids=["a log each", "one log"])
def test_threads_that_race_each_commit_versions_of_their_own(is_shared: bool) -> None:
    store = MemoryStore()
    shared = created(store)
    versions: list[int] = []
    barrier = threading.Barrier(8)

    def write(writer: int) -> None:
        log = shared if is_shared else Log(store, clock=Ticks())
        barrier.wait()
        for number in range(10):
            commit = log.append(epoch(of(f"w{writer}", number)))
            assert commit is not None
            versions.append(commit.version)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(1, 81))
    head = Log(store).head()
    assert head.live_rows == 80
    assert head.transactions == {f"w{writer}": 9 for writer in range(8)}


def test_writer_has_one_transaction_in_a_version() -> None:
    with pytest.raises(ValueError, match="one transaction"):
        Draft(kind=Kind.APPEND, transactions=(of("a", 3), of("a", 4)))


@pytest.mark.parametrize("races", [1, 5], ids=["one race", "every race"])
def test_loser_of_a_race_proposes_again_upon_the_winner_and_gives_up_at_last(
    races: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_module, "COMMIT_TRIES_MAX", 5)
    store = MemoryStore()
    log, other = created(store), Log(store, clock=Ticks())
    bases: list[int] = []

    def propose(head: Manifest) -> Draft | None:
        bases.append(head.version)
        if len(bases) <= races:
            other.append(epoch())
        return epoch(of("own", 1))(head)

    if races == 5:
        with pytest.raises(ContentionError, match="5 attempts"):
            log.append(propose)
    else:
        commit = log.append(propose)
        assert commit is not None
        assert (commit.version, bases) == (2, [0, 1])


# -- errors after the effect ---------------------------------------------------------


class FlakyStore(MemoryStore):
    """A store whose next conditional put is done by a function."""

    next_put: Callable[[str, bytes], bool] | None = None

    def put_if_absent(self, path: str, data: bytes) -> bool:
        put, self.next_put = self.next_put, None
        return put(path, data) if put else super().put_if_absent(path, data)


@pytest.mark.parametrize(
    ("before", "after", "version"),
    [
        pytest.param("nothing", "no answer", None, id="is an error before its effect"),
        pytest.param("its own put", "no answer", 1, id="is a success behind its effect"),
        pytest.param("its own put", "a put again", 1, id="is a success if a client repeats it"),
        pytest.param("another's put", "no answer", 2, id="is a lost race if another wins"),
    ],
)
def test_failing_put(before: str, after: str, version: int | None) -> None:
    store = FlakyStore()
    log, other = Log(store, clock=Ticks()), Log(store, clock=Ticks())

    def put(path: str, data: bytes) -> bool:
        if before == "its own put":
            store.put_if_absent(path, data)
        if before == "another's put" and path != commit_path(0):
            other.append(epoch(of("other", 7)))
        if after == "a put again" or path == commit_path(0):
            return store.put_if_absent(path, data)
        raise TimeoutError("no answer")

    store.next_put = put
    assert log.create(FIRST) is not None
    store.next_put = put
    if version is None:
        with pytest.raises(TimeoutError):
            log.append(epoch(of("own", 1)))
        assert log.head().version == 0
    else:
        commit = log.append(epoch(of("own", 1)))
        assert commit is not None
        assert commit.version == log.head().version == version
        assert log.head().transactions["own"] == 1


# -- checkpoints ---------------------------------------------------------------------


def test_log_reads_the_same_with_and_without_checkpoints() -> None:
    store, bare = MemoryStore(), MemoryStore()
    grown(store, 2 * CHECKPOINT_EVERY + 3)
    bare.objects = {path: data for path, data in store.objects.items() if "checkpoint" not in path}
    assert len(bare.objects) < len(store.objects)
    for version in (0, 1, CHECKPOINT_EVERY - 1, CHECKPOINT_EVERY, 2 * CHECKPOINT_EVERY + 3):
        assert Log(store).at(version) == Log(bare).at(version)
    assert Log(store).head() == Log(bare).head()
    steps = Steps()
    Log(FaultyStore(store, steps)).head()
    # The hint, the checkpoint, the listing, three commits, the look for a fourth, and whether the
    # checkpoint is still part of the log; then the newest one is made durable.
    assert len(steps.names) == 9


class FailingStore(MemoryStore):
    """A store on which puts of a path fail, before or behind their effect."""

    path, has_effect = "", False

    def put(self, path: str, data: bytes) -> None:
        if path != self.path or self.has_effect:
            super().put(path, data)
        if path == self.path:
            raise BrokenError(path)


@pytest.mark.parametrize("has_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("path", [checkpoint_path(CHECKPOINT_EVERY), HINT_PATH])
def test_checkpoint_that_fails_does_not_fail_the_commit(path: str, has_effect: bool) -> None:
    store = FailingStore()
    store.path, store.has_effect = path, has_effect
    assert grown(store, CHECKPOINT_EVERY).head().version == CHECKPOINT_EVERY
    assert Log(store).head().version == CHECKPOINT_EVERY


# -- damage --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "stride"),
    [
        pytest.param(commit_path(CHECKPOINT_EVERY + 1), 1, id="a commit"),
        pytest.param(checkpoint_path(CHECKPOINT_EVERY), 13, id="a checkpoint"),
    ],
)
def test_flipped_bit_is_named_with_its_record(path: str, stride: int) -> None:
    store = MemoryStore()
    grown(store, CHECKPOINT_EVERY + 1)
    intact = store.objects[path]
    for position in range(0, len(intact), stride):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << (position % 7)
        store.objects[path] = bytes(damaged)
        with pytest.raises(CorruptionError, match=path):
            Log(store).head()


FORMATS: dict[str, tuple[int, Callable[[Any], None], str]] = {
    "newer": (1, lambda commit: commit.update(format=99), "has format 99(?s:.)*upgrade upsertflow"),
    "older": (1, lambda commit: commit.update(format=1), "has format 1, of an earlier"),
    "newer hash": (0, lambda commit: commit["schema"]["hash"].update(version=3), "has format 3"),
}


@pytest.mark.parametrize(("version", "change", "message"), FORMATS.values(), ids=FORMATS)
def test_other_format_is_refused_by_name(
    version: int, change: Callable[[Any], None], message: str
) -> None:
    store = MemoryStore()
    grown(store, 1)
    record = body_of(store, version)
    change(record)
    store.objects[commit_path(version)] = encode(record)
    with pytest.raises(UpsertFlowError, match=message) as error:
        Log(store).head()
    assert isinstance(error.value, EarlierFormatError if "earlier" in message else NewerFormatError)
    assert "restore" not in str(error.value)
    assert version == 0 or commit_path(version) in str(error.value)
