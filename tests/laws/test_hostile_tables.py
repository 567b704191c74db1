"""Hostile names, schemas and values of some tables stop no write that parks, and lose no row."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from spark_upsert.core.path_template import Template
from spark_upsert.errors import DataError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.dead_letter import DeadLetterTable
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.stage import stage_routed
from spark_upsert.table.state.reduce import Counters
from tests.support.envelopes import KAFKA
from tests.support.own_schemas import INLINE, change, change_schema, inline, member, struct
from tests.support.routed_worlds import transaction
from tests.support.seeds import seeds
from tests.support.stores import MemoryStore

GOOD = ("good", "fine")

NAMES = (
    "", ".", "..", "../x", "_group", "_parked", "a/b", "a\\b", "NUL", "\0", "\n", "%00", "=2E",
    "\u00e9", "e\u0301", "\u202e", "\U0001f4a9", "x" * 255, "x" * 256, "\u00e9" * 85,
    "\u00e9" * 86, "Good ", " good", "*", "[a]", "{x}", "~",
)  # fmt: skip
"""Of tables."""

FIELDS = (
    "id", "v", "", "\ud800", "A", "a", "__hash", "_change_type", "a.b", "`", "\0", "key", "value",
    "topic", "offset", "error", "before", "op", "schema", "payload", "x" * 3000,
)  # fmt: skip

TYPES: tuple[Any, ...] = (
    "int8", "int16", "int32", "int64", "float", "double", "boolean", "string", "bytes", "map",
    "array", "struct", "null", "", "INT64", 5, None, [], {},
)  # fmt: skip

MEANINGS = (
    None, "org.apache.kafka.connect.data.Decimal", "org.apache.kafka.connect.data.Timestamp",
    "org.apache.kafka.connect.data.Date", "org.apache.kafka.connect.data.Time",
    "io.debezium.time.MicroTimestamp", "io.debezium.time.NanoTimestamp",
    "io.debezium.time.ZonedTimestamp", "io.debezium.time.Date", "io.debezium.time.Interval",
    "io.debezium.data.Json", "io.debezium.data.VariableScaleDecimal", "", 7,
)  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, 0, -1, 2**31, 2**63, 2**70, 1.5, 1e400, float("nan"), True, "", "x", "AA==", "\ud800",
    "9999-12-31T23:59:59-14:00", "0000-01-01T00:00:00Z", "1e-9999999", [], [None], {}, {"v": 1},
)  # fmt: skip


class Dice(random.Random):
    """Draws what nobody means."""

    def schema(self, depth: int = 0) -> Any:
        """Return something like a schema of Connect."""
        kind = self.choice(TYPES)
        if depth < 4 and self.random() < 0.3:
            kind = self.choice(("struct", "array"))
        found: dict[str, Any] = {"type": kind}
        if kind == "struct" and self.random() < 0.9:
            names = self.sample(FIELDS, self.randrange(5))
            found["fields"] = [{**self.schema(depth + 1), "field": name} for name in names]
        if kind == "array" and self.random() < 0.9:
            found["items"] = self.schema(depth + 1)
        if self.random() < 0.3:
            found["name"] = self.choice(MEANINGS)
        if self.random() < 0.2:
            found["parameters"] = {"scale": self.choice(("2", "-5", "99", "x", 10**12, None))}
        return found

    def value(self, schema: Any) -> Any:
        """Return a value that may be of a schema."""
        if self.random() < 0.2 or not isinstance(schema, dict):
            return self.choice(VALUES)
        if schema.get("type") == "struct":
            return {each["field"]: self.value(each) for each in schema.get("fields", ())}
        if schema.get("type") == "array":
            return [self.value(schema.get("items")) for _ in range(self.randrange(3))]
        return self.choice(VALUES)

    def payload(self) -> bytes | None:
        """Return the bytes of a key or a value."""
        if self.random() < 0.1:
            return self.choice((None, b"", b"\xff", b"null", b"{", b'{"schema":{},"payload":{}}'))
        schema = self.schema()
        if self.random() < 0.7:
            names = self.sample(FIELDS, self.randrange(1, 5))
            schema = struct(*({**self.schema(1), "field": name} for name in names))
        return inline(schema, self.value(schema))

    def event(self) -> bytes | None:
        """Return the bytes of something like a change event."""
        if self.random() < 0.3:
            return self.payload()
        row = struct(*({**self.schema(1), "field": n} for n in self.sample(FIELDS, 3)))
        kind = self.choice(("c", "u", "d", "r", "t", "m", "x"))
        event = change(kind, self.value(row), self.value(row), 1)
        return inline(change_schema(row), event)


def records(dice: Dice, *, is_debezium: bool) -> list[dict[str, Any]]:
    """Return records of good tables and of hostile ones, mixed."""
    rows: list[dict[str, Any]] = []
    key, row = struct(member("id", "int64")), struct(member("id", "int64"), member("v", "int32"))
    for topic in GOOD:
        for number in range(3):
            value = {"id": number, "v": number}
            good = (
                (change_schema(row), change("c", None, value, number))
                if is_debezium
                else (row, value)
            )
            rows.append(
                {"topic": topic, "key": inline(key, {"id": number}), "value": inline(*good)}
            )
    for _ in range(dice.randrange(1, 12)):
        name = dice.choice((*NAMES, None))
        good_key = inline(key, {"id": dice.getrandbits(40)})
        rows.append(
            {
                "topic": name,
                "key": good_key if dice.random() < 0.6 else dice.payload(),
                "value": dice.event() if is_debezium else dice.payload(),
            }
        )
    dice.shuffle(rows)
    return [{**each, "partition": 0, "offset": at} for at, each in enumerate(rows)]


def written(root: MemoryStore, rows: list[dict[str, Any]], number: int, **given: str) -> None:
    options = RoutedOptions.parse({"path": "/lake/{topic}", "onTableError": "park", **given})
    batch, half = transaction(number), len(rows) // 2
    plan = plan_routed(options, KAFKA, root=root)
    staged = [
        stage_routed(
            plan, root, pa.Table.from_pylist(part, KAFKA).to_batches(), batch, at, threads=1
        )
        for at, part in enumerate((rows[:half], rows[half:]))
    ]
    commit_routed(root, options, staged, batch)


@seeds(60, quick=4)
def test_hostile_tables_stop_nothing(seed: int) -> None:
    dice, root = Dice(seed), MemoryStore()
    is_debezium = seed % 2 == 1
    given = {**INLINE, "mergeSchema": "true"}
    if is_debezium:
        given = {
            "envelope": "debezium",
            "valueFormat": "json",
            "valueSchema": "inline",
            "keys": "id",
        }
    if seed % 3 == 0:
        given["onError"] = "quarantine"
    came: dict[str, int] = {}
    for number in range(3):
        rows = records(dice, is_debezium=is_debezium)
        written(root, rows, number, **given)
        for each in rows:
            folder = folder_of(each["topic"])
            came[folder] = came.get(folder, 0) + 1
    for topic in GOOD:
        found = table_below(root, topic).snapshot().sort_by("id").to_pydict()
        assert (found["id"], found["v"]) == ([0, 1, 2], [0, 1, 2])
    parked = DeadLetterTable(root).counts()
    for folder, count in came.items():
        assert parked.get(folder, 0) + taken(root, folder) == count, (seed, folder)


def folder_of(topic: str | None) -> str:
    """Return the folder of a topic, ``""`` if it has none."""
    try:
        return Template.parse("/lake/{topic}").folder([topic]) if topic is not None else ""
    except DataError:
        return ""


def taken(root: MemoryStore, folder: str) -> int:
    """Return how many rows a table has taken, by its own counters."""
    log = table_below(root, folder).log if folder else None
    head = None if log is None else log.try_head()
    if log is None or head is None:
        return 0
    return sum(Counters.from_json(each.counters).rows for each in log.commits(0, head.upper))
