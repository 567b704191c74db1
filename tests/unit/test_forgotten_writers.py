"""Writers that are long gone are forgotten, and none of their epochs is ever applied twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import CorruptionError, DataLossError
from spark_upsert.store.records import encode
from spark_upsert.table.log import storage
from spark_upsert.table.log.codec import manifest_from_json, manifest_to_json
from spark_upsert.table.log.manifest import Commit, Kind, Manifest, Transaction, apply, fingerprints
from spark_upsert.table.table import Table
from tests.support.clocked import DAY_S, HOUR_S, ClockedStore, Now
from tests.support.model import Command
from tests.support.tables import append, rows_at, schema_of

DAY_MS = int(1000 * DAY_S)


def written_by(*writers: str, days: float = 100.0) -> Table:
    """Return a table in which each writer has committed an epoch, the last one lately."""
    now = Now()
    table = Table(ClockedStore(now), clock=now)
    table.ensure(schema_of(Scope.EPOCH))
    for key, writer in enumerate(writers):
        now.advance(days * DAY_S if writer == writers[-1] else HOUR_S)
        transaction = Transaction(writer=writer, number=4)
        append(table, [Command(key, key, 0)], transaction=transaction)
    return table


def test_a_writer_that_is_long_gone_is_forgotten_and_refused_when_it_comes_back() -> None:
    table = written_by("old", "older", "new")
    table.expire(retain_ms=DAY_MS)
    head = table.log.head()
    assert dict(head.transactions) == {"new": 4}
    assert [head.has_forgotten(name) for name in ("old", "new", "never seen")] == [
        True,
        False,
        False,
    ]
    assert manifest_from_json(json.loads(json.dumps(manifest_to_json(head)))) == head
    rows = rows_at(table)
    for number in (4, 5):
        transaction = Transaction(writer="old", number=number)
        with pytest.raises(DataLossError, match=r"'old' has written.*cannot be told"):
            append(table, [Command(0, 99, 99)], transaction=transaction)
    assert rows_at(table) == rows
    table.expire(retain_ms=DAY_MS)
    assert table.log.head().version == head.version, "there is nobody to forget"


def test_one_that_is_not_long_gone_is_known() -> None:
    table = written_by("old", "new", days=89.0)
    table.expire(retain_ms=DAY_MS)
    transaction = Transaction(writer="old", number=4)
    assert append(table, [Command(0, 99, 99)], transaction=transaction) is None
    assert append(table, [Command(0, 99, 99)], transaction=Transaction(writer="old", number=5))


def test_one_whose_epochs_were_cut_off_the_log_is_known() -> None:
    """The log is cut long before a writer is forgotten, and its times go with it."""
    table = written_by("old", "new", days=3.0)
    for key in range(2 * storage.CHECKPOINT_EVERY):
        append(table, [Command(key, key, 0)])
    assert isinstance(table.store, ClockedStore)
    table.store.now.advance(3 * DAY_S)
    append(table, [Command(0, 0, 0)])
    table.expire(retain_versions=1)
    table.vacuum()
    assert len(table.log.stored.entries()) < storage.CHECKPOINT_EVERY
    append(table, [Command(0, 0, 1)])
    append(table, [Command(0, 0, 2)])
    table = Table(table.store, clock=table.store.now)  # One that remembers no commit.
    table.expire(retain_versions=1)
    head = table.log.head()
    assert not head.has_forgotten("old")
    assert head.transactions["old"] == 4


def expiry(head: Manifest) -> Commit:
    return Commit(
        version=head.version + 1,
        kind=Kind.EXPIRE,
        timestamp_ms=2,
        token="t",
        previous=head.token,
        writers_before_ms=2,
    )


def test_six_thousand_writers_make_a_small_checkpoint() -> None:
    table = written_by("old", "new")
    head = table.log.head()
    names = [f"query:{n:08d}-1234-1234-1234-123456789abc" for n in range(6_000)]
    crowded = Manifest(
        version=head.version,
        timestamp_ms=0,
        schema=head.schema,
        transactions=dict.fromkeys(names, 7),
        written_ms=dict.fromkeys(names, 1),
    )
    after = apply(crowded, expiry(crowded))
    assert len(encode(manifest_to_json(crowded))) > 300_000
    assert len(encode(manifest_to_json(after))) < 100_000
    assert all(after.has_forgotten(name) for name in names)


@pytest.mark.parametrize("value", ["abc", None, 7, ["0" * 16]], ids=repr)
def test_fingerprints_that_are_none_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no fingerprints"):
        fingerprints(value)


def test_an_expiry_forgets_no_writer_of_its_own_version() -> None:
    head = written_by("old", "new").log.head()
    with pytest.raises(CorruptionError, match="frontiers"):
        apply(head, replace(expiry(head), timestamp_ms=1))
