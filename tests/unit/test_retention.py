"""Retention: the past goes when nobody needs it, never earlier, and never by accident."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_upsert.errors import (
    CorruptionError,
    DataLossError,
    NewerFormatError,
    OptionError,
    VersionNotFoundError,
)
from spark_upsert.metadata import VIEWS
from spark_upsert.options.read import Metadata
from spark_upsert.store.records import encode
from spark_upsert.table.log import storage
from spark_upsert.table.log.manifest import Draft, Kind
from spark_upsert.table.retention.expiry import RetentionBound, bounds, choose_since
from spark_upsert.table.retention.leases import Lease
from spark_upsert.table.table import Table
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore
from tests.support.lived import DAY_MS, EVERY, HOUR_MS, Lived, body
from tests.support.model import Command
from tests.support.stores import FaultyStore, Steps
from tests.support.tables import append, changes_of, rows_at


@pytest.fixture(autouse=True)
def _many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", EVERY)


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
    with pytest.raises(OptionError, match=f"'{name}' expects"):
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


def overtaken(act: Callable[[Table], None], step: int) -> bool:
    """Do something while all but the newest version is expired behind a step; False beyond."""
    lived, steps = Lived(4), Steps()

    def overtake() -> None:
        if len(steps.names) == step:
            lived.table.compact(full=True)
            lived.sweep()

    steps.begin_anew(watch=overtake)
    act(Table(FaultyStore(lived.store, steps), clock=lived.now))
    return len(steps.names) >= step


def test_an_expiry_that_another_one_overtakes_begins_anew() -> None:
    def expire(table: Table) -> None:
        done = table.expire(retain_versions=0, safety_ms=0)
        assert 0 < done.since <= table.log.head().since

    assert any(not overtaken(expire, step) for step in range(1, 1_000))


@pytest.mark.parametrize("name", list(VIEWS))
def test_what_is_told_of_a_table_is_told_beside_an_expiry(name: Metadata) -> None:
    def tell(table: Table) -> None:
        told = list(VIEWS[name].rows(table))
        if name is Metadata.HISTORY:
            versions = [row["version"] for row in told]
            assert versions == list(range(versions[0], versions[-1] + 1))

    assert any(not overtaken(tell, step) for step in range(1, 1_000))


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
    with pytest.raises(VersionNotFoundError, match=f"the newest version is {newest}"):
        hold(lived.table, "sums", newest + 1)
    assert lived.table.consumers() == []
    hold(lived.table, "sums", newest)


@pytest.mark.parametrize(
    ("lower", "upper", "problem"),
    [
        pytest.param(5, None, "'lower' 5 does not exist", id="after the next version"),
        pytest.param(-1, None, "'lower' -1 does not exist", id="before all"),
        pytest.param(0, 5, "'upper' 5 does not exist", id="an end after the next version"),
        pytest.param(
            2, 1, "begin at version 2 and end before version 1", id="an end before the start"
        ),
    ],
)
def test_changes_that_cannot_be_are_refused(lower: int, upper: int | None, problem: str) -> None:
    lived = Lived(3)
    assert lived.table.log.head().upper == 4
    with pytest.raises((OptionError, VersionNotFoundError), match=problem):
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
            lambda data: encode({**body(data), "consumer": "other"}), id="is another consumer's"
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
    lived.store.objects[path] = encode({**body(lived.store.objects[path]), "format": 99})
    with pytest.raises(NewerFormatError, match=r"_consumers/reports\.json"):
        lived.table.expire(retain_versions=0)
    assert lived.since == 0


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
        assert f"version {version} is expired" in text
        assert "from version 5 to 10" in text
        assert all(f"({number})" in text for number in (1, 2, 3))


def test_a_time_before_since_is_refused_by_name(expired: Lived) -> None:
    then_ms = expired.table.log.commit(5).timestamp_ms - 1
    with pytest.raises(DataLossError, match=r"the time 2023-.* is expired"):
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
