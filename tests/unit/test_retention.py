"""Retention: the past goes when nobody needs it, never earlier, and never by accident."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from spark_upsert.errors import (
    CorruptionError,
    DataLossError,
    NewerFormatError,
    OptionError,
)
from spark_upsert.metadata import VIEWS
from spark_upsert.options.read import Metadata
from spark_upsert.store.records import encode
from spark_upsert.table.log import storage
from spark_upsert.table.log.manifest import Draft, Kind
from spark_upsert.table.retention.expiry import bounds, choose_bound
from spark_upsert.table.retention.leases import Lease
from spark_upsert.table.table import Table
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore
from tests.support.lived import DAY_MS, EVERY, HOUR_MS, Lived, body
from tests.support.model import Command, fold
from tests.support.stores import FaultyStore, Steps
from tests.support.tables import append, changes_of, rows_at

LEASE = "_consumers/reports.json"


@pytest.fixture(autouse=True)
def _many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "CHECKPOINT_EVERY", EVERY)


def lease(consumer: str, version: int, *, age_ms: int = 0) -> Lease:
    renewed_ms = 1000 * DAY_MS - age_ms
    return Lease(consumer=consumer, version=version, renewed_ms=renewed_ms, ttl_ms=DAY_MS)


TEN: dict[str, Any] = {"retain_versions": 10}
LEASES = [lease("a", 70), lease("b", 80)]
LAPSED, LAPSING = ([lease("a", 70, age_ms=age_ms)] for age_ms in (DAY_MS, DAY_MS - 1))
CHOICES: dict[str, tuple[dict[str, Any], int, str]] = {
    "a number of versions": (TEN, 90, "10 versions"),
    "at most the last hour goes": ({"retain_versions": 0}, 95, "last 1 hour"),
    "more than there are": ({"retain_versions": 200}, 0, "200 versions"),
    "an age": ({"at_age": (DAY_MS, 60)}, 60, "of 1 day"),
    "the longer of two": ({**TEN, "at_age": (DAY_MS, 60)}, 60, "of 1 day"),
    "an age before the table": ({"at_age": (DAY_MS, -1)}, 0, "of 1 day"),
    "the consumer that is furthest behind": ({**TEN, "leases": LEASES}, 70, "consumer 'a'"),
    "a lapsed lease binds nothing": ({**TEN, "leases": LAPSED}, 90, "10 versions"),
    "a lease binds until its last millisecond": ({**TEN, "leases": LAPSING}, 70, "consumer 'a'"),
}


@pytest.mark.parametrize(("asked", "since", "reason"), CHOICES.values(), ids=CHOICES)
def test_since_is_the_least_of(asked: dict[str, Any], since: int, reason: str) -> None:
    usual: dict[str, Any] = {
        "retain_versions": None,
        "at_age": None,
        "leases": [],
        "at_safety": (HOUR_MS, 95),
    }
    choice = choose_bound(bounds(newest=100, now_ms=1000 * DAY_MS, **{**usual, **asked}))
    assert choice.since == since
    assert reason in choice.reason


def test_expiry_without_a_retention_or_with_a_negative_one_is_refused() -> None:
    lived = Lived(5)
    for retention in ({}, {"retain_versions": -1}, {"retain_ms": -1}):
        with pytest.raises(OptionError, match=next(iter(retention), "retain")):
            lived.table.expire(**retention)
    assert lived.since == 0


def test_expiry_is_a_version_that_changes_no_row() -> None:
    lived = Lived(9)
    before = lived.table.log.head()
    outcome = lived.table.expire(retain_versions=4)
    head = lived.table.log.head()
    assert (outcome.before, outcome.since, outcome.newest) == (0, 5, 9)
    assert (head.version, head.since, head.live_rows) == (10, 5, before.live_rows)
    assert lived.table.log.commit(10).kind is Kind.EXPIRE
    assert rows_at(lived.table) == lived.expected(9)
    assert changes_of(lived.table, 10) == []
    assert not lived.table.expire(retain_versions=8).has_advanced
    assert (lived.version, lived.since) == (10, 5), "an expiry without effect is no version"
    for _ in range(3):
        lived.now.advance(DAY_S)
        lived.table.expire(retain_versions=0)
    assert (lived.version, lived.since) == (11, 10), "a table at rest gets no version by expiries"


def expire(table: Table) -> None:
    done = table.expire(retain_versions=0, safety_ms=0)
    assert 0 < done.since <= table.log.head().since


def read_view(name: Metadata, table: Table) -> None:
    list(VIEWS[name].rows(table))


def read_history(table: Table) -> None:
    versions = [row["version"] for row in VIEWS[Metadata.HISTORY].rows(table)]
    assert versions == list(range(versions[0], versions[-1] + 1))


ACTS: dict[str, Callable[[Table], object]] = {
    "an expiry": expire,
    **{name.value: partial(read_view, name) for name in VIEWS},
    Metadata.HISTORY.value: read_history,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_expiry_at_any_step_does_not_disturb(act: Callable[[Table], object]) -> None:
    for step in range(1, 1_000):
        lived, steps = Lived(4), Steps()

        def overtake(lived: Lived = lived, steps: Steps = steps, step: int = step) -> None:
            if len(steps.names) == step:
                lived.table.compact(full=True)
                lived.sweep()

        steps.begin_anew(watch=overtake)
        act(Table(FaultyStore(lived.store, steps), clock=lived.now))
        if len(steps.names) < step:
            return
    pytest.fail("there is no end to it")


def test_every_time_within_the_retained_age_stays_readable() -> None:
    lived = Lived(9)
    lived.table.expire(retain_ms=int(3.5 * HOUR_MS))
    # 3.5 hours ago, version 5 was half an hour old.
    assert lived.since == 5
    time_ms = int(lived.now() * 1000) - int(3.5 * HOUR_MS)
    assert lived.table.log.at_timestamp(time_ms).version == 5


def test_versions_of_the_last_hour_stay_whatever_is_asked() -> None:
    lived = Lived(3)
    for _ in range(4):
        lived.now.advance(600)
        append(lived.table, [Command(0, 0, 99)])
    outcome = lived.table.expire(retain_versions=0)
    assert (outcome.since, outcome.newest) == (2, 7)
    assert outcome.bound_by == "versions of the last 1 hour"


# -- leases --------------------------------------------------------------------------


def test_expiry_waits_for_a_consumer_until_its_lease_ends_or_is_released() -> None:
    lived = Lived(9)
    lived.table.hold("reports", 3, ttl_ms=2 * HOUR_MS)
    lived.now.advance(2 * HOUR_S - 1)
    outcome = lived.table.expire(retain_versions=0)
    assert (outcome.since, outcome.bound_by) == (3, "the consumer 'reports'")
    lived.table.hold("reports", 6, ttl_ms=2 * HOUR_MS)
    assert lived.table.expire(retain_versions=0).since == 6
    lived.now.advance(2 * HOUR_S)
    lived.table.hold("sums", 8)
    assert lived.table.expire(retain_versions=0).since == 8
    assert lived.table.release("sums")
    assert not lived.table.release("sums")
    assert lived.table.expire(retain_versions=0).since > 8


def test_kept_lease_is_written_if_it_moves_or_has_less_than_half_of_its_time() -> None:
    for version, waited_s, renewed_s in (
        (3, HOUR_S, 0),
        (3, HOUR_S + 1, HOUR_S + 1),
        (4, 1, 1),
        (2, 1, 1),
    ):
        lived = Lived(9)
        began_ms = lived.table.hold("reports", 3, ttl_ms=2 * HOUR_MS).renewed_ms
        lived.now.advance(waited_s)
        lived.table.keep_held("reports", version, ttl_ms=2 * HOUR_MS)
        [lease] = lived.table.consumers()
        assert (lease.version, lease.renewed_ms) == (version, began_ms + 1000 * renewed_s)


def test_kept_lease_is_taken_where_there_is_none_and_not_of_an_expired_version() -> None:
    lived = Lived(9)
    lived.store.put("_consumers/other.json", b"no lease")
    lived.table.keep_held("other", 4)
    lived.table.keep_held("reports", 3)
    assert [lease.version for lease in lived.table.consumers()] == [4, 3]
    record = lived.store.read(LEASE)
    lived.table.release("other")
    lived.table.release("reports")
    lived.table.expire(retain_versions=0)
    lived.store.put(LEASE, record)
    with pytest.raises(DataLossError):
        lived.table.keep_held("reports", 3)
    assert lived.table.consumers() == []


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "is empty": lambda data: b"",
    "is torn": lambda data: data[:-9],
    "is not what its checksum says": lambda data: data.replace(b'"version":3', b'"version":8'),
    "is another JSON": lambda data: b"[]",
    "is of another consumer": lambda data: encode({**body(data), "consumer": "other"}),
    "is of a newer format": lambda data: encode({**body(data), "format": 99}),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_nothing_is_expired_while_a_lease(damage: Callable[[bytes], bytes]) -> None:
    lived = Lived(9)
    lived.table.hold("reports", 3)
    lived.store.objects[LEASE] = damage(lived.store.objects[LEASE])
    error = NewerFormatError if b"99" in lived.store.objects[LEASE] else CorruptionError
    with pytest.raises(error, match=rf"(?s){LEASE}.*Hint"):
        lived.table.expire(retain_versions=0)
    lived.store.delete(LEASE)
    lived.store.put("_consumers/notes.txt", b"hello")
    with pytest.raises(CorruptionError, match=r"notes\.txt"):
        lived.table.expire(retain_versions=0)
    assert lived.since == 0


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a b", "ä", "a" * 101, "-a", "a\n", "a\\b", "a:b"]
)
def test_consumer_must_be_a_file_name_anywhere(name: str) -> None:
    with pytest.raises(OptionError, match="consumerId"):
        Lived(1).table.hold(name, 0)


def test_expiry_that_overtakes_a_lease_is_noticed_by_the_consumer() -> None:
    """The expiry has read the leases before the lease was there, and commits after it is."""
    lived = Lived(9)

    class Overtaken(ClockedStore):
        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            Table(lived.store, clock=lived.now).log.append(
                lambda head: Draft(kind=Kind.EXPIRE, live_rows=head.live_rows, since=6)
            )

    store = Overtaken(lived.now)
    store.objects, store.times = lived.store.objects, lived.store.times
    for table in (Table(store, clock=lived.now), lived.table):
        with pytest.raises(DataLossError, match="version 3, for the consumer 'reports'"):
            table.hold("reports", 3)
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
    assert fold(changes_of(table, table.log.head().first_changes), rows_at(table, 5)) == (
        expired.expected(9)
    )
    assert table.check().is_sound


def test_read_before_since_is_refused_by_name(expired: Lived) -> None:
    table, advice = expired.table, r".*\(1\).*\(2\).*\(3\)"
    for version in (0, 4):
        for read in (table.log.at, table.log.commit, table.snapshot):
            with pytest.raises(
                DataLossError,
                match=f"(?s)version {version} is expired.*from version 5 to 10{advice}",
            ):
                read(version)
    for lower in (0, 1, 5):
        asked = f"the change feed from version {lower} on was asked for"
        with pytest.raises(DataLossError, match=f"(?s){asked}.*from version 6 to 10{advice}"):
            table.changes(lower)
    with pytest.raises(DataLossError, match=r"the time 2023-.* is expired"):
        table.log.at_timestamp(table.log.commit(5).timestamp_ms - 1)
    assert table.changes(1, 1).num_rows == 0, "an empty range asks for nothing"


def test_expired_versions_are_still_found_by_time() -> None:
    """Tombstones are forgotten by their age, be their versions readable or not."""
    lived = Lived(9)
    times = {v: lived.table.log.commit(v).timestamp_ms for v in range(10)}
    lived.table.expire(retain_versions=0)
    log = lived.reopened().log
    assert {v: log.version_at(time) for v, time in times.items()} == {v: v for v in times}
    assert log.version_at(times[0] - 1) == -1
