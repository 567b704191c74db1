"""The past of what was parked goes after the retention of the group; what waits never does."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from spark_upsert.errors import DataLossError
from spark_upsert.routed import commit, compaction_queue
from spark_upsert.routed.dead_letter import ParkedTable
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import table_below
from spark_upsert.routed.replay import unpark
from spark_upsert.table.retention import expiry
from spark_upsert.table.table import Table
from tests.support.stores import MemoryStore
from tests.unit.test_misfits import NARROW
from tests.unit.test_parking import counts, rows_in, write

DAY_MS = 24 * 3_600_000
WIDER = {"mergeSchema": "true"}


def narrow(*folders: str) -> MemoryStore:
    """Return a root with tables that do not take the column ``v``."""
    root = MemoryStore()
    for folder in folders:
        table_below(root, folder).ensure(NARROW)
    return root


def give_up_in(root: MemoryStore, days: int, monkeypatch: pytest.MonkeyPatch) -> Table:
    """Give up what is older than 7 days, so many days from now; return what is parked."""
    monkeypatch.setattr(expiry, "require_clock", lambda store, now_ms: None)
    parked = ParkedTable(root)
    now_ms = parked.table.log.now_ms() + days * DAY_MS
    later = Table(parked.table.store, clock=lambda: now_ms / 1000)
    compaction_queue.give_up([later], 7 * DAY_MS)
    return parked.table


def bytes_parked(root: MemoryStore) -> int:
    return sum(len(data) for path, data in root.objects.items() if path.startswith("_parked/data"))


def test_rows_that_wait_stay_however_old_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    root = narrow("a", "b")
    for number in range(3):
        write(root, number, [("a", number, number), ("b", number, number)])
    unpark(root, ["b"], given=WIDER)
    table = give_up_in(root, 400, monkeypatch)
    assert table.log.head().since > 0
    with pytest.raises(DataLossError):
        table.at(0)
    assert counts(root) == {"a": 3}
    unpark(root, given=WIDER)
    assert rows_in(root, "a") == rows_in(root, "b") == {0: 0, 1: 1, 2: 2}


def test_what_is_applied_goes_after_the_retention(monkeypatch: pytest.MonkeyPatch) -> None:
    root = narrow("a")
    write(root, 0, [("a", key, key) for key in range(20_000)])
    unpark(root, given=WIDER)
    held = bytes_parked(root)
    give_up_in(root, 6, monkeypatch)
    assert ParkedTable(root).table.at(1).manifest.live_rows, "it is not yet so long ago"
    give_up_in(root, 400, monkeypatch)
    versions = ParkedTable(root).table.log.head().version
    give_up_in(root, 800, monkeypatch)
    assert ParkedTable(root).table.log.head().version == versions, "a table at rest stays as it is"
    assert bytes_parked(root) < held / 10
    write(root, 1, [("a", 1, 7)])
    assert rows_in(root, "a")[1] == 7


def test_a_batch_gives_up_the_past_of_both(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compaction_queue, "UPKEEP_EVERY", 4)
    given_up: list[tuple[list[str], int]] = []

    def told(tables: tuple[Table, ...], retention_ms: int) -> None:
        given_up.append(([table.store.url for table in tables], retention_ms))

    monkeypatch.setattr(commit, "give_up", told)
    root = MemoryStore()
    for number in range(9):
        write(root, number, [("a", number, number)], groupRetention="2 days")
    both = [GroupTable(root).table.store.url, ParkedTable(root).table.store.url]
    newest = GroupTable(root).table.log.head().version
    assert given_up == [(both, 2 * DAY_MS)] * (newest // 4)
    monkeypatch.setattr(commit, "give_up", compaction_queue.give_up)
    parked = ParkedTable(root)
    parked.ensure()
    root.put("_parked/_consumers/broken.json", b"?")
    with caplog.at_level(logging.WARNING, "spark_upsert"):
        for number in range(9, 14):
            write(root, number, [("a", number, number)])
    assert "a table keeps its past" in caplog.text
    batch = GroupTable(root).at().batch
    assert batch is not None
    assert replace(batch, committed_ms=0).number == 13
