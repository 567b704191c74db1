"""The log: a chain of versions that each exist whole or not at all, made by one writer each."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

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
    VersionNotFoundError,
)
from spark_upsert.store import Store
from spark_upsert.store.records import encode
from spark_upsert.table.log import log as log_module
from spark_upsert.table.log.codec import HINT_PATH, checkpoint_path, commit_path
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Kind, Manifest, Transaction
from spark_upsert.table.log.snapshot import Look, Versions
from spark_upsert.table.log.storage import CHECKPOINT_EVERY
from tests.support.stores import BrokenError, Fault, FaultyStore, MemoryStore, Moment, Steps
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


# -- reading -------------------------------------------------------------------------


def test_without_version_0_there_is_no_table() -> None:
    log = Log(MemoryStore())
    assert log.try_head() is None
    with pytest.raises(TableNotFoundError):
        log.head()


def test_the_first_version_is_0() -> None:
    log = created(MemoryStore())
    assert log.head().version == 0
    assert log.head().schema == SCHEMA


def test_a_table_is_created_once() -> None:
    store = MemoryStore()
    created(store)
    assert Log(store, clock=Ticks()).create(FIRST) is None


def test_each_append_takes_the_next_version() -> None:
    log = created(MemoryStore())
    committed = [log.append(epoch()) for _ in range(3)]
    assert [commit and commit.version for commit in committed] == [1, 2, 3]


def test_an_open_log_sees_what_others_commit() -> None:
    store = MemoryStore()
    reader, writer = created(store), Log(store, clock=Ticks())
    writer.append(epoch())
    assert reader.head().version == 1


@pytest.mark.parametrize("version", range(4), ids=lambda v: f"at version {v}")
def test_every_version_can_be_read_again(version: int) -> None:
    log = grown(MemoryStore(), 3)
    manifest = log.at(version)
    assert (manifest.version, manifest.live_rows) == (version, version)


@pytest.mark.parametrize("version", [-1, 4], ids=["below the first", "beyond the newest"])
def test_a_version_that_is_not_there_is_an_error(version: int) -> None:
    log = grown(MemoryStore(), 3)
    with pytest.raises(DataLossError, match=f"version {version} "):
        log.at(version)
    with pytest.raises(DataLossError, match=f"version {version} "):
        log.commit(version)


def test_the_newest_version_costs_two_reads_if_nothing_is_new() -> None:
    store = MemoryStore()
    steps = Steps()
    log = Log(FaultyStore(store, steps), clock=Ticks())
    grown(store, 5)
    log.head()
    before = len(steps.names)
    log.head()
    assert steps.names[before:] == [f"read {commit_path(6)}", f"read {commit_path(5)}"]


def headed(look: Look | None) -> Manifest | None:
    return None if look is None else look.head()


class Told:
    """A log that remembers version 3, in a store of which others know version 5."""

    def __init__(self) -> None:
        self.store, self.steps = MemoryStore(), Steps()
        self.other = grown(self.store, 3)
        self.log = Log(FaultyStore(self.store, self.steps), clock=Ticks())
        self.log.head()
        self.other.append(epoch())
        self.other.append(epoch())
        self.place = self.other.head().place
        del self.steps.names[:]

    def reads(self) -> list[str]:
        return [name for name in self.steps.names if name.startswith("read ")]


def test_who_is_told_of_a_version_begins_there_and_reads_it_behind_the_look() -> None:
    told = Told()
    assert headed(told.log.try_look(told=told.place)) == told.other.head()
    assert told.reads() == [f"read {commit_path(version)}" for version in (6, 4, 5)]
    assert f"sync {commit_path(5)}" not in told.steps.names


def test_who_is_told_of_an_old_version_finds_the_newest() -> None:
    told = Told()
    told.other.append(epoch())
    look = told.log.try_look(told=told.place)
    assert look is not None
    assert look.head().version == 6


@pytest.mark.parametrize("read_before", [False, True], ids=["", "which it has read itself"])
def test_who_is_told_of_a_version_that_is_gone_finds_what_there_is(read_before: bool) -> None:
    """The table was put back from an older copy."""
    told = Told()
    if read_before:
        assert told.log.stored.commit(5) is not None
    del told.store.objects[commit_path(5)]
    look = told.log.try_look(told=told.place)
    assert look is not None
    assert look.head().version == 4


def test_who_is_told_of_a_version_does_not_take_another_for_it() -> None:
    told = Told()
    del told.store.objects[commit_path(5)]
    here = Log(told.store, clock=Ticks()).append(epoch())
    assert here is not None
    assert here.version == 5
    look = told.log.try_look(told=told.place)
    assert look is not None
    assert look.head().token == here.token != told.place.token


def test_a_version_that_somebody_has_just_proven_is_not_looked_for() -> None:
    told = Told()
    assert headed(told.log.look_at(told.place)) == told.other.head()
    assert told.reads() == [f"read {commit_path(version)}" for version in (4, 5)]
    del told.steps.names[:]
    assert headed(told.log.look_at(told.place)) == told.other.head()
    assert not told.reads()


def test_who_remembers_more_than_was_proven_looks() -> None:
    """Its memory may be of a version that is in no log any more."""
    told = Told()
    told.log.look_at(told.place)
    older = told.other.at(4).place
    told.other.append(epoch())
    found = headed(told.log.look_at(older))
    assert found is not None
    assert found.version == 6
    assert f"read {commit_path(7)}" in told.reads()


def test_a_version_that_cannot_be_had_is_looked_for() -> None:
    told = Told()
    del told.store.objects[commit_path(5)]
    found = headed(told.log.look_at(told.place))
    assert found is not None
    assert found.version == 4


def test_who_has_looked_may_read_what_is_before_without_another_look() -> None:
    store = MemoryStore()
    steps = Steps()
    log = Log(FaultyStore(store, steps), clock=Ticks())
    other = grown(store, 5)
    log.head()
    before = len(steps.names)
    with log.last_look() as look:
        other.append(epoch())
        assert look.head().version == 5
        assert (look.at(3).version, look.before(3).version) == (3, 2)
        assert log.last_look().head().version == 5
    assert f"read {commit_path(6)}" not in steps.names[before:]
    assert log.head().version == 6


def behind_a_look(
    log: Log, happens: Callable[[], None], read: Callable[[Versions], object]
) -> None:
    with log.last_look() as look:
        happens()
        read(look)


READS: dict[str, Callable[[Versions], object]] = {
    "changes": lambda log: list(log.commits(1, 4)),
    "a state": lambda log: log.at(2),
    "both": lambda log: (log.at(1), list(log.commits(2, 5))),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("remembered", [(), (1, 2), (3, 4)], ids=str)
def test_what_is_replaced_behind_a_look_is_another_table_and_no_damage(
    read: Callable[[Versions], object], remembered: tuple[int, ...]
) -> None:
    store, another = MemoryStore(), MemoryStore()
    grown(another, 5)
    log = grown(store, 5)
    assert len(list(log.commits(0, 6))) == 6

    def replace() -> None:
        store.objects.clear()
        store.objects.update(another.objects)
        for version in set(log.stored._commits) - set(remembered):
            log.stored._commits.pop(version)

    with pytest.raises(OtherTableError):
        behind_a_look(log, replace, read)


def test_damage_behind_a_look_is_damage() -> None:
    store = MemoryStore()
    log = grown(store, 5)

    def damage() -> None:
        store.objects[commit_path(2)] += b"x"
        log.stored._commits.clear()

    with pytest.raises(CorruptionError):
        behind_a_look(log, damage, READS["both"])


def test_who_reads_nothing_behind_a_look_proves_nothing() -> None:
    store, steps = MemoryStore(), Steps()
    grown(store, 5)
    log = Log(FaultyStore(store, steps), clock=Ticks())
    log.head()
    before = len(steps.names)
    with log.last_look() as look:
        assert look.place(5).version == look.head().version
    assert len(steps.names) == before


def test_where_there_is_no_table_nothing_was_seen_and_nothing_is_proven() -> None:
    steps = Steps()
    log = Log(FaultyStore(MemoryStore(), steps), clock=Ticks())
    assert log.try_look() is None
    assert steps.names == [f"read {HINT_PATH}", "list _log"]
    with pytest.raises(TableNotFoundError):
        log.last_look()


def test_a_look_answers_the_same_whatever_is_committed_since() -> None:
    store = MemoryStore()
    log, other = grown(store, 5), Log(store, clock=Ticks())
    look = log.look()
    other.append(epoch())
    assert log.head().version == 6
    assert (look.head().version, look.at(5).version) == (5, 5)
    with pytest.raises(DataLossError, match="version 6 does not exist: the newest version is 5"):
        look.at(6)
    assert log.last_look().head().version == 6


def test_one_look_answers_a_view_in_a_block_and_what_it_read_is_proven() -> None:
    store, steps = MemoryStore(), Steps()
    log = Log(FaultyStore(store, steps), clock=Ticks())
    other = grown(store, 5)
    log.head()
    before = len(steps.names)
    with log.as_seen():
        other.append(epoch())
        assert (log.head().version, log.at(3).version, log.commit(2).version) == (5, 3, 2)
        with log.as_seen():
            pass
        assert log.head().version == 5
    assert f"read {commit_path(6)}" not in steps.names[before:]
    assert steps.names[-1] == f"read {commit_path(5)}"
    assert log.head().version == 6


def test_who_follows_a_table_reads_no_checkpoint_for_the_state_before() -> None:
    store, steps = MemoryStore(), Steps()
    other, log = grown(store, 60), Log(FaultyStore(store, steps), clock=Ticks())
    for _ in range(2):
        base = log.head().version
        other.append(epoch())
        head, before = log.head(), len(steps.names)
        with log.last_look() as look:
            assert look.before(head.version) == other.at(base)
        assert len(steps.names) == before


def test_what_expires_behind_a_look_is_expired_and_no_damage() -> None:
    store = MemoryStore()
    log, other = grown(store, 5), Log(store, clock=Ticks())
    with log.last_look() as look:
        other.append(lambda head: Draft(kind=Kind.EXPIRE, live_rows=head.live_rows, since=5))
        for version in range(5):
            store.delete(commit_path(version))
        log.stored._commits.clear()
        with pytest.raises(DataLossError, match="version 3"):
            look.at(3)


def test_commits_are_yielded_for_a_half_open_range() -> None:
    log = grown(MemoryStore(), 4)
    assert [commit.version for commit in log.commits(2, 4)] == [2, 3]


# -- time ----------------------------------------------------------------------------


def test_timestamps_grow_even_if_the_clock_goes_back() -> None:
    store = MemoryStore()
    times = iter([5.0, 9.0, 3.0, 3.0, 20.0])
    log = Log(store, clock=lambda: next(times))
    log.create(FIRST)
    for _ in range(4):
        log.append(epoch())
    stamps = [commit.timestamp_ms for commit in log.commits(0, 5)]
    assert stamps == [5000, 9000, 9001, 9002, 20000]


@pytest.mark.parametrize(
    ("seconds", "version"),
    [
        pytest.param(1.0, 0, id="just when it was made"),
        pytest.param(1.5, 0, id="between two versions"),
        pytest.param(3.0, 2, id="just when a version was made"),
        pytest.param(2.999, 1, id="a millisecond before it"),
        pytest.param(99.0, 3, id="long after the newest"),
    ],
)
def test_a_timestamp_means_the_version_that_was_current(seconds: float, version: int) -> None:
    store = MemoryStore()
    times = iter([1.0, 2.0, 3.0, 4.0, 99.0])
    log = Log(store, clock=lambda: next(times))
    log.create(FIRST)
    for _ in range(3):
        log.append(epoch())
    assert log.at_timestamp(int(seconds * 1000)).version == version


def test_a_time_in_the_future_has_no_version_yet() -> None:
    log = Log(MemoryStore(), clock=lambda: 5.0)
    log.create(FIRST)
    log.append(epoch())
    assert log.at_timestamp(5001).version == 1, "a version may be younger than the clock"
    with pytest.raises(VersionNotFoundError, match=r"00:00:05\.002Z is in the future: it is .*05Z"):
        log.at_timestamp(5002)


def test_a_timestamp_before_the_table_is_an_error_with_its_beginning() -> None:
    log = created(MemoryStore())
    with pytest.raises(DataLossError, match="2023-11-14T22:13:21Z"):
        log.at_timestamp(1)


# -- races ---------------------------------------------------------------------------


def test_threads_that_race_each_get_a_version_of_their_own() -> None:
    store = MemoryStore()
    created(store)
    taken: list[int] = []
    barrier = threading.Barrier(8)

    def write(writer: int) -> None:
        log = Log(store, clock=Ticks())
        barrier.wait()
        for number in range(10):
            commit = log.append(epoch(of(f"w{writer}", number)))
            assert commit is not None
            taken.append(commit.version)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 81))
    head = Log(store).head()
    assert head.live_rows == 80
    assert head.transactions == {f"w{writer}": 9 for writer in range(8)}


def test_threads_that_share_a_log_each_get_a_version_of_their_own() -> None:
    log = created(MemoryStore())
    threads = [
        threading.Thread(target=lambda: [log.append(epoch()) for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.head().version == log.head().live_rows == 40


def test_a_version_of_two_transactions_makes_both_idempotent() -> None:
    log = created(MemoryStore())
    assert log.append(epoch(of("a", 3), of("b", 7))) is not None
    for again in (of("a", 3), of("b", 7), of("b", 6)):
        assert log.append(epoch(again)) is None
    assert log.head().transactions == {"a": 3, "b": 7}
    assert Log(log._store).at(1).transactions == {"a": 3, "b": 7}
    assert log.append(epoch(of("b", 8))) is not None


def test_a_writer_has_one_transaction_in_a_version() -> None:
    with pytest.raises(ValueError, match="one transaction"):
        Draft(kind=Kind.APPEND, transactions=(of("a", 3), of("a", 4)))


def test_a_loser_of_the_race_proposes_again_upon_the_winner() -> None:
    store = MemoryStore()
    log, other = created(store), Log(store, clock=Ticks())
    seen: list[int] = []

    def propose(head: Manifest) -> Draft | None:
        seen.append(head.version)
        if len(seen) == 1:
            other.append(epoch(of("other", 1)))
        return epoch(of("own", 1))(head)

    commit = log.append(propose)
    assert commit is not None
    assert commit.version == 2
    assert seen == [0, 1]


def test_a_proposal_that_is_no_longer_wanted_writes_nothing() -> None:
    store = MemoryStore()
    log = created(store)
    log.append(epoch(of("w", 1)))
    before = dict(store.objects)
    assert log.append(epoch(of("w", 1))) is None
    assert store.objects == before


class AlwaysLate(MemoryStore):
    """A store on which another writer is always faster."""

    def put_if_absent(self, path: str, data: bytes) -> bool:
        if path != commit_path(0):
            theirs = {**json.loads(data), "token": "theirs"}
            theirs.pop("crc", None)
            super().put_if_absent(path, encode(theirs))
        return super().put_if_absent(path, data)


def test_a_writer_that_loses_every_race_gives_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_module, "COMMIT_TRIES_MAX", 5)
    log = created(AlwaysLate())
    with pytest.raises(ContentionError, match="5 attempts"):
        log.append(epoch())


# -- errors after the effect ---------------------------------------------------------


class Flaky(MemoryStore):
    """A store whose next conditional put behaves as told."""

    def __init__(self) -> None:
        super().__init__()
        self.next_put: Callable[[str, bytes], bool] | None = None

    def put_if_absent(self, path: str, data: bytes) -> bool:
        put, self.next_put = self.next_put, None
        return put(path, data) if put else super().put_if_absent(path, data)


def test_an_error_after_the_effect_is_a_success() -> None:
    store = Flaky()
    log = created(store)

    def put(path: str, data: bytes) -> bool:
        store.put_if_absent(path, data)
        raise TimeoutError("no answer")

    store.next_put = put
    commit = log.append(epoch())
    assert commit is not None
    assert log.head().version == 1


def test_an_error_before_the_effect_is_an_error() -> None:
    store = Flaky()
    log = created(store)

    def put(path: str, data: bytes) -> bool:
        raise TimeoutError("no answer")

    store.next_put = put
    with pytest.raises(TimeoutError):
        log.append(epoch())
    assert log.head().version == 0


def test_an_error_while_another_writer_wins_is_a_lost_race() -> None:
    store = Flaky()
    log, other = created(store), Log(store, clock=Ticks())

    def put(path: str, data: bytes) -> bool:
        other.append(epoch(of("other", 7)))
        raise TimeoutError("no answer")

    store.next_put = put
    commit = log.append(epoch(of("own", 1)))
    assert commit is not None
    assert commit.version == 2
    assert log.head().transactions == {"other": 7, "own": 1}


def test_a_put_that_a_client_repeats_is_not_taken_for_anothers() -> None:
    """A client that retries by itself is told that the object exists: its own first try did it."""
    store = Flaky()
    log = created(store)

    def put(path: str, data: bytes) -> bool:
        store.put_if_absent(path, data)
        return store.put_if_absent(path, data)

    store.next_put = put
    commit = log.append(epoch())
    assert commit is not None
    assert (commit.version, log.head().version) == (1, 1)


def test_creation_is_settled_by_the_token_too() -> None:
    store = Flaky()

    def put(path: str, data: bytes) -> bool:
        store.put_if_absent(path, data)
        raise TimeoutError("no answer")

    store.next_put = put
    created(store)


# -- checkpoints ---------------------------------------------------------------------


def test_with_and_without_checkpoints_the_log_reads_the_same() -> None:
    store = MemoryStore()
    grown(store, 2 * CHECKPOINT_EVERY + 3)
    bare = MemoryStore()
    bare.objects = {path: data for path, data in store.objects.items() if "checkpoint" not in path}
    assert len(bare.objects) < len(store.objects)
    for version in (0, 1, CHECKPOINT_EVERY - 1, CHECKPOINT_EVERY, 2 * CHECKPOINT_EVERY + 3):
        assert Log(store).at(version) == Log(bare).at(version)
    assert Log(store).head() == Log(bare).head()


def test_a_fresh_reader_replays_at_most_the_commits_behind_a_checkpoint() -> None:
    store = MemoryStore()
    grown(store, CHECKPOINT_EVERY + 3)
    steps = Steps()
    Log(FaultyStore(store, steps)).head()
    # The hint, the checkpoint, the listing, three commits, the look for a fourth, and whether the
    # checkpoint is still part of the log; then the newest one is made durable.
    assert len(steps.names) == 9


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda objects, hint: objects.pop(hint), id="absent"),
        pytest.param(lambda objects, hint: objects.update({hint: b"{"}), id="torn"),
        pytest.param(lambda objects, hint: objects.update({hint: b'{"version":0}'}), id="old"),
        pytest.param(lambda objects, hint: objects.update({hint: b'{"version":100}'}), id="ahead"),
    ],
)
def test_the_hint_may_be(damage: Callable[[dict[str, bytes], str], None]) -> None:
    store = MemoryStore()
    head = grown(store, CHECKPOINT_EVERY + 1).head()
    damage(store.objects, "_log/_last_checkpoint")
    assert Log(store).head() == head


@pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.value)
@pytest.mark.parametrize("which", [0, 1], ids=lambda n: f"at step {n} behind the commit")
def test_a_checkpoint_that_fails_does_not_fail_the_commit(which: int, moment: Moment) -> None:
    store = MemoryStore()
    grown(store, CHECKPOINT_EVERY - 1)
    probe = Steps()
    trial = MemoryStore()
    trial.objects = dict(store.objects)
    Log(FaultyStore(trial, probe), clock=Ticks()).append(epoch())
    put = probe.names.index(f"put_if_absent {commit_path(CHECKPOINT_EVERY)}")
    assert probe.names[put + 1 :] == [
        f"read {commit_path(CHECKPOINT_EVERY - 1)}",  # The proof.
        f"put {checkpoint_path(CHECKPOINT_EVERY)}",
        f"put {HINT_PATH}",
    ]
    step = put + 2 + which
    log = Log(FaultyStore(store, Steps(Fault(step, moment, BrokenError))), clock=Ticks())
    commit = log.append(epoch())
    assert commit is not None
    assert Log(store).head().version == CHECKPOINT_EVERY


# -- damage --------------------------------------------------------------------------


def test_a_record_that_is_no_json_is_named() -> None:
    store = MemoryStore()
    grown(store, 2)
    store.objects[commit_path(1)] = b"{"
    with pytest.raises(CorruptionError, match=commit_path(1)):
        Log(store).head()


def test_a_flipped_bit_in_a_commit_is_named() -> None:
    store = MemoryStore()
    grown(store, 1)
    intact = store.objects[commit_path(1)]
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << (position % 7)
        store.objects[commit_path(1)] = bytes(damaged)
        with pytest.raises(CorruptionError, match=commit_path(1)):
            Log(store).head()


def test_a_flipped_bit_in_a_checkpoint_is_named() -> None:
    store = MemoryStore()
    grown(store, CHECKPOINT_EVERY)
    path = commit_path(CHECKPOINT_EVERY).replace(".json", ".checkpoint.json")
    intact = store.objects[path]
    for position in range(0, len(intact), 13):
        damaged = bytearray(intact)
        damaged[position] ^= 1
        store.objects[path] = bytes(damaged)
        with pytest.raises(CorruptionError, match="checkpoint"):
            Log(store).head()


def test_a_newer_format_is_refused_by_name() -> None:
    store = MemoryStore()
    grown(store, 1)
    record = json.loads(store.objects[commit_path(1)])
    record.pop("crc", None)
    store.objects[commit_path(1)] = encode({**record, "format": 99})
    with pytest.raises(NewerFormatError, match=rf"{commit_path(1)}' has format 99") as error:
        Log(store).head()
    assert "upgrade upsertflow" in error.value.hint
    assert "restore" not in str(error.value)


def test_an_older_format_is_refused_by_name() -> None:
    store = MemoryStore()
    grown(store, 1)
    record = json.loads(store.objects[commit_path(1)])
    record.pop("crc", None)
    store.objects[commit_path(1)] = encode({**record, "format": 1})
    with pytest.raises(EarlierFormatError, match=rf"{commit_path(1)}' has format 1, of an earlier"):
        Log(store).head()


def test_a_newer_key_hash_is_refused_by_name() -> None:
    store = MemoryStore()
    grown(store, 1)
    record = json.loads(store.objects[commit_path(0)])
    record.pop("crc")
    record["schema"]["hash"]["version"] = 3
    store.objects[commit_path(0)] = encode(record)
    with pytest.raises(NewerFormatError, match="key hash has format 3"):
        Log(store).head()


def test_a_commit_of_another_version_is_named() -> None:
    store = MemoryStore()
    grown(store, 2)
    store.objects[commit_path(2)] = store.objects[commit_path(1)]
    with pytest.raises(CorruptionError, match=commit_path(2)):
        Log(store).head()
