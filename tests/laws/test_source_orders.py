"""Each documented order of change events makes the table equal to the database.

Events are written as the connectors write them, in their order, with what is special in each: NULL
positions of snapshots, numbers that get another digit, base names, transactions whose positions do
not grow, keys that change, events that come again after a restart. `SOURCE_SEEDS` is the number of
seeds.

Sources of the shapes: the connectors' pages in Debezium's documentation (*Change event values*,
*Incremental snapshots*); for SQL Server also ``SqlServerConnection`` (``__$command_id`` in its
order of changes) and its page on ``event_serial_no``; for MySQL and MariaDB
`integration/test_mysql.py`.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.debezium import bare, image, key
from tests.support.envelopes import KAFKA, assert_sound, plan, rows_of
from tests.support.seeds import seeds

SEEDS = int(os.environ.get("SOURCE_SEEDS", "15"))
KEYS = range(1, 6)
PAGE = Path(__file__).parents[2] / "docs" / "envelopes.md"

Place = dict[str, Any]
"""The fields of a ``source`` block."""


@dataclass
class Topic:
    """The rows of a database, and the events of their changes in the connector's order."""

    dice: random.Random
    rows: dict[int, str] = field(default_factory=dict)
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """The key of each record, and its event."""

    def read(self, number: int, place: Place) -> None:
        """Add the row of a key, as a snapshot reads it."""
        self._add("r", number, self.rows[number], place)

    def change(self, place: Place, taken: set[int]) -> None:
        """Change one row: put, delete, or move it to a key that is free.

        Keys in ``taken`` are left alone, and the changed ones are added.
        """
        free = [number for number in KEYS if number not in taken]
        if not free:
            return
        number, value = self.dice.choice(free), str(self.dice.randrange(10**6))
        taken.add(number)
        targets = [other for other in free if other not in self.rows and other != number]
        if number in self.rows and targets and self.dice.random() < 0.25:
            target = self.dice.choice(targets)
            taken.add(target)
            self._add("d", number, self.rows.pop(number), place)
            self._add("c", target, value, place)
            self.rows[target] = value
        elif number in self.rows and self.dice.random() < 0.3:
            self._add("d", number, self.rows.pop(number), place)
        else:
            self._add("u" if number in self.rows else "c", number, value, place)
            self.rows[number] = value

    def _add(self, op: str, number: int, value: str, place: Place) -> None:
        row = image(number, value)
        before, after = (row, None) if op == "d" else (None, row)
        source = {"ts_ms": 1717000000000, "snapshot": "false", **place}
        event = {"before": before, "after": after, "source": source, "op": op}
        self.events.append((number, event))


def fill(topic: Topic) -> None:
    """Make rows that are in the database before the connector reads its log."""
    for number in topic.dice.sample(KEYS, 3):
        topic.rows[number] = "before"


def postgresql(topic: Topic) -> None:
    """An initial snapshot, or an incremental one, whose rows have no LSN."""
    dice, lsn = topic.dice, topic.dice.randrange(1, 10**6)
    is_incremental = dice.random() < 0.5
    incremental_at = dice.randrange(8)
    for number in () if is_incremental else list(topic.rows):
        topic.read(number, {"lsn": lsn, "snapshot": "true"})
    for step in range(12):
        if is_incremental and step == incremental_at:
            for number in list(topic.rows):
                topic.read(number, {"lsn": None, "snapshot": "incremental"})
        lsn += dice.choice([1, 56, 2**24])
        topic.change({"lsn": lsn, "sequence": f'["{lsn - 1}","{lsn}"]'}, set())


def mysql(topic: Topic) -> None:
    """Statements with several rows, rotations, numbers with seven digits, a second base name."""
    dice = topic.dice
    base, number, pos = "mysql-bin", dice.choice([1, 999_998, 9_999_998]), 4
    place = {"file": f"{base}.{number:06}", "pos": pos, "row": 0}
    for each in list(topic.rows):
        topic.read(each, {**place, "snapshot": "true"})
    for step in range(12):
        pos += dice.randrange(100, 900)
        if step == 8:
            base, number, pos = "binlog", dice.choice([1, 999_999]), 4
        elif dice.random() < 0.3:
            number, pos = number + 1, 4
        taken: set[int] = set()
        for row in range(dice.randint(1, 3)):
            place = {"file": f"{base}.{number:06}", "pos": pos, "row": row}
            topic.change({**place, "gtid": f"uuid:{step}"}, taken)


def sql_server(topic: Topic) -> None:
    """Snapshot rows without a change LSN; transactions read by command, not by change LSN."""
    dice, log = topic.dice, topic.dice.choice([0x0000_0027, 0x0FFF_FFFE])

    def lsn(block: int, slot: int) -> str:
        return f"{log:08x}:{block:08x}:{slot:04x}"

    for number in list(topic.rows):
        place: Place = {"commit_lsn": lsn(1, 1), "change_lsn": None, "event_serial_no": None}
        topic.read(number, {**place, "snapshot": "true"})
    for _ in range(6):
        log += dice.randrange(1, 3)
        for _ in range(dice.randint(1, 4)):
            change = lsn(dice.randrange(1, 9), dice.randrange(1, 9))
            place = {"commit_lsn": lsn(9, 9), "change_lsn": change, "event_serial_no": 1}
            topic.change(place, set())


def any_source(topic: Topic) -> None:
    """Events without a position: Oracle's change numbers, which are text."""
    for number in list(topic.rows):
        topic.read(number, {"scn": "999", "snapshot": "true"})
    for step in range(12):
        topic.change({"scn": str(995 + step), "commit_scn": str(996 + step)}, set())


CONNECTORS: dict[str, tuple[Callable[[Topic], None], dict[str, str]]] = {
    "source.lsn": (postgresql, {}),
    "source.file,source.pos,source.row": (mysql, {"binlogNames": "mysql-bin,binlog"}),
    "source.commit_lsn,offset": (sql_server, {}),
    "partition,offset": (any_source, {}),
}
"""By each order of the page: the connector, and further options of the write."""


def test_each_order_of_the_page_is_tried() -> None:
    table = PAGE.read_text().partition("| source | `sequenceBy` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| [^|]* \| [^|`]*`([^`]+)`", table, re.MULTILINE) == list(CONNECTORS)


def records_of(topic: Topic) -> list[dict[str, Any]]:
    """Return the records of the topic; after a restart some come again, with new offsets."""
    events = list(topic.events)
    if topic.dice.random() < 0.5:
        events += events[topic.dice.randrange(len(events)) :]
    offsets = dict.fromkeys((0, 1), 0)
    records = []
    for number, event in events:
        partition = number % 2
        place = {"topic": "t", "partition": partition, "offset": offsets[partition]}
        records.append({"key": key(number), "value": bare(event), **place})
        offsets[partition] += 1
    return records


def epochs_of(
    records: list[dict[str, Any]], dice: random.Random, *, in_order: bool
) -> Iterator[list[list[dict[str, Any]]]]:
    """Yield micro-batches: of each its tasks. In order, each continues each partition."""
    if not in_order:
        records = dice.sample(records, len(records))
    while records:
        size = dice.randint(1, 8)
        batch, records = records[:size], records[size:]
        tasks: list[list[dict[str, Any]]] = [[], []]
        for record in batch:
            tasks[record["partition"] if in_order else dice.randrange(2)].append(record)
        yield tasks


def apply(path: Path, tasks: list[list[dict[str, Any]]], batch_rows: int, **options: str) -> None:
    usual = {"envelope": "debezium", "valueFormat": "json", "keys": "id", "ties": "fail"}
    planned = plan(path, KAFKA, **usual, valueSchema="id BIGINT, v STRING", **options)
    table = planned.table()
    base = Snapshot(table.store, planned.write.base)
    staged = []
    for task in tasks:
        batches = pa.Table.from_pylist(task, schema=KAFKA).to_batches(max_chunksize=batch_rows)
        commands = map(planned.write.envelope.commands, batches)
        staged.append(stage(base, commands, late_rows=LateRows.FAIL))
    assert table.commit(WriteSet(base=base, staged=tuple(staged), late_rows=LateRows.FAIL))


def require_equal(seed: int, order: str, policy: str, path: Path) -> None:
    """Write the events of a random topic, and compare the table with the database."""
    dice = random.Random(f"{seed} {order}")
    connector, options = CONNECTORS[order]
    topic = Topic(dice)
    fill(topic)
    connector(topic)
    is_usual = order == "partition,offset"
    given = {**options, "onError": policy} | ({} if is_usual else {"sequenceBy": order})
    for tasks in epochs_of(records_of(topic), dice, in_order=is_usual):
        apply(path, tasks, dice.choice([1, 2, 100]), **given)
    assert rows_of(path) == sorted(({"id": k, "v": v} for k, v in topic.rows.items()), key=repr)
    assert_sound(path)


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
@pytest.mark.parametrize("order", CONNECTORS)
@seeds(SEEDS, quick=2)
def test_a_table_equals_the_database_by_each_documented_order(
    seed: int, order: str, policy: str, tmp_path: Path
) -> None:
    require_equal(seed, order, policy, tmp_path / "t")
