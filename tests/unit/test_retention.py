"""Retention: the past goes when nobody needs it, never earlier, and never by accident."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from spark_upsert.errors import (
    ContentionError,
    CorruptionError,
    DataLossError,
    NewerFormatError,
    OptionError,
)
from spark_upsert.model.schema import Scope
from spark_upsert.store import Store
from spark_upsert.store.records import encode
from spark_upsert.table.log import checkpoints
from spark_upsert.table.log.cut import LOG_SECONDS_MIN
from spark_upsert.table.log.entries import commit_path
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Kind, Transaction
from spark_upsert.table.retention.leases import Lease
from spark_upsert.table.retention.policy import RetentionBound, bounds, choose_since
from spark_upsert.table.table import Table
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore, Now
from tests.support.model import Command
from tests.support.tables import append, changes_of, plan_epoch, rows_at, schema_of

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
EVERY = 5
"""Versions between checkpoints, here: fewer versions show the same."""

MANY = 2 * EVERY + 4


@pytest.fixture(autouse=True)
def _many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_EVERY", EVERY)


class Lived:
    """A table on a clock: one epoch an hour, key 0 in all of them and a key of its own in each."""

    def __init__(self, epochs: int = 0, *, scope: Scope = Scope.EPOCH) -> None:
        self.now = Now()
        self.store = ClockedStore(self.now)
        self.scope = scope
        self.table = Table(self.store, clock=self.now)
        self.table.log.create(Draft(kind=Kind.CREATE, schema=schema_of(scope)))
        self.live(epochs)

    def live(self, epochs: int = 1) -> None:
        for _ in range(epochs):
            self.now.advance(HOUR_S)
            version = self.version + 1
            append(self.table, [Command(0, version, version), Command(version, 0, version)])

    @property
    def version(self) -> int:
        return self.table.log.head().version

    @property
    def since(self) -> int:
        return self.table.log.head().since

    def reopened(self) -> Table:
        return Table(self.store, clock=self.now)

    def files(self, folder: str) -> set[str]:
        return {path for path in self.store.objects if path.startswith(folder + "/")}

    def expected(self, version: int) -> dict[int, int]:
        """Return the rows at a version, if all versions are epochs."""
        return {**({0: version} if version else {}), **dict.fromkeys(range(1, version + 1), 0)}


# -- the choice ----------------------------------------------------------------------


def lease(consumer: str, version: int, *, age_ms: int = 0, ttl_ms: int = DAY_MS) -> Lease:
    return Lease(
        consumer=consumer, version=version, renewed_ms=1000 * DAY_MS - age_ms, ttl_ms=ttl_ms
    )


@pytest.mark.parametrize(
    ("asked", "choice"),
    [
        pytest.param({"retain_versions": 10}, (90, "10 versions"), id="a number of versions"),
        pytest.param({"retain_versions": 0}, (95, "last 1 hour"), id="at most the last hour goes"),
        pytest.param({"retain_versions": 200}, (0, "200 versions"), id="more than there are"),
        pytest.param({"at_age": (DAY_MS, 60)}, (60, "of 1 day"), id="an age"),
        pytest.param(
            {"retain_versions": 10, "at_age": (DAY_MS, 60)},
            (60, "of 1 day"),
            id="the longer of two",
        ),
        pytest.param({"at_age": (DAY_MS, -1)}, (0, "of 1 day"), id="an age before the table"),
        pytest.param(
            {"retain_versions": 10, "leases": [lease("a", 70), lease("b", 80)]},
            (70, "consumer 'a'"),
            id="the consumer that is furthest behind",
        ),
        pytest.param(
            {"retain_versions": 10, "leases": [lease("a", 70, age_ms=DAY_MS)]},
            (90, "10 versions"),
            id="a lapsed lease binds nothing",
        ),
        pytest.param(
            {"retain_versions": 10, "leases": [lease("a", 70, age_ms=DAY_MS - 1)]},
            (70, "consumer 'a'"),
            id="a lease binds until the last millisecond",
        ),
    ],
)
def test_since_is_the_least_of(asked: dict[str, Any], choice: tuple[int, str]) -> None:
    usual: dict[str, Any] = {"retain_versions": None, "at_age": None, "leases": []}
    found = bounds(newest=100, at_safety=(HOUR_MS, 95), now_ms=1000 * DAY_MS, **{**usual, **asked})
    chosen = choose_since(found)
    assert chosen.since == choice[0]
    assert choice[1] in chosen.reason


def test_of_equal_bounds_the_first_is_named() -> None:
    assert (
        choose_since(
            [RetentionBound(since=3, reason="a"), RetentionBound(since=3, reason="b")]
        ).reason
        == "a"
    )


# -- expire --------------------------------------------------------------------------


def test_nothing_is_expired_unless_asked() -> None:
    lived = Lived(5)
    with pytest.raises(OptionError, match="retain"):
        lived.table.expire()
    assert lived.since == 0


@pytest.mark.parametrize("name", ["retain_versions", "retain_ms"])
def test_a_negative_retention_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="0 or more"):
        Lived(1).table.expire(**{name: -1})


def test_an_expiry_is_a_version_that_changes_no_row() -> None:
    lived = Lived(9)
    before = lived.table.log.head()
    outcome = lived.table.expire(retain_versions=4)
    head = lived.table.log.head()
    assert (outcome.before, outcome.since, outcome.newest) == (0, 5, 9)
    assert (head.version, head.since, head.live_rows) == (10, 5, before.live_rows)
    assert lived.table.log.commit(10).kind is Kind.EXPIRE
    assert rows_at(lived.table) == lived.expected(9)
    assert changes_of(lived.table, 10) == []


def test_an_expiry_without_effect_is_no_version() -> None:
    lived = Lived(9)
    lived.table.expire(retain_versions=4)
    outcome = lived.table.expire(retain_versions=5)
    assert not outcome.has_advanced
    assert lived.version == 10


def test_a_table_at_rest_gets_no_version_for_having_been_expired() -> None:
    lived = Lived(9)
    lived.table.expire(retain_versions=0)
    for _ in range(3):
        lived.now.advance(DAY_S)
        lived.table.expire(retain_versions=0)
    assert (lived.version, lived.since) == (11, 10)


def test_since_never_goes_back() -> None:
    lived = Lived(9)
    lived.table.expire(retain_versions=2)
    lived.table.expire(retain_versions=8)
    assert lived.since == 7


def test_by_age_every_time_within_it_stays_readable() -> None:
    lived = Lived(9)
    lived.table.expire(retain_ms=int(3.5 * HOUR_MS))
    # 3.5 hours ago, version 5 was half an hour old.
    assert lived.since == 5
    then_ms = int(lived.now() * 1000) - int(3.5 * HOUR_MS)
    assert lived.table.log.at_timestamp(then_ms).version == 5


def test_versions_of_the_last_hour_stay_whatever_is_asked() -> None:
    lived = Lived(3)
    for _ in range(4):
        lived.now.advance(600)
        append(lived.table, [Command(0, 0, 99)])
    outcome = lived.table.expire(retain_versions=0)
    assert (outcome.since, outcome.newest) == (2, 7)
    assert outcome.bound_by == "versions of the last 1 hour"


def test_a_consumer_is_waited_for() -> None:
    lived = Lived(9)
    lived.table.hold("reports", 3)
    outcome = lived.table.expire(retain_versions=0)
    assert (outcome.since, outcome.bound_by) == (3, "the consumer 'reports'")
    lived.table.hold("reports", 6)
    assert lived.table.expire(retain_versions=0).since == 6


def test_a_consumer_that_is_gone_is_not_waited_for_longer_than_its_time_to_live() -> None:
    lived = Lived(9)
    lived.table.hold("reports", 3, ttl_ms=2 * HOUR_MS)
    lived.now.advance(2 * HOUR_S - 1)
    assert lived.table.expire(retain_versions=0).since == 3
    lived.now.advance(1)
    assert lived.table.expire(retain_versions=0).since == 9


@pytest.mark.parametrize(
    ("version", "waited_s", "renewed_s"),
    [
        pytest.param(3, HOUR_S, 0, id="with half of its time left it stands"),
        pytest.param(3, HOUR_S + 1, HOUR_S + 1, id="with less it is renewed"),
        pytest.param(4, 1, 1, id="at another version it moves"),
        pytest.param(2, 1, 1, id="it moves back, too"),
    ],
)
def test_a_lease_that_is_kept_is_written_where_it_must_be(
    version: int, waited_s: int, renewed_s: int
) -> None:
    lived = Lived(9)
    began_ms = lived.table.hold("reports", 3, ttl_ms=2 * HOUR_MS).renewed_ms
    lived.now.advance(waited_s)
    lived.table.keep_held("reports", version, ttl_ms=2 * HOUR_MS)
    [lease] = lived.table.consumers()
    assert (lease.version, lease.renewed_ms) == (version, began_ms + 1000 * renewed_s)


def test_a_lease_that_is_kept_is_taken_where_there_is_none() -> None:
    lived = Lived(9)
    lived.table.keep_held("reports", 3)
    lived.store.put("_consumers/other.json", b"no lease")
    lived.table.keep_held("other", 4)
    assert [lease.version for lease in lived.table.consumers()] == [4, 3]


def test_a_lease_that_is_kept_of_an_expired_version_is_none() -> None:
    lived = Lived(9)
    lived.table.hold("reports", 3)
    lease = lived.store.read("_consumers/reports.json")
    lived.table.release("reports")
    lived.table.expire(retain_versions=0)
    lived.store.put("_consumers/reports.json", lease)
    with pytest.raises(DataLossError):
        lived.table.keep_held("reports", 3)
    assert lived.table.consumers() == []


@pytest.mark.parametrize("hold", [Table.hold, Table.keep_held], ids=["held", "kept"])
def test_a_version_that_is_yet_to_come_cannot_be_held(hold: Callable[..., Lease]) -> None:
    lived = Lived(3)
    newest = lived.table.log.head().version
    with pytest.raises(OptionError, match=f"a version from 0 to {newest}, the newest"):
        hold(lived.table, "sums", newest + 1)
    assert lived.table.consumers() == []
    hold(lived.table, "sums", newest)


@pytest.mark.parametrize(
    ("lower", "upper", "named"),
    [
        pytest.param(5, None, "lower", id="behind the next version"),
        pytest.param(-1, None, "lower", id="before all"),
        pytest.param(0, 5, "upper", id="an end behind the next version"),
        pytest.param(2, 1, "upper", id="an end before its beginning"),
    ],
)
def test_changes_that_cannot_be_are_refused(lower: int, upper: int | None, named: str) -> None:
    lived = Lived(3)
    assert lived.table.log.head().upper == 4
    with pytest.raises(OptionError, match=f"option '{named}' expects a version from"):
        lived.table.changes(lower, upper)
    assert len(lived.table.changes(4)) == len(lived.table.changes(2, 2)) == 0


def test_a_release_says_whether_there_was_a_lease() -> None:
    lived = Lived(1)
    lived.table.hold("sums", 0)
    assert lived.table.release("sums")
    assert not lived.table.release("sums")


def test_a_released_consumer_is_not_waited_for() -> None:
    lived = Lived(9)
    lived.table.hold("reports", 3)
    lived.table.release("reports")
    lived.table.release("reports")
    assert lived.table.consumers() == []
    assert lived.table.expire(retain_versions=0).since == 8


def _flip(data: bytes) -> bytes:
    return data.replace(b'"version":3', b'"version":8')


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="is empty"),
        pytest.param(lambda data: data[:-9], id="is torn"),
        pytest.param(_flip, id="has another version than its checksum says"),
        pytest.param(lambda data: b"[]", id="is another JSON"),
        pytest.param(
            lambda data: encode({**_body(data), "consumer": "other"}), id="is another consumer's"
        ),
    ],
)
def test_nothing_is_expired_while_a_lease(damage: Callable[[bytes], bytes]) -> None:
    lived = Lived(9)
    lived.table.hold("reports", 3)
    path = "_consumers/reports.json"
    lived.store.objects[path] = damage(lived.store.objects[path])
    with pytest.raises(CorruptionError, match=r"_consumers/reports\.json") as error:
        lived.table.expire(retain_versions=0)
    assert "Hint" in str(error.value)
    assert lived.since == 0


def test_nothing_is_expired_while_a_lease_comes_from_a_newer_version() -> None:
    lived = Lived(9)
    lived.table.hold("reports", 3)
    path = "_consumers/reports.json"
    lived.store.objects[path] = encode({**_body(lived.store.objects[path]), "format": 99})
    with pytest.raises(NewerFormatError, match=r"_consumers/reports\.json"):
        lived.table.expire(retain_versions=0)
    assert lived.since == 0


def _body(data: bytes) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(data)
    record.pop("crc")
    return record


def test_a_foreign_file_among_the_leases_stops_the_expiry() -> None:
    lived = Lived(9)
    lived.store.put("_consumers/notes.txt", b"hello")
    with pytest.raises(CorruptionError, match=r"notes\.txt"):
        lived.table.expire(retain_versions=0)


# -- leases --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a b", "ä", "a" * 101, "-a", "a\n", "a\\b", "a:b"]
)
def test_a_consumer_must_be_a_file_name_anywhere(name: str) -> None:
    with pytest.raises(OptionError, match="consumerId"):
        Lived(1).table.hold(name, 0)


@pytest.mark.parametrize("name", ["a", "A-1", "orders_to.sums", "0", "a" * 100])
def test_a_plain_name_will_do(name: str) -> None:
    lived = Lived(1)
    lived.table.hold(name, 0)
    assert [each.consumer for each in lived.table.consumers()] == [name]


def test_a_lease_on_what_is_expired_is_refused_and_not_kept() -> None:
    lived = Lived(9)
    lived.table.expire(retain_versions=4)
    with pytest.raises(DataLossError, match="version 4, for the consumer 'late'"):
        lived.table.hold("late", 4)
    assert lived.table.consumers() == []


def test_an_expiry_that_overtakes_a_lease_is_noticed_by_the_consumer() -> None:
    """The expiry has read the leases before ours was there, and commits after it is."""
    lived = Lived(9)

    class Overtaken(ClockedStore):
        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            Table(lived.store, clock=lived.now).log.append(
                lambda head: Draft(
                    kind=Kind.EXPIRE,
                    live_rows=head.live_rows,
                    since=6,
                )
            )

    store = Overtaken(lived.now)
    store.objects, store.times = lived.store.objects, lived.store.times
    with pytest.raises(DataLossError):
        Table(store, clock=lived.now).hold("reports", 3)
    assert lived.table.consumers() == []


# -- reading below since -------------------------------------------------------------


@pytest.fixture
def expired() -> Lived:
    """Nine epochs, of which the versions from 5 on can be read, and version 10, the expiry."""
    lived = Lived(9)
    lived.table.expire(retain_versions=4)
    return lived


@pytest.mark.parametrize("is_vacuumed", [False, True], ids=["before", "after"])
def test_from_since_on_all_is_as_it_was_a_vacuum(expired: Lived, is_vacuumed: bool) -> None:
    if is_vacuumed:
        expired.table.vacuum()
    table = expired.reopened()
    for version in range(5, 10):
        assert rows_at(table, version) == expired.expected(version)
    for version in range(6, 10):
        found = changes_of(table, version, version + 1)
        assert {(c.kind, c.key) for c in found} == {
            ("update_preimage", 0),
            ("update_postimage", 0),
            ("insert", version),
        }
    assert table.check().is_sound


@pytest.mark.parametrize("version", [0, 4], ids=lambda v: f"version {v}")
def test_the_state_before_since_is_refused_by_name(expired: Lived, version: int) -> None:
    for read in (expired.table.log.at, expired.table.log.commit, expired.table.snapshot):
        with pytest.raises(DataLossError) as error:
            read(version)
        text = str(error.value)
        assert f"version {version} was asked for" in text
        assert "from version 5 to 10" in text
        assert all(f"({number})" in text for number in (1, 2, 3))


def test_a_time_before_since_is_refused_by_name(expired: Lived) -> None:
    then_ms = expired.table.log.commit(5).timestamp_ms - 1
    with pytest.raises(DataLossError, match=r"the time 2023-.* was asked for"):
        expired.table.log.at_timestamp(then_ms)


@pytest.mark.parametrize("lower", [0, 1, 5], ids=lambda v: f"from {v}")
def test_changes_need_the_state_before_them(expired: Lived, lower: int) -> None:
    with pytest.raises(DataLossError) as error:
        expired.table.changes(lower)
    text = str(error.value)
    assert f"the change feed from version {lower} on was asked for" in text
    assert "from version 6 to 10" in text
    assert all(f"({number})" in text for number in (1, 2, 3))


def test_nothing_is_asked_of_an_empty_range(expired: Lived) -> None:
    assert expired.table.changes(1, 1).num_rows == 0


def test_the_snapshot_of_since_and_the_changes_behind_it_give_the_table(expired: Lived) -> None:
    head = expired.table.log.head()
    rows = rows_at(expired.table, head.since)
    for change in changes_of(expired.table, head.first_changes):
        if change.kind in ("delete", "update_preimage"):
            assert rows.pop(change.key) == change.value
        else:
            rows[change.key] = change.value
    assert rows == rows_at(expired.table)


def test_versions_of_old_are_still_found_by_time() -> None:
    """Tombstones are forgotten by their age, be their versions readable or not."""
    lived = Lived(9)
    times = {v: lived.table.log.commit(v).timestamp_ms for v in range(10)}
    lived.table.expire(retain_versions=0)
    log = lived.reopened().log
    assert {v: log.version_at(time) for v, time in times.items()} == {v: v for v in times}
    assert log.version_at(times[0] - 1) == -1


# -- vacuum: data --------------------------------------------------------------------


def test_a_vacuum_without_an_expiry_removes_nothing() -> None:
    lived = Lived(9)
    before = dict(lived.store.objects)
    done = lived.table.vacuum()
    assert (done.expired, done.orphans, done.log, done.waiting_count) == ((), (), (), 0)
    assert lived.store.objects == before


def test_what_only_expired_versions_name_is_removed() -> None:
    lived = Lived(9)
    lived.table.compact(full=True)
    lived.live(2)
    lived.table.expire(retain_versions=2)
    assert lived.since == 10
    done = lived.table.vacuum()
    # The nine runs that the compaction merged; its own and the two behind it stay.
    assert len(done.expired) == 9
    assert done.bytes == sum(file.bytes for file in done.expired) > 0
    assert len(lived.files("data")) == 3
    assert lived.reopened().check().is_sound


def test_a_file_that_one_readable_version_names_stays() -> None:
    lived = Lived(9)
    lived.table.compact(full=True)
    lived.live(2)
    lived.table.hold("reports", 9)
    lived.table.expire(retain_versions=2)
    assert lived.since == 9
    assert lived.table.vacuum().expired == ()
    assert rows_at(lived.table, 9) == lived.expected(9)


def test_an_overwritten_past_is_removed() -> None:
    lived = Lived(4)
    lived.now.advance(HOUR_S)
    append(lived.table, [Command(7, 7, 7)], overwrite=True)
    lived.now.advance(2 * HOUR_S)
    lived.table.expire(retain_versions=0)
    assert len(lived.table.vacuum().expired) == 4
    assert rows_at(lived.reopened()) == {7: 7}


def test_a_dry_run_removes_nothing_and_says_what_a_run_does() -> None:
    lived = Lived(9)
    lived.table.compact(full=True)
    plan_epoch(lived.table, [[[Command(1, 1, 1)]]])
    lived.live(30)
    lived.table.expire(retain_versions=2)
    lived.now.advance(DAY_S)
    lived.live()
    before = dict(lived.store.objects)
    tried = lived.table.vacuum(dry_run=True)
    assert lived.store.objects == before
    done = lived.table.vacuum()
    assert (tried.expired, tried.orphans, tried.log) == (done.expired, done.orphans, done.log)
    assert len(done.orphans) == 1
    assert tried.is_dry_run


def test_a_vacuum_may_be_repeated() -> None:
    lived = Lived(9)
    lived.table.compact(full=True)
    lived.live(2)
    lived.table.expire(retain_versions=2)
    lived.table.vacuum()
    before = dict(lived.store.objects)
    again = lived.table.vacuum()
    assert (again.expired, again.orphans, again.log) == ((), (), ())
    assert lived.store.objects == before


# -- vacuum: orphans and writers -----------------------------------------------------


def test_what_a_crash_left_behind_is_removed_after_a_day() -> None:
    lived = Lived(2)
    staged = plan_epoch(lived.table, [[[Command(1, 1, 1)]]]).staged
    lived.now.advance(DAY_S - 1)
    lived.live()
    assert lived.table.vacuum().waiting_count == 1
    lived.live(26)
    done = lived.table.vacuum()
    assert [file.path for file in done.orphans] == [f.path for s in staged for f in s.files]
    assert done.waiting_count == 0
    assert lived.reopened().check().is_sound


def test_on_a_table_at_rest_an_orphan_goes_with_the_second_vacuum() -> None:
    """The first makes the version that the second can put its fence at; then there is peace."""
    lived = Lived(2)
    plan_epoch(lived.table, [[[Command(1, 1, 1)]]])
    lived.now.advance(DAY_S + 1)
    assert lived.table.vacuum().waiting_count == 1
    assert lived.version == 3
    assert lived.table.vacuum().waiting_count == 1
    assert lived.version == 3, "one marker is enough"
    lived.now.advance(DAY_S + 1)
    assert len(lived.table.vacuum().orphans) == 1
    assert lived.version == 4
    lived.now.advance(DAY_S + 1)
    lived.table.vacuum()
    assert lived.version == 4


def test_a_file_that_waits_for_its_commit_is_not_touched_within_the_day() -> None:
    lived = Lived(2)
    epoch = plan_epoch(lived.table, [[[Command(1, 1, 99)]]])
    lived.live(23)
    assert lived.table.vacuum().orphans == ()
    assert lived.table.commit(epoch) is not None
    assert lived.reopened().check().is_sound


def test_a_writer_that_is_slower_than_the_grace_is_refused_not_lost() -> None:
    lived = Lived(2)
    epoch = plan_epoch(lived.table, [[[Command(1, 1, 99)]]])
    lived.live(48)
    assert len(lived.table.vacuum().orphans) == 1
    before = rows_at(lived.table)
    with pytest.raises(ContentionError, match=r"planned on version 2 .* Nothing was committed"):
        lived.table.commit(epoch)
    assert rows_at(lived.reopened()) == before
    # Planned anew, as a restarted query does, it goes through.
    assert lived.table.commit(plan_epoch(lived.table, [[[Command(1, 1, 99)]]])) is not None


def test_a_slow_writer_is_safe_as_long_as_nothing_is_removed() -> None:
    lived = Lived(2)
    epoch = plan_epoch(lived.table, [[[Command(1, 1, 99)]]])
    lived.live(48)
    assert lived.table.commit(epoch) is not None
    assert lived.table.vacuum().orphans == ()
    assert lived.reopened().check().is_sound


def test_a_writer_that_commits_while_the_vacuum_looks_keeps_its_files() -> None:
    """It is older than the grace, and wins the race against the fence."""
    lived = Lived(2)
    epoch = plan_epoch(lived.table, [[[Command(1, 1, 99)]]])
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


def test_a_transaction_that_is_in_the_table_is_skipped_before_it_is_refused() -> None:
    lived = Lived(2)
    transaction = Transaction(writer="w", number=1)
    epoch = plan_epoch(lived.table, [[[Command(1, 1, 99)]]], transaction=transaction)
    assert lived.table.commit(epoch) is not None
    lived.live(48)
    lived.table.expire(retain_versions=1)
    lived.table.vacuum()
    assert lived.table.commit(epoch) is None
    assert lived.reopened().check().is_sound


@pytest.mark.slow
def test_merges_that_are_slower_than_the_grace_are_dropped() -> None:
    from spark_upsert.table.compaction import compact_runs

    lived = Lived(9)
    jobs = lived.table.compaction_jobs(full=True)
    merged = [compact_runs(lived.store, lived.table.log.head(), job) for job in jobs]
    lived.live(48)
    assert len(lived.table.vacuum().orphans) == 1
    assert lived.table.commit_compactions(merged) == 0
    assert lived.reopened().check().is_sound


def test_merges_that_are_committed_twice_keep_their_files() -> None:
    from spark_upsert.table.compaction import compact_runs

    lived = Lived(9)
    jobs = lived.table.compaction_jobs(full=True)
    merged = [compact_runs(lived.store, lived.table.log.head(), job) for job in jobs]
    assert lived.table.commit_compactions(merged) == 1
    assert lived.table.commit_compactions(merged) == 0
    assert lived.reopened().check().is_sound


def test_what_an_expired_writer_leaves_is_left_to_the_vacuum() -> None:
    lived = Lived(2)
    epoch = plan_epoch(lived.table, [[[Command(1, 1, 99)]]])
    lived.live(9)
    lived.table.expire(retain_versions=1)
    before = lived.files("data")
    lived.table.discard(epoch.staged)
    assert lived.files("data") == before


# -- vacuum: the log -----------------------------------------------------------------


def shortened(*, scope: Scope = Scope.EPOCH) -> Lived:
    """Return a table whose log begins at a checkpoint."""
    lived = Lived(MANY, scope=scope)
    lived.table.expire(retain_versions=3)
    lived.table.vacuum()
    return lived


def versions_in_log(lived: Lived) -> list[int]:
    return [e.version for e in lived.table.log.stored.entries() if not e.is_checkpoint]


def test_the_log_is_cut_at_the_checkpoint_at_or_below_since() -> None:
    lived = shortened()
    assert lived.since == MANY - 3
    assert versions_in_log(lived) == [0, *range(2 * EVERY, MANY + 2)]
    assert lived.reopened().check().is_sound
    for version in range(lived.since, MANY + 1):
        assert rows_at(lived.reopened(), version) == lived.expected(version)


def test_without_a_checkpoint_at_or_below_since_the_log_stays() -> None:
    lived = Lived(EVERY + 1)
    lived.table.expire(retain_versions=2)
    assert lived.table.vacuum().log == ()


def test_a_checkpoint_that_was_never_written_is_made_before_the_cut() -> None:
    lived = Lived(MANY)
    lived.table.expire(retain_versions=3)
    for path in list(lived.store.objects):
        if "checkpoint" in path:
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


def test_the_log_is_cut_again_and_again() -> None:
    lived = shortened()
    for _ in range(3):
        lived.live(7)
        lived.table.expire(retain_versions=3)
        lived.table.vacuum()
        assert len(versions_in_log(lived)) <= EVERY + 5
    assert lived.reopened().check().is_sound
    assert rows_at(lived.reopened())[0] == lived.version - 1


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda objects, hint: objects.pop(hint), id="absent"),
        pytest.param(lambda objects, hint: objects.update({hint: b"{"}), id="torn"),
        pytest.param(
            lambda objects, hint: objects.update({hint: encode({"version": EVERY})}), id="of old"
        ),
    ],
)
def test_of_a_cut_log_too_the_hint_may_be(damage: Callable[..., Any]) -> None:
    lived = shortened()
    head = lived.table.log.head()
    damage(lived.store.objects, "_log/_last_checkpoint")
    assert lived.reopened().log.head() == head


def test_a_cut_log_without_its_checkpoints_is_an_error_not_an_empty_table() -> None:
    lived = shortened()
    for path in [path for path in lived.store.objects if "checkpoint" in path]:
        lived.store.delete(path)
    with pytest.raises(CorruptionError, match="a checkpoint, as the log was cut"):
        lived.reopened().log.head()


def test_a_table_is_not_made_a_second_time_where_the_log_was_cut() -> None:
    lived = shortened()
    draft = Draft(kind=Kind.CREATE, schema=schema_of(Scope.EPOCH))
    assert Log(lived.store, clock=lived.now).create(draft) is None


# -- sleepers ------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [0, 1, EVERY, 7], ids=lambda v: f"at version {v}")
def test_a_reader_that_slept_through_a_cut_sees_the_newest_version(seen: int) -> None:
    lived = Lived(seen)
    sleeper = lived.reopened()
    assert sleeper.log.head().version == seen
    lived.live(MANY - seen)
    lived.table.expire(retain_versions=3)
    lived.table.vacuum()
    assert sleeper.log.head() == lived.table.log.head()
    assert rows_at(sleeper) == lived.expected(MANY)


@pytest.mark.parametrize("seen", [0, 1, EVERY, 7], ids=lambda v: f"at version {v}")
def test_a_writer_that_slept_through_a_cut_does_not_commit_into_the_past(seen: int) -> None:
    lived = Lived(seen)
    sleeper = lived.reopened()
    sleeper.log.head()
    lived.live(MANY - seen)
    lived.table.expire(retain_versions=3)
    lived.table.vacuum()
    commit = append(sleeper, [Command(1000, 1, 1)])
    assert commit is not None
    assert commit.version == MANY + 2
    assert rows_at(lived.reopened()) == {**lived.expected(MANY), 1000: 1}


class Sleepy(ClockedStore):
    """A store whose next commit is put only after the world has gone on."""

    def __init__(self, lived: Lived, dream: Callable[[], None], *, before: bool) -> None:
        super().__init__(lived.now)
        self.objects, self.times = lived.store.objects, lived.store.times
        self._dream: Callable[[], None] | None = dream
        self._before = before

    def put_if_absent(self, path: str, data: bytes) -> bool:
        dream, self._dream = self._dream, None
        if dream and self._before:
            dream()
        done = super().put_if_absent(path, data)
        if dream and not self._before:
            dream()
        return done


def _dreamt(seen: int, *, before: bool) -> tuple[Lived, Table]:
    """Return a table, and a writer that falls asleep around its put and wakes after a cut."""
    lived = Lived(seen)

    def dream() -> None:
        lived.live(MANY - seen)
        lived.table.expire(retain_versions=3)
        lived.table.vacuum()

    return lived, Table(Sleepy(lived, dream, before=before), clock=lived.now)


@pytest.mark.parametrize("seen", [0, 1, EVERY, 7], ids=lambda v: f"at version {v}")
@pytest.mark.sweep(1)
def test_a_writer_that_sleeps_before_its_put_is_committed_once(seen: int) -> None:
    """Its put hits the name of a removed version. The files are too old by then, so it is told."""
    lived, sleeper = _dreamt(seen, before=True)
    transaction = Transaction(writer="w", number=1)
    with pytest.raises(ContentionError, match="Nothing was committed"):
        append(sleeper, [Command(1000, 1, 1)], transaction=transaction)
    assert rows_at(lived.reopened()) == lived.expected(MANY)
    assert append(sleeper, [Command(1000, 1, 1)], transaction=transaction) is not None
    assert append(sleeper, [Command(1000, 1, 1)], transaction=transaction) is None
    assert rows_at(lived.reopened()) == {**lived.expected(MANY), 1000: 1}
    assert lived.reopened().check().is_sound


def test_a_writer_that_sleeps_behind_its_put_knows_that_it_is_committed() -> None:
    lived, sleeper = _dreamt(7, before=False)
    transaction = Transaction(writer="w", number=1)
    commit = append(sleeper, [Command(1000, 1, 1)], transaction=transaction)
    assert commit is not None
    assert commit.version == 8
    assert rows_at(lived.reopened())[1000] == 1
    assert lived.reopened().check().is_sound


@pytest.mark.parametrize("before", [True, False], ids=["before its put", "behind its put"])
def test_without_a_transaction_a_sleeper_is_told_that_nobody_knows(before: bool) -> None:
    _, sleeper = _dreamt(7, before=before)
    with pytest.raises(ContentionError, match="cannot be told"):
        append(sleeper, [Command(1000, 1, 1)])


def test_a_stray_commit_of_a_sleeper_fools_nobody() -> None:
    """Another sleeper knows the version before it; the next cut removes it."""
    lived = Lived(6)
    other, same = lived.reopened(), lived.reopened()
    other.log.head()
    lived.live()
    same.log.head()
    lived.live(MANY - 7)
    lived.table.expire(retain_versions=3)
    lived.table.vacuum()
    for version in (7, 8):
        record = {**_body_of(lived.store, MANY), "version": version, "token": "stray"}
        lived.store.put_if_absent(commit_path(version), encode(record))
    for sleeper in (other, same, lived.reopened()):
        assert sleeper.log.head().version == MANY + 1
    lived.now.advance(2 * HOUR_S)
    assert set(lived.table.vacuum().log) == {commit_path(7), commit_path(8)}


def _body_of(store: Store, version: int) -> dict[str, Any]:
    return _body(store.read(commit_path(version)))


def test_a_late_checkpoint_of_a_sleeper_fools_nobody() -> None:
    lived = Lived(MANY)
    kept = {p: d for p, d in lived.store.objects.items() if f"{EVERY:020d}" in p}
    lived.table.expire(retain_versions=3)
    lived.table.vacuum()
    path = commit_path(EVERY).replace(".json", ".checkpoint.json")
    lived.store.put(path, kept[path])
    lived.store.put("_log/_last_checkpoint", encode({"version": EVERY}))
    assert lived.reopened().log.head().version == MANY + 1


# -- check ---------------------------------------------------------------------------


def test_a_sound_table_has_no_findings() -> None:
    lived = Lived(9)
    append(lived.table, [Command(3, None, 99)])
    report = lived.table.check()
    assert report.is_sound
    assert (report.since, report.newest, report.file_count) == (0, 10, 10)
    assert report.live_rows == 9


def test_a_check_finds_each_flipped_byte_of_a_run() -> None:
    lived = Lived(1)
    (path,) = lived.files("data")
    intact = lived.store.objects[path]
    for position in range(0, len(intact), 97):
        damaged = bytearray(intact)
        damaged[position] ^= 1
        lived.store.objects[path] = bytes(damaged)
        report = lived.table.check()
        assert not report.is_sound, f"byte {position}"
        assert report.findings[0].place == path
    lived.store.objects[path] = intact
    assert lived.table.check().is_sound


def test_a_check_finds_a_missing_file_and_goes_on() -> None:
    lived = Lived(3)
    paths = sorted(lived.files("data"))
    lived.store.delete(paths[0])
    lived.store.delete(paths[2])
    found = [finding.place for finding in lived.table.check().findings]
    assert {paths[0], paths[2]} <= set(found)


@pytest.mark.parametrize(
    ("field", "place"),
    [("live_rows", "version 2"), ("counters", "version 2")],
)
def test_a_check_finds_numbers_that_do_not_add_up(field: str, place: str) -> None:
    lived = Lived(3)
    record = _body_of(lived.store, 2)
    if field == "live_rows":
        record["live_rows"] += 1
    else:
        record["counters"]["rows"] += 1
    lived.store.put(commit_path(2), encode(record))
    assert place in [finding.place for finding in lived.reopened().check().findings]


def test_a_check_finds_a_snapshot_with_another_number_of_rows() -> None:
    lived = Lived(3)
    for version in (2, 3):
        record = _body_of(lived.store, version)
        record["counters"]["inserts"] += version == 2
        record["counters"]["rows"] += version == 2
        record["live_rows"] += 1
        lived.store.put(commit_path(version), encode(record))
    assert [str(finding) for finding in lived.reopened().check().findings] == [
        "version 3: expected 5 rows, by its live_rows, found 4"
    ]
