"""Truncates of tables that are parked: they are kept among the rows, and applied with them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.dead_letter import DeadLetterTable
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.replay import replay_dead_letters
from spark_upsert.routed.stage import stage_routed
from tests.support.envelopes import KAFKA
from tests.support.routed_worlds import transaction
from tests.support.stores import MemoryStore

OPTIONS = {
    "path": "/lake/{topic}",
    "envelope": "debezium",
    "valueFormat": "json",
    "valueSchema": "id BIGINT, v STRING",
    "keys": "id",
    "sequenceBy": "source.lsn",
    "onTruncate": "overwrite",
    "onTableError": "park",
}

Event = tuple[str, int | None, int]
"""The topic, the row, None for a truncate, and where it is in the order."""

BAD: Event = ("a", -1, 0)
"""A row that its table does not take."""


def record(event: Event) -> tuple[bytes | None, bytes]:
    _, number, lsn = event
    if number is None:
        return None, json.dumps({"op": "t", "source": {"lsn": lsn}}).encode()
    if event == BAD:
        return b"?", b"?"
    after = {"id": number, "v": str(lsn)}
    value = {"op": "c", "before": None, "after": after, "source": {"lsn": lsn}}
    return json.dumps({"id": number}).encode(), json.dumps(value).encode()


def batches_of(events: Iterable[Event], offset: int) -> list[pa.RecordBatch]:
    rows = [
        {"topic": event[0], "partition": 0, "offset": offset + at, "key": key, "value": value}
        for at, event in enumerate(events)
        for key, value in [record(event)]
    ]
    return [pa.RecordBatch.from_pylist(rows, schema=KAFKA)]


def write(root: MemoryStore, number: int, *tasks: list[Event], plan: Any = None) -> None:
    options, batch = RoutedOptions.parse(OPTIONS), transaction(number)
    plan = plan or plan_routed(options, KAFKA, root=root)
    staged = []
    for task, events in enumerate(tasks):
        batches = batches_of(events, 100 * number + 10 * task)
        staged.append(stage_routed(plan, root, batches, batch, task, threads=1))
    commit_routed(root, options, staged, batch)


def contents(root: MemoryStore, folder: str) -> dict[int, str]:
    columns = table_below(root, folder).snapshot().to_pydict()
    return dict(zip(columns["id"], columns["v"], strict=True))


TASKS: list[list[Event]] = [[("a", None, 5), ("b", 2, 7)], [BAD], [("a", 3, 4), ("a", 4, 6)]]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))], ids=str)
@pytest.mark.sweep(2)
def test_a_truncate_in_one_task_is_parked_where_another_task_fails(order: tuple[int, ...]) -> None:
    root = MemoryStore()
    write(root, 0, [("a", 1, 1), ("a", 2, 9), ("b", 1, 1)])
    write(root, 1, *(TASKS[at] for at in order))
    assert contents(root, "a") == {1: "1", 2: "9"}
    assert contents(root, "b") == {1: "1", 2: "7"}, "the others go on"
    assert set(DeadLetterTable(root).counts()) == {"a"}
    write(root, 2, [("a", 5, 8)])
    head = table_below(root, "a").log.head()
    replay_dead_letters(root, options={"onError": "quarantine"})
    # The truncate takes what is older than it, of any task, and the rest stays.
    assert contents(root, "a") == {2: "9", 4: "6", 5: "8"}
    assert table_below(root, "a").log.head().version <= head.version + 3
    assert not DeadLetterTable(root).counts()


def test_p1_a_truncate_behind_parked_rows_is_applied_with_them() -> None:
    root = MemoryStore()
    write(root, 0, [("a", 1, 1)])
    write(root, 1, [BAD, ("a", 2, 2)])
    write(root, 2, [("a", None, 5)])
    write(root, 3, [("a", 3, 6)])
    assert contents(root, "a") == {1: "1"}
    replay_dead_letters(root, options={"onError": "quarantine"})
    assert contents(root, "a") == {3: "6"}


def test_an_attempt_that_is_repeated_parks_the_truncate_once() -> None:
    root = MemoryStore()
    write(root, 0, [("a", 1, 1)])
    plan = plan_routed(RoutedOptions.parse(OPTIONS), KAFKA, root=root)
    write(root, 1, [BAD], [("a", None, 5)], plan=plan)
    write(root, 1, [("a", None, 5)], [BAD], plan=plan)
    [parked] = DeadLetterTable(root).list_batches("a")
    assert parked.batch == 1
    replay_dead_letters(root, options={"onError": "quarantine"})
    assert contents(root, "a") == {}
