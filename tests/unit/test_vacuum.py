"""Vacuum: what only the removed past named goes, and nothing that a reader or a writer needs."""

from __future__ import annotations

from typing import Any

import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import ContentionError, CorruptionError
from spark_upsert.store.records import encode
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import HINT_PATH, checkpoint_path
from spark_upsert.table.log.log import LOG_SECONDS_MIN, Log
from spark_upsert.table.log.manifest import Draft, Kind, Transaction
from spark_upsert.table.table import Table
from spark_upsert.table.write.write_set import WriteSet
from tests.support.clocked import DAY_S, ClockedStore
from tests.support.lived import EVERY, MANY, Lived, body
from tests.support.model import Command
from tests.support.stores import FaultyStore, Steps
from tests.support.tables import append, plan_epoch, rows_at, schema_of


@pytest.fixture(autouse=True)
def _many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", EVERY)


# -- data ----------------------------------------------------------------------------


def test_vacuum_removes_what_only_expired_versions_name_and_may_be_repeated() -> None:
    lived = Lived(9)
    objects = dict(lived.store.objects)
    assert not lived.table.vacuum().expired
    assert lived.store.objects == objects, "nothing was expired"
    lived.table.compact(full=True)
    lived.live(2)
    lived.table.hold("reports", 9)
    lived.table.expire(retain_versions=2)
    assert lived.since == 9
    assert lived.table.vacuum().expired == ()
    assert rows_at(lived.table, 9) == lived.expected(9)
    lived.table.release("reports")
    lived.table.expire(retain_versions=3)
    assert lived.since == 10
    done = lived.table.vacuum()
    # The nine runs that the compaction merged; its own and the two behind it stay.
    assert len(done.expired) == 9
    assert done.bytes == sum(file.bytes for file in done.expired) > 0
    assert len(lived.files("data")) == 3
    assert lived.reopened().check().is_sound
    objects = dict(lived.store.objects)
    again = lived.table.vacuum()
    assert (again.expired, again.orphans, again.log, again.waiting_count) == ((), (), (), 0)
    assert lived.store.objects == objects


def test_dry_run_removes_nothing_and_says_what_a_run_does() -> None:
    lived = Lived(9)
    lived.table.compact(full=True)
    planned(lived)
    lived.live(30)
    lived.table.expire(retain_versions=2)
    lived.now.advance(DAY_S)
    lived.live()
    objects = dict(lived.store.objects)
    tried = lived.table.vacuum(dry_run=True)
    assert lived.store.objects == objects
    done = lived.table.vacuum()
    assert (tried.expired, tried.orphans, tried.log) == (done.expired, done.orphans, done.log)
    assert len(done.orphans) == 1
    assert tried.is_dry_run


# -- orphans and writers -------------------------------------------------------------


def planned(lived: Lived, **how: Any) -> WriteSet:
    """Return an epoch whose files are written, and that is not committed."""
    return plan_epoch(lived.table, [[[Command(1, 1, 99)]]], **how)


def test_files_of_a_crash_are_removed_after_a_day() -> None:
    lived = Lived(2)
    staged = planned(lived).staged
    lived.now.advance(DAY_S - 1)
    lived.live()
    assert lived.table.vacuum().waiting_count == 1
    lived.live(26)
    done = lived.table.vacuum()
    assert [file.path for file in done.orphans] == [f.path for s in staged for f in s.files]
    assert done.waiting_count == 0
    assert lived.reopened().check().is_sound


def test_orphan_of_a_table_at_rest_goes_with_the_second_vacuum() -> None:
    """The first makes the version that the second can put its fence at; then there is peace."""
    lived = Lived(2)
    planned(lived)
    lived.now.advance(DAY_S + 1)
    for _ in range(2):
        assert lived.table.vacuum().waiting_count == 1
        assert lived.version == 3, "one marker is enough"
    lived.now.advance(DAY_S + 1)
    assert len(lived.table.vacuum().orphans) == 1
    lived.now.advance(DAY_S + 1)
    lived.table.vacuum()
    assert lived.version == 4


@pytest.mark.parametrize(
    ("hours", "is_vacuumed"),
    [
        pytest.param(23, True, id="within the day"),
        pytest.param(48, False, id="later if nothing is removed before it"),
    ],
)
def test_planned_epoch_is_committed(hours: int, is_vacuumed: bool) -> None:
    lived = Lived(2)
    epoch = planned(lived)
    lived.live(hours)
    if is_vacuumed:
        assert lived.table.vacuum().orphans == ()
    assert lived.table.commit(epoch) is not None
    assert lived.table.vacuum().orphans == ()
    assert lived.reopened().check().is_sound


def test_writer_that_is_slower_than_the_grace_is_refused_not_lost() -> None:
    lived = Lived(2)
    epoch = planned(lived)
    lived.live(48)
    assert len(lived.table.vacuum().orphans) == 1
    rows = rows_at(lived.table)
    with pytest.raises(ContentionError, match=r"planned on version 2 .* Nothing was committed"):
        lived.table.commit(epoch)
    assert rows_at(lived.reopened()) == rows
    # Planned anew, as a restarted query does, it goes through.
    assert lived.table.commit(planned(lived)) is not None


def test_writer_that_commits_while_the_vacuum_looks_keeps_its_files() -> None:
    """It is older than the grace, and wins the race against the fence."""
    lived = Lived(2)
    epoch = planned(lived)
    lived.live(48)

    class Racing(ClockedStore):
        def list(self, prefix: str, *, after: str = "") -> Any:
            yield from list(super().list(prefix, after=after))
            if prefix == "data" and lived.version == 50:
                assert lived.table.commit(epoch) is not None

    store = Racing(lived.now)
    store.objects, store.times = lived.store.objects, lived.store.times
    assert Table(store, clock=lived.now).vacuum().orphans == ()
    assert lived.reopened().check().is_sound


def test_committed_transaction_is_skipped_before_it_is_refused() -> None:
    lived = Lived(2)
    epoch = planned(lived, transaction=Transaction(writer="w", number=1))
    assert lived.table.commit(epoch) is not None
    lived.live(48)
    lived.table.expire(retain_versions=1)
    lived.table.vacuum()
    assert lived.table.commit(epoch) is None
    assert lived.reopened().check().is_sound


@pytest.mark.parametrize(
    "is_slow",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["committed twice keep their files", "slower than the grace are dropped"],
)
def test_merges_that_are(is_slow: bool) -> None:
    lived = Lived(9)
    jobs = lived.table.compaction_jobs(full=True)
    merged = [compact_runs(lived.store, lived.table.log.head(), job) for job in jobs]
    if is_slow:
        lived.live(48)
        assert len(lived.table.vacuum().orphans) == 1
    else:
        assert lived.table.commit_compactions(merged) == 1
    assert lived.table.commit_compactions(merged) == 0
    assert lived.reopened().check().is_sound


def test_files_of_an_expired_writer_are_left_to_the_vacuum() -> None:
    lived = Lived(2)
    epoch = planned(lived)
    lived.live(9)
    lived.table.expire(retain_versions=1)
    files = lived.files("data")
    lived.table.discard(epoch.staged)
    assert lived.files("data") == files


# -- the log -------------------------------------------------------------------------


def shortened() -> Lived:
    """Return a table whose log begins at a checkpoint."""
    lived = Lived(MANY)
    lived.table.expire(retain_versions=3)
    lived.table.vacuum()
    return lived


def versions_in_log(lived: Lived) -> list[int]:
    return [e.version for e in lived.table.log.stored.entries() if not e.is_checkpoint]


def test_log_is_cut_at_the_checkpoint_at_or_below_since() -> None:
    lived = Lived(EVERY + 1)
    lived.table.expire(retain_versions=2)
    assert lived.table.vacuum().log == (), "there is no checkpoint to cut at"
    lived = shortened()
    assert lived.since == MANY - 3
    assert versions_in_log(lived) == [0, *range(2 * EVERY, MANY + 2)]
    for version in range(lived.since, MANY + 1):
        assert rows_at(lived.reopened(), version) == lived.expected(version)
    for _ in range(3):
        lived.live(7)
        lived.table.expire(retain_versions=3)
        lived.table.vacuum()
        assert len(versions_in_log(lived)) <= EVERY + 5
    assert lived.reopened().check().is_sound
    assert rows_at(lived.reopened())[0] == lived.version - 1


def test_checkpoint_that_was_never_written_is_made_before_the_cut() -> None:
    lived = Lived(MANY)
    lived.table.expire(retain_versions=3)
    for path in [path for path in lived.store.objects if "checkpoint" in path]:
        lived.store.delete(path)
    lived.table.vacuum()
    assert versions_in_log(lived)[1] == 2 * EVERY
    assert lived.reopened().check().is_sound
    assert rows_at(lived.reopened()) == lived.expected(MANY)


def test_young_versions_stay_in_the_log() -> None:
    lived = Lived()
    for number in range(MANY):
        lived.now.advance(1)
        append(lived.table, [Command(number, 0, number)])
    lived.table.expire(retain_versions=0, safety_ms=0)
    assert lived.since == MANY
    lived.now.advance(LOG_SECONDS_MIN - MANY + 3)
    lived.table.vacuum()
    assert versions_in_log(lived)[:2] == [0, 4]
    lived.now.advance(MANY)
    lived.table.vacuum()
    assert versions_in_log(lived)[:2] == [0, 2 * EVERY]


def test_times_that_tombstones_need_stay_in_the_log() -> None:
    lived = Lived(MANY, scope=Scope.TABLE)
    lived.table.alter(lived.table.log.head().schema, {"tombstoneRetention": "12 hours"})
    lived.table.expire(retain_versions=3)
    lived.table.vacuum()
    assert versions_in_log(lived)[:2] == [0, MANY - 12 + 1]


def test_cut_log_is_read_without_its_hint_and_not_without_its_checkpoints() -> None:
    lived = shortened()
    head = lived.table.log.head()
    for hint in (b"{", encode({"version": EVERY})):
        lived.store.objects[HINT_PATH] = hint
        assert lived.reopened().log.head() == head
    del lived.store.objects[HINT_PATH]
    assert lived.reopened().log.head() == head
    draft = Draft(kind=Kind.CREATE, schema=schema_of(Scope.EPOCH))
    assert Log(lived.store, clock=lived.now).create(draft) is None
    for path in [path for path in lived.store.objects if "checkpoint" in path]:
        lived.store.delete(path)
    with pytest.raises(CorruptionError, match=checkpoint_path(2 * EVERY)):
        lived.reopened().log.head()


# -- requests ------------------------------------------------------------------------


@pytest.mark.parametrize("are_blocks_repeated", [True, False], ids=["", "by an earlier release"])
def test_reads_of_a_vacuum_grow_with_checkpoints_and_not_with_versions(
    are_blocks_repeated: bool,
) -> None:
    """Of 40 versions, half of them readable, it reads one object per checkpoint."""
    lived = Lived(7)
    lived.table.compact(full=True)  # Its runs are in no checkpoint: they are merged again.
    lived.live(1)
    lived.table.compact(full=True)
    lived.live(40 - lived.version)
    rows = {version: rows_at(lived.table, version) for version in (20, 22, 31, 40)}
    lived.table.expire(retain_versions=20)
    if not are_blocks_repeated:
        for path in lived.files("_log"):
            record = body(lived.store.objects[path])
            record.pop("recent", None)
            lived.store.objects[path] = encode(record)
    steps = Steps()
    done = Table(FaultyStore(lived.store, steps), clock=lived.now).vacuum()
    assert len(done.expired) == 7 + 2
    reads = {name for name in steps.names if name.startswith("read _log/0")}
    reads = {name for name in reads if "checkpoint" not in name}
    around = 9  # The first versions, the end of the log, and what is after the last checkpoint.
    assert (len(reads) <= 40 // EVERY + around) is are_blocks_repeated, sorted(reads)
    assert {version: rows_at(lived.reopened(), version) for version in rows} == rows
