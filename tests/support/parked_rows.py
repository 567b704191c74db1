"""Histories of parked rows, each row with a key of its own: none is lost, whatever is tried.

A batch, an altered table, an unpark with whatever options, a drop: any of them may be killed at any
step. Behind each, a row of a whole batch is in its table, in the table's quarantine, still parked,
or was dropped by name.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from spark_upsert.errors import ContentionError, UpsertFlowError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.commit import commit_routed
from spark_upsert.routed.dead_letter import DeadLetterKind, DeadLetterTable
from spark_upsert.routed.group import GroupTable
from spark_upsert.routed.plan import plan_routed, table_below
from spark_upsert.routed.replay import drop_dead_letters, replay_dead_letters
from spark_upsert.routed.stage import stage_routed
from spark_upsert.store import Store
from tests.support.envelopes import KAFKA
from tests.support.own_schemas import INLINE, inline, member, struct
from tests.support.routed_worlds import transaction
from tests.support.stores import (
    Fault,
    FaultyStore,
    KilledError,
    MemoryStore,
    Moment,
    Steps,
    forget_runs_and_logs,
)

TOPICS = ("a", "b")
STEPS_MAX = 150

KEY = struct(member("id", "int64"))
SCHEMAS: Mapping[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "good": (struct(member("v", "int32")), {"v": 1}),
    "wider": (struct(member("v", "int64")), {"v": 2}),
    "text": (struct(member("v", "string")), {"v": "x"}),
    "more": (struct(member("v", "int32"), member("w", "int32")), {"v": 3, "w": 4}),
    "map": (struct(member("v", "int32"), member("m", "map")), {"v": 5}),
    "bare": (None, {"v": 6}),
}
"""What a row may be: its schema, and its values."""

FORGIVING = {"onError": "quarantine", "mergeSchema": "true"}

OVERRIDES: tuple[Mapping[str, str], ...] = (
    {},
    {"onError": "quarantine"},
    {"MERGESCHEMA": "true"},
    {"merge_schema": "true", "on_error": "quarantine"},
    {"valueSchema": "v INT"},
    {"VALUE_SCHEMA": "v INT", "onError": "quarantine"},
    {"exceptColumnList": "v", "mergeSchema": "true"},
    {"valueSchema": "no schema at all"},
    {"keys": "nope"},
    {"keySchema": "id STRING"},
    {"ties": "no such word"},
    {"sequenceScope": "table"},
    {"valueSchema": ""},
)


@dataclass
class ParkedRows:
    """A root, and where each row of its whole batches is to be found."""

    seed: int
    store: MemoryStore = field(default_factory=MemoryStore)
    sent: dict[str, set[int]] = field(default_factory=lambda: {topic: set() for topic in TOPICS})
    dropped: set[int] = field(default_factory=set)
    came: dict[int, Any] = field(default_factory=dict)
    """The value of each row."""
    is_left_out: bool = False
    """Whether the column was left out by name of something that was parked."""
    kills: int = 0
    parks: int = 0
    applied: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        given = {**INLINE, "path": "/lake/{topic}", "onTableError": "park"}
        self.options = RoutedOptions.parse({name.lower(): text for name, text in given.items()})
        self._next = 0
        self._number = 0

    def play(self, steps: int) -> None:
        """Do whatever may be done, and look behind each; then apply all that is parked."""
        for _ in range(steps):
            self.rng.choice(
                (self.batch, self.batch, self.alter, self.unpark, self.unpark, self.drop)
            )()
            if self.rng.random() < 0.3:
                forget_runs_and_logs()  # A restart.
            self.check()
        while not self.parks:
            self.batch()
        for topic in sorted(DeadLetterTable(self.store).counts()):
            self.finish(topic)
        assert DeadLetterTable(self.store).counts() == {}
        self.check()

    def finish(self, topic: str) -> None:
        """Apply all that is parked for a table."""
        for given in (FORGIVING, {**FORGIVING, "valueSchema": "v INT"}):
            with suppress(UpsertFlowError):
                replay_dead_letters(self.store, [topic], options=given)
                return
        self.is_left_out = True
        given = {**FORGIVING, "exceptColumnList": "v", "valueSchema": "v INT, w INT"}
        replay_dead_letters(self.store, [topic], options=given)

    # -- what is done ----------------------------------------------------------------

    def batch(self) -> None:
        """Write a batch until it is whole."""
        rows = [(self.rng.choice(TOPICS), *self._row()) for _ in range(self.rng.randrange(1, 6))]
        number, self._number = self._number, self._number + 1
        while not GroupTable(self.store).has(transaction(number)):
            tasks: list[list[dict[str, Any]]] = [[], []]
            for topic, key, record in rows:
                self.rng.choice(tasks).append({"topic": topic, **record, "offset": key})
            with suppress(KilledError, ContentionError):
                self._write(self._root(), tasks, number)
        for topic, key, _ in rows:
            self.sent[topic].add(key)
        self.parks += bool(DeadLetterTable(self.store).counts())

    def alter(self) -> None:
        """Give a table a column."""
        table = table_below(self.store, self.rng.choice(TOPICS))
        head = table.log.try_head()
        if head is not None and "w" not in head.schema.columns.names:
            columns = head.schema.columns.append(pa.field("w", pa.int32()))
            table.alter(replace(head.schema, columns=columns))

    def unpark(self) -> None:
        """Try some options, right ones or wrong ones."""
        given = self.rng.choice(OVERRIDES)
        self.is_left_out |= given.get("exceptColumnList") == "v"
        try:
            done = replay_dead_letters(self._root(), options=given)
            self.applied += sum(each.rows for each in done)
        except KilledError:
            pass
        except UpsertFlowError:
            self.refused += 1

    def drop(self) -> None:
        """Forget what is parked for a table, seldom."""
        topic = self.rng.choice(TOPICS)
        waiting = self.parked(topic)
        if not waiting or self.rng.random() < 0.7:
            return
        with suppress(KilledError):
            drop_dead_letters(self._root(), [topic])
        self.dropped |= waiting - self.parked(topic)

    # -- where the rows are ----------------------------------------------------------

    def parked(self, topic: str) -> set[int]:
        """Return the keys of what is parked for a table."""
        table, found = DeadLetterTable(self.store), set[int]()
        for parked in table.list_batches(topic):
            for kind, batch in table.read(parked):
                if kind is DeadLetterKind.COMMANDS:
                    found |= set(batch.column("id").to_pylist())
                else:
                    found |= set(batch.column("offset").to_pylist())
        return found

    def check(self) -> None:
        """Look for each row of each whole batch."""
        for topic, sent in self.sent.items():
            parked = self.parked(topic)
            places = Counter(self.in_table(topic))
            assert not [key for key, count in places.items() if count > 1], self.seed
            found = places.keys() | parked | self.dropped
            assert sent <= found, (self.seed, topic, sent - found)

    def in_table(self, topic: str) -> list[int]:
        """Return the keys of a table's rows, and of those in its quarantine."""
        table = table_below(self.store, topic)
        if table.log.try_head() is None:
            return []
        rows = table.snapshot().to_pylist()
        for row in rows:
            if row.get("v") != self.came[row["id"]]:
                assert (row.get("v"), self.is_left_out) == (None, True), (self.seed, row)
        bad = [row for batch in table.quarantine() for row in batch.to_pylist()]
        keys = [row["id"] for row in bad if row["_raw_key"] is None]
        raw = [json.loads(row["_raw_key"])["payload"]["id"] for row in bad if row["_raw_key"]]
        return [*(row["id"] for row in rows), *keys, *raw]

    # -- how -------------------------------------------------------------------------

    def _row(self) -> tuple[int, dict[str, Any]]:
        key, self._next = self._next, self._next + 1
        kind = self.rng.choice(("good", "good", "good", *SCHEMAS))
        schema, values = SCHEMAS[kind]
        self.came[key] = values["v"]
        value = json.dumps(values).encode() if schema is None else inline(schema, values)
        return key, {"key": inline(KEY, {"id": key}), "value": value, "partition": 0}

    def _root(self) -> Store:
        if self.rng.random() < 0.5:
            return self.store
        self.kills += 1
        fault = Fault(self.rng.randrange(STEPS_MAX), self.rng.choice(list(Moment)), KilledError)
        return FaultyStore(self.store, Steps(fault))

    def _write(self, root: Store, tasks: list[list[dict[str, Any]]], number: int) -> None:
        plan, batch = plan_routed(self.options, KAFKA, root=root), transaction(number)
        staged = [
            stage_routed(
                plan,
                root,
                pa.Table.from_pylist(rows, schema=KAFKA).to_batches(),
                batch,
                index,
                threads=1,
            )
            for index, rows in enumerate(tasks)
        ]
        commit_routed(root, self.options, staged, batch)
