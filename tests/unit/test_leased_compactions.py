"""Compactions shared by processes: a lease per hash range, and no round that all wait for."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.schema import Scope
from spark_upsert.table import maintenance
from spark_upsert.table.compaction import policy
from spark_upsert.table.compaction.policy import FANOUT
from spark_upsert.table.maintenance import RANGE_TTL_MS, RANGES, RangeLease
from spark_upsert.table.retention.lag import reports
from spark_upsert.table.table import Table
from tests.support.model import Command
from tests.support.stores import (
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    forget_runs_and_logs,
)
from tests.support.tables import append, make_table, rows_at, schema_of

NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000


@pytest.fixture(autouse=True)
def _small_jobs() -> Iterator[None]:
    with patch.object(policy, "JOB_BYTES", 12_000):
        yield


def due_table(**properties: str) -> MemoryStore:
    store = MemoryStore()
    table = make_table(store, schema_of(Scope.ARRIVAL), properties=properties)
    for epoch in range(FANOUT):
        append(table, [Command(key, epoch, epoch) for key in range(100)])
    assert len(table.compaction_jobs()) == 4
    return store


def opened(store: object, after_ms: int = 0) -> Table:
    return Table(store, clock=lambda: NOW_S + after_ms / 1000)  # type: ignore[arg-type]


def run_due(table: Table) -> int:
    return table.compact_leased(table.log.head(), table.compaction_jobs())


def held(until_ms: int) -> bytes:
    store = MemoryStore()
    assert RangeLease(hash_range=ALL_HASHES, until_ms=until_ms).try_take(store, NOW_MS)
    return store.objects[RangeLease(hash_range=ALL_HASHES, until_ms=0).path]


@pytest.mark.parametrize(
    ("stored", "is_taken"),
    [
        pytest.param(None, True, id="nobody's range is taken"),
        pytest.param(held(NOW_MS + 1), False, id="another compactor's is not"),
        pytest.param(held(NOW_MS), True, id="a lapsed lease does not count"),
        pytest.param(held(NOW_MS + 2 * RANGE_TTL_MS), True, id="nor one by a clock far ahead"),
        pytest.param(b"?", True, id="nor an unreadable one"),
    ],
)
def test_a_range_is_taken_unless_another_lease_is_live(
    stored: bytes | None, is_taken: bool
) -> None:
    store = MemoryStore()
    lease = RangeLease(hash_range=ALL_HASHES, until_ms=NOW_MS + RANGE_TTL_MS)
    if stored is not None:
        store.objects[lease.path] = stored
    assert lease.try_take(store, NOW_MS) is is_taken


def test_a_leased_range_waits_and_the_others_are_compacted_once() -> None:
    store = due_table()
    table, before = opened(store), rows_at(opened(store))
    jobs = table.compaction_jobs()
    other = RangeLease(hash_range=jobs[0].hash_range, until_ms=NOW_MS + RANGE_TTL_MS)
    assert other.try_take(store, NOW_MS)
    head = table.log.head()
    assert table.compact_leased(head, jobs) == len(jobs) - 1
    assert table.compact_leased(head, jobs) == 0
    assert table.log.head().version == head.version + 1
    assert [path for path in store.objects if path.startswith(RANGES)] == [other.path]
    late = opened(store, RANGE_TTL_MS)
    assert (run_due(late), late.compaction_jobs()) == (1, [])
    assert rows_at(late) == before
    assert table.check().is_sound


@pytest.mark.parametrize("moment", Moment)
def test_after_a_kill_at_any_step_others_do_the_rest(moment: Moment) -> None:
    steps = Steps()
    run_due(opened(FaultyStore(due_table(), steps)))
    for step in range(0, len(steps.names), 5):
        forget_runs_and_logs()
        store = due_table()
        before = rows_at(opened(store))
        with pytest.raises(KilledError):
            run_due(opened(FaultyStore(store, Steps(Fault(step, moment)))))
        forget_runs_and_logs()
        table = opened(store, RANGE_TTL_MS)
        assert table.compact(run=table.compact_leased) in (0, 4)
        assert table.compaction_jobs() == []
        assert rows_at(table) == before


def test_serve_compacts_after_each_new_version() -> None:
    store = due_table()
    table, writer, waits = opened(store), opened(store), iter([0, 1, 8, 8])

    def sleep(_: float) -> None:
        for key in range(next(waits)):
            append(writer, [Command(key, 1, 100 + key)])

    served = maintenance.serve(table.log, lambda: table.compact(run=table.compact_leased), sleep)
    assert next(served) == 4
    assert next(served) >= 1  # After two polls without enough new versions.
    assert list(waits) == [8]
    assert table.compaction_jobs() == []


@pytest.mark.parametrize(("backpressure", "expected"), [("true", ["compaction"]), ("false", [])])
def test_writers_are_slowed_while_runs_pile_up(backpressure: str, expected: list[str]) -> None:
    store = due_table(backpressure=backpressure)
    table = opened(store)
    with patch.object(maintenance, "RUNS_MAX", FANOUT - 1):
        run_due(table)
    found = reports(store, NOW_MS)
    assert [report.consumer for report in found if report.refuses] == expected


def test_a_lease_is_named_by_its_range() -> None:
    lease = RangeLease(hash_range=HashRange(1, 1 << 64), until_ms=5)
    assert lease.path == "_leases/0000000000000001-10000000000000000.json"
    assert RangeLease.from_json(lease.to_json()) == lease
