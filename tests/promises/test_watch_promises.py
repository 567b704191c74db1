"""What holds of those that watch a table.

Plain functions, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope
from spark_upsert.errors import DataLossError
from spark_upsert.table.table import Table
from spark_upsert.table.watch import Gap, SealedEpoch, Watcher, Watchers
from tests.support.stores import MemoryStore
from tests.support.tables import make_table, schema_of


def new_table() -> Table:
    return make_table(MemoryStore(), schema_of(Scope.ARRIVAL))


def append(table: Table, key: int, value: int = 0) -> None:
    table.upsert(pa.table({"k": [key], "v": [value]}))


def seen_by(watcher: Watcher) -> list[int | Gap]:
    found: list[int | Gap] = []
    while (seen := watcher.take(0)) is not None:
        found.append(seen if isinstance(seen, Gap) else seen.version)
    return found


def test_p1_a_watcher_sees_each_epoch_once_and_in_order_however_slow_it_is() -> None:
    table = new_table()
    other = Table(table.store)
    watchers = Watchers(table.log, table.changes, capacity=2, clock=lambda: 0.0)
    watchers.poll()
    watcher, seen = Watcher(watchers, 1), []
    for number, pause in enumerate([1, 5, 1, 2, 3, 7, 1], start=1):
        for key in range(pause):
            append(other if (number + key) % 3 == 0 else table, key)
        watchers.poll()
        seen += seen_by(watcher)
    assert seen == list(range(1, 21))


def test_p2_the_changes_that_a_watcher_sees_fold_to_the_table() -> None:
    table = new_table()
    watcher, folded = table.watch(), dict[int, int]()
    for value, key in enumerate((1, 2, 1, 3, 2)):
        append(table, key, value)
        append(table, 7, value)
        while isinstance(seen := watcher.take(0), SealedEpoch):
            for change in seen.changes().to_pylist():
                if change["_diff"] > 0:
                    folded[change["k"]] = change["v"]
                else:
                    folded.pop(change["k"], None)
    rows = table.snapshot().to_pylist()
    assert folded == {row["k"]: row["v"] for row in rows}


def test_p5_a_watcher_is_told_of_what_was_lost() -> None:
    table = new_table()
    strict, lenient = table.watch(), table.watch(fail_on_data_loss=False)
    for key in range(4):
        append(table, key)
    table.compact(full=True)
    table.expire(retain_versions=1, safety_ms=0, writers_ms=0)
    since = table.log.head().since
    assert since > 1
    with pytest.raises(DataLossError):
        strict.take(0)
    append(table, 9)
    newest = table.log.head().version
    assert seen_by(lenient) == [Gap(lower=1, upper=since + 1), newest]
