"""Tables below a root, with the record of their whole batches, and with rows that are parked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.dead_letter import DeadLetterTable
from spark_upsert.routed.group import GroupTable, TableGroup
from spark_upsert.routed.plan import plan_routed
from spark_upsert.routed.replay import replay_dead_letters
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import LocalStore
from spark_upsert.table.log.codec import manifest_to_json
from spark_upsert.table.table import Table
from tests.golden.case import Case, Seen, log_text, plain, sorted_rows
from tests.support.envelopes import KAFKA
from tests.support.group_worlds import RoutedBatch
from tests.support.routed_worlds import transaction
from tests.support.streams import Query

GROUP, PARKED = Path("group"), Path("parked")

UNDER_WAY = {"a": {1: 7}, "c": {1: 8}}
"""The last batch of the group: one of its two tables has it."""

OPTIONS = {
    "path": "/lake/{topic}",
    "envelope": "debezium",
    "valueFormat": "json",
    "keys": "id",
    "sequenceBy": "source.lsn",
    "onTruncate": "overwrite",
    "onTableError": "park",
    "commitThreads": "1",
}
WIDE = {"valueSchema": "id BIGINT, v BIGINT"}
NARROW = {**WIDE, "table.a.valueSchema": "id BIGINT, v INT"}
"""Of table ``a`` alone."""

Event = tuple[str, int | None, int, int]
"""The topic, the row, None for a truncate, where it is in the order, and its value."""

HUGE: Event = ("a", 9, 8, 1 << 40)
"""A row that a table does not take as long as its values are narrow."""

BATCHES: list[tuple[dict[str, str], list[list[Event]]]] = [
    (WIDE, [[("a", 1, 1, 1), ("b", 1, 1, 1), ("c", 1, 1, 1), ("a", 2, 9, 2)]]),
    (WIDE, [[("c", None, 5, 0), ("c", 2, 6, 2), ("b", 2, 2, 2)]]),
    (NARROW, [[("a", None, 5, 0), ("b", 2, 7, 3)], [HUGE], [("a", 3, 4, 3), ("a", 4, 6, 4)]]),
    (WIDE, [[("a", 5, 7, 5), ("b", 3, 8, 4)]]),
]
"""Of which the second truncates a table, and the third parks one."""

ONE_MORE: list[list[Event]] = [[("a", 6, 10, 6), ("c", None, 9, 0), ("c", 3, 10, 3)]]

READS: dict[str, dict[str, Any]] = {
    "group": {"mergeColumns": "_input"},
    "group in pieces": {"maxRowsPerTrigger": 1},
}
"""Options of streams over the group, by their names."""


# -- a group -----------------------------------------------------------------------------------


def query(name: str, noted: list[str]) -> Query:
    """Return a query over the group, in a process that has seen nothing."""
    found = RoutedBatch(GROUP).query(**READS[name])
    found.noted = list(noted)
    return found


def build_group() -> Seen:
    """Write three batches, and begin a fourth; streams are at the second."""
    world = RoutedBatch(GROUP)
    world.batch(a={1: 1, 2: 2}, b={1: 3})
    queries = {name: query(name, []) for name in READS}
    for each in queries.values():
        each.drain()
    world.batch(a={2: 4})
    for each in queries.values():
        each.drain()
    world.batch(b={1: 5}, c={1: 6})
    world.begin(UNDER_WAY)
    world.commit_next()
    return {name: each.noted for name, each in queries.items()}


def see_group(kept: Seen) -> Seen:
    """Return what reads of whole batches find, and the batches of streams."""
    world = RoutedBatch(GROUP)
    return {
        "now": world.read(),
        "each by itself": world.read(consistent=None),
        "batches": [world.read(consistent=None, asOfBatch=number) for number in range(3)],
        "streams": {name: _replayed(query(name, noted)) for name, noted in kept.items()},
        "record": record(GROUP),
    }


def _replayed(found: Query) -> list[list[str]]:
    return [
        sorted(json.dumps(row, default=str) for row in found.replayed(number))
        for number in range(len(found.noted) - 1)
    ]


def go_on_with_group(kept: Seen) -> Seen:
    """Make the batch whole that is under way, and write one more; streams run on."""
    world = RoutedBatch(GROUP, number=3)
    world.batch(**UNDER_WAY)
    world.batch(b={1: 9})
    queries = {name: query(name, noted[-1:]) for name, noted in kept.items()}
    for each in queries.values():
        each.drain()
    noted = {name: each.noted for name, each in queries.items()}
    streams = {name: _replayed(each) for name, each in queries.items()}
    batches = [world.read(consistent=None, asOfBatch=number) for number in range(5)]
    return {"batches": batches, "offsets": noted, "streams": streams, "record": record(GROUP, 4)}


# -- parked rows -------------------------------------------------------------------------------


def write(number: int, tasks: list[list[Event]], own: dict[str, str]) -> None:
    """Write a batch, with options of its own."""
    root = LocalStore(str(PARKED))
    options = RoutedOptions.parse({**OPTIONS, **own})
    plan = plan_routed(options, KAFKA, root=root)
    staged = [
        stage_routed(
            plan, root, [rows_of(events, 100 * number + 10 * task)], transaction(number), task,
            threads=1,
        )
        for task, events in enumerate(tasks)
    ]  # fmt: skip
    commit_routed(root, options, staged, transaction(number))


def rows_of(events: list[Event], offset: int) -> pa.RecordBatch:
    """Return events as records of Kafka."""
    rows = []
    for at, (topic, number, lsn, v) in enumerate(events):
        value: dict[str, Any] = {"op": "t", "source": {"lsn": lsn}}
        key = None if number is None else json.dumps({"id": number}).encode()
        if number is not None:
            value |= {"op": "c", "before": None, "after": {"id": number, "v": v}}
        place = {"topic": topic, "partition": 0, "offset": offset + at}
        rows.append({**place, "key": key, "value": json.dumps(value).encode()})
    return pa.RecordBatch.from_pylist(rows, schema=KAFKA)


def see_parked(first: int = 0) -> Seen:
    """Return what is parked, and what the group and its tables are (`record`)."""
    table = DeadLetterTable(LocalStore(str(PARKED)))
    parked = [
        {
            **plain(each),
            "pieces": [[kind.value, rows.to_pylist()] for kind, rows in table.read(each)],
        }
        for each in table.list_batches()
    ]
    return {"parked": parked, "record": record(PARKED, first)}


def go_on_with_parked() -> Seen:
    """Apply what is parked, and write one more batch."""
    before = see_parked()["parked"]
    assert [(each["folder"], each["batch"]) for each in before] == [("a", 2), ("a", 3)]
    done = replay_dead_letters(LocalStore(str(PARKED)), options=WIDE)
    write(len(BATCHES), ONE_MORE, WIDE)
    return {"done": plain(done), **see_parked(5)}


# -- both --------------------------------------------------------------------------------------


def record(root: Path, first: int = 0) -> Seen:
    """Return what a group says from one of its versions on, and what its tables show."""
    table = GroupTable(LocalStore(str(root)))
    groups = (table.at(version) for version in range(first, table.table.log.head().upper))
    return {
        "group": [_said(group) for group in groups],
        "tables": {name: _shown(root / name) for name in _tables(root)},
    }


def _said(group: TableGroup) -> list[dict[str, Any]]:
    batch = [] if group.batch is None else [group.batch.to_row()]
    return [*batch, *(member.to_row() for member in group.members.values())]


def _shown(path: Path) -> Seen:
    """Return what a table shows; rows of the engine's own tables are seen in what they say."""
    table = Table.open(str(path))
    head = table.log.head()
    versions = () if path.name.startswith("_") else range(head.since, head.upper)
    return {
        "manifest": manifest_to_json(head),
        "rows": {str(v): sorted_rows([table.snapshot(v)]) for v in versions},
        "problems": [str(each) for each in table.check().findings],
    }


def _tables(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob("*/_log"))


def _logs() -> dict[str, Path]:
    paths = [*GROUP.glob("*/_log/*.json"), *PARKED.glob("*/_log/*.json")]
    return {str(path): path for path in sorted(paths) if len(path.stem) == 20}


def build() -> Seen:
    """Write both roots."""
    for number, (own, tasks) in enumerate(BATCHES):
        write(number, tasks, own)
    return build_group()


def see(kept: Seen) -> Seen:
    """Return what is seen in both."""
    return {"group": see_group(kept), "parked": see_parked()}


def go_on(kept: Seen) -> Seen:
    """Go on with both; return the texts of the logs as well."""
    before = _logs()
    found = {"group": go_on_with_group(kept), "parked": go_on_with_parked()}
    texts = {name: log_text(path) for name, path in _logs().items() if name not in before}
    return {**found, "log": texts}


CASE = Case("routed", build, see, go_on)
