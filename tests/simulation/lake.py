"""A small lake: several tables, one query over all of them, on a store that fails.

Every choice comes from one seeded random source: how the query merges, what limits it has, how each
input begins, whether inputs are named or found, who acts next, which I/O step fails. Writers,
compactors and expiries change the tables between any two steps of the query; tables come, and in
some lakes they go; the query's process dies and begins anew from its offsets.

What each table holds is known from a dictionary (`Model`). The promises:

- each change of each input comes exactly once, and those of an input in the order of its versions;
- an exact order is the one that is asked for, and its numbers have no gap;
- a batch keeps its limit, unless one step alone is larger;
- an input that has something is served within as many batches as there are inputs;
- a batch that may be replayed has the same rows again, in an exact order in the same sequence.
"""

from __future__ import annotations

import json
import random
import secrets
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.model.schema import TableSchema
from spark_upsert.options.below import Pattern
from spark_upsert.options.query import Merge, QueryOptions
from spark_upsert.source.bases import FOLDER, Bases
from spark_upsert.source.columns import read_columns
from spark_upsert.source.compact_offsets import CompactOffsets
from spark_upsert.source.discovery import Discovery
from spark_upsert.source.found_inputs import FoundInputs
from spark_upsert.source.input import Input
from spark_upsert.source.inputs import Inputs, NamedInputs
from spark_upsert.source.position import Position
from spark_upsert.source.stream import Stream
from spark_upsert.source.table_input import TableInput
from spark_upsert.table import Table
from tests.support.clocked import ClockedStore, Now
from tests.support.notebooks import few_are_many
from tests.support.stores import (
    BrokenError,
    Fault,
    FaultyStore,
    KilledError,
    Moment,
    Steps,
    StoreBelow,
)
from tests.support.streams import Query, Row, options_of

COLUMNS = pa.schema({"k": pa.int64(), "v": pa.int64()})
WRITTEN = pa.schema([*COLUMNS, pa.field("gone", pa.bool_())])
KEYS = 4
ACTS = 40
KEPT = 3
"""Batches that may be replayed, and the one before them."""

Change = tuple[int, int, int]
"""Key, diff and value."""


@dataclass
class Model:
    """What a table holds, and what each of its versions changed."""

    rows: dict[int, int] = field(default_factory=dict)
    changes: dict[int, list[Change]] = field(default_factory=dict)
    is_gone: bool = False

    def apply(self, version: int, epoch: dict[int, int | None]) -> None:
        found: list[Change] = []
        for key, value in epoch.items():
            before = self.rows.get(key)
            if before != value:
                found += [(key, -1, before)] if before is not None else []
                found += [(key, 1, value)] if value is not None else []
            self.rows.pop(key, None)
            if value is not None:
                self.rows[key] = value
        self.changes[version] = found


class Dice(Steps):
    """Strikes at random steps."""

    def __init__(self, lake: Lake) -> None:
        super().__init__()
        self._lake = lake

    def step(self, name: str):  # type: ignore[no-untyped-def]
        """Run the body as one step that may fail."""
        draw = self._lake.random
        if draw.random() < self._lake.fault_rate:
            kind = draw.choice([KilledError, BrokenError])
            self._fault = Fault(len(self.names), draw.choice(list(Moment)), kind)
        return super().step(name)


@dataclass
class Lake:
    """One life of some tables and of a query over them."""

    seed: int
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw = self.random = random.Random(self.seed)
        self.now = Now(1_000_000_000.0)
        self.objects = ClockedStore(self.now)
        self.fault_rate = 0.0
        self.models: dict[str, Model] = {}
        self.merge, self.seeded = draw.choice(
            [
                (Merge.INTERLEAVE, None),
                (Merge.INTERLEAVE, None),
                (Merge.INTERLEAVE, draw.randrange(5)),
                (Merge.CONCAT, None),
                (Merge.ROUND_ROBIN, None),
            ]
        )
        self.is_exact = self.merge is not Merge.INTERLEAVE or self.seeded is not None
        self.is_found = draw.random() < 0.5
        self.is_lenient = self.is_found and not self.is_exact and draw.random() < 0.4
        self.limit = draw.choice([None, 1, 2, 5])
        self.query_options = QueryOptions(
            rows_max=self.limit,
            parallelism=draw.randint(1, 3),
            merge=self.merge,
            seed=self.seeded,
            merge_columns=("_input", "_merge_seq") if self.is_exact else ("_input",),
        )
        self.begins_with_snapshot = draw.random() < 0.4
        self.starts: dict[str, str | None] = {}
        self.query = Query(self._stream)
        self.expected: list[str] | None = None
        """The inputs of the rows of the batch that is noted, where that is known."""
        self.ahead: set[str] = set()
        """The inputs that had something when it was noted."""
        self.cursor = 0
        self.waits: Counter[str] = Counter()
        self.delivered: dict[str, Counter[tuple[int, Change]]] = {}
        self.numbers = 0

    def __str__(self) -> str:
        way = "found" if self.is_found else "named"
        seeded = "" if self.seeded is None else f" by {self.seeded}"
        lenient = ", lenient" if self.is_lenient else ""
        return f"{self.merge.value}{seeded}, {way}{lenient}, limit {self.limit}"

    # -- the query -------------------------------------------------------------------

    def _stream(self) -> Stream:
        """Return the stream as a fresh process has it."""
        store = FaultyStore(self.objects, Dice(self))
        names = [name for name, model in self.models.items() if not model.is_gone]
        columns = read_columns(self.table(names[0]), self._options(names[0]))

        def make(name: str, *, joins: bool = False) -> Input:
            table = Table(StoreBelow(store, name), clock=self.now)
            return TableInput(self._options(name), columns, table=table)

        inputs: Inputs
        if self.is_found:
            tables = Discovery(store, Pattern.parse("t*"))
            inputs = FoundInputs(tables, make, is_lenient=self.is_lenient)
        else:
            inputs = NamedInputs({name: make(name) for name in names})
        return Stream(
            inputs,
            self.query_options,
            offsets=CompactOffsets(Bases(StoreBelow(store, FOLDER))),
            clock=self.now,
            wall=Now(),  # Nobody grows older, so that all take turns.
        )

    def _options(self, name: str):  # type: ignore[no-untyped-def]
        start = self.starts[name]
        return options_of(
            consumerId="lake",
            columns="k,v",
            failOnDataLoss=str(not self.is_lenient).lower(),
            **({} if start is None else {"startingVersion": start}),
        )

    def pending(self, name: str) -> list[tuple[int, Change]]:
        """Return the changes of an input that no noted and delivered batch has, in order."""
        seen = self.delivered.get(name, Counter())
        return [
            (version, change)
            for version, changes in sorted(self.models[name].changes.items())
            for change in changes
            if (version, change) not in seen
        ]

    def plan(self) -> None:
        ahead = {name: len(self.pending(name)) for name in self.models}
        if not self.query.plan():
            return
        self.trace.append(f"batch {len(self.query.noted) - 2} is noted")
        self.ahead = {name for name, count in ahead.items() if count}
        self.expected = None if self.begins_with_snapshot else self._sequence(ahead)

    def _sequence(self, ahead: dict[str, int]) -> list[str] | None:
        """Return the inputs of the rows of the next batch, row by row, by the slow obvious rule."""
        if self.seeded is not None or not self.is_exact or self.is_found:
            return None
        names, left = sorted(ahead), dict(ahead)
        found: list[str] = []
        most = sum(left.values()) if self.limit is None else self.limit
        while any(left.values()) and len(found) < most:
            if self.merge is Merge.CONCAT:
                name = next(name for name in names if left[name])
            else:
                while not left[names[self.cursor]]:
                    self.cursor = (self.cursor + 1) % len(names)
                name = names[self.cursor]
                self.cursor = (self.cursor + 1) % len(names)
            left[name] -= 1
            found.append(name)
        return found

    def deliver(self) -> None:
        rows = self.query.deliver()
        self.trace.append(f"batch has {len(rows)} rows {sorted(map(_told, rows))}")
        if self.is_exact:
            numbers = [row["_merge_seq"] for row in rows]
            expected = list(range(self.numbers, self.numbers + len(rows)))
            assert numbers == expected, f"an exact order has a gap: {numbers}, not {expected}"
            self.numbers += len(rows)
            assert self.limit is None or len(rows) <= self.limit, "the limit is exceeded"
        if self.expected is not None:
            sequence = [row["_input"] for row in rows]
            assert sequence == self.expected, f"order {sequence}, not {self.expected}"
        self._check_limit(rows)
        for row in rows:
            self._take(row)
        self._check_turns({row["_input"] for row in rows})

    def _check_turns(self, served: set[str]) -> None:
        is_fair = self.merge is not Merge.CONCAT and self.seeded is None
        if not is_fair or self.begins_with_snapshot:
            return
        # Who has moved is served, too: an epoch of rows that were so before shows no change.
        before, after = map(self._positions, self.query.noted[-2:])
        served |= {name for name in after if after[name] != before.get(name)}
        for name in self.ahead:
            self.waits[name] = 0 if name in served else self.waits[name] + 1
            assert self.waits[name] < len(self.models), f"{name} starves"

    def _check_limit(self, rows: list[Row]) -> None:
        if self.limit is None or self.begins_with_snapshot or self.is_exact:
            return
        steps = {(row["_input"], row["_commit_version"]) for row in rows}
        assert len(rows) <= self.limit or len(steps) == 1, f"{len(rows)} rows of {steps}"

    def _take(self, row: Row) -> None:
        name, version = row["_input"], row["_commit_version"]
        change = (row["k"], row["_diff"], row["v"])
        seen = self.delivered.setdefault(name, Counter())
        assert not seen or self.begins_with_snapshot or version >= max(v for v, _ in seen), (
            f"version {version} of {name} comes late"
        )
        seen[version, change] += 1
        assert seen[version, change] == 1, f"{row} comes twice"

    def replay(self) -> None:
        """Read a batch again that may be replayed, as a fresh process."""
        count = len(self.query.batches)
        if not count or self.is_lenient or self.is_expired:
            return
        number = count - 1 - self.random.randrange(min(KEPT, count))
        self.query.restart()
        again, before = self.query.replayed(number), self.query.batches[number]
        if self.is_exact:
            assert again == before, "an exact order is another one when it is replayed"
        else:
            assert sorted(map(_told, again)) == sorted(map(_told, before)), "a batch is another one"
        self.trace.append(f"batch {number} is replayed")

    # -- the tables ------------------------------------------------------------------

    is_expired = False
    """Whether versions were expired that only batches before the lease need."""

    def table(self, name: str) -> Table:
        return Table(StoreBelow(self.objects, name), clock=self.now)

    def create(self) -> None:
        name = f"t{len(self.models)}"
        self.table(name).ensure(TableSchema.of(COLUMNS, keys=["k"]))
        self.models[name] = Model()
        self.starts[name] = None if self.begins_with_snapshot else "earliest"
        self.trace.append(f"{name} is made")
        self.write(name)

    def write(self, name: str | None = None) -> None:
        name = name or self._any()
        epoch: dict[int, int | None] = {
            self.random.randrange(KEYS): self.random.choice([None, 1, 2, 3])
            for _ in range(self.random.randrange(1, 4))
        }
        table = self.table(name)
        rows = {
            "k": list(epoch),
            "v": list(epoch.values()),
            "gone": [value is None for value in epoch.values()],
        }
        written = pa.table(rows, schema=WRITTEN)
        extra = [c for c in table.log.head().schema.columns.names if c not in ("k", "v")]
        for column in extra:
            written = written.append_column(column, pa.nulls(len(written), pa.string()))
        table.append(written, deletes="gone")
        self.models[name].apply(table.log.head().version, epoch)
        self.trace.append(f"{name} gets {epoch}")

    def compact(self) -> None:
        self.table(self._any()).compact(full=self.random.random() < 0.5)

    def expire(self) -> None:
        """Expire all of a table that no lease holds, if the query has begun there."""
        name = self._any()
        if (
            self.is_lenient
            or not self.query.noted
            or name not in self._positions(self.query.noted[-1])
        ):
            return
        self.is_expired = True
        table = self.table(name)
        self.now.advance(2 * 3600.0)
        table.expire(retain_versions=0, safety_ms=0)
        table.vacuum(grace_ms=0)

    def alter(self) -> None:
        table = self.table(self._any())
        schema = table.log.head().schema
        if "note" not in schema.columns.names:
            columns = schema.columns.append(pa.field("note", pa.string()))
            table.alter(replace(schema, columns=columns))

    def drop(self) -> None:
        """Remove a table in a lake where they may go, but for the last one."""
        there = [name for name, model in self.models.items() if not model.is_gone]
        if not self.is_lenient or len(there) < 2:
            return
        name = self.random.choice(there)
        for path in [path for path in self.objects.objects if path.startswith(f"{name}/")]:
            self.objects.delete(path)
        self.models[name].is_gone = True
        self.trace.append(f"{name} is gone")

    def _any(self) -> str:
        return self.random.choice([name for name, m in self.models.items() if not m.is_gone])

    # -- living ----------------------------------------------------------------------

    def act(self) -> None:
        """Do one thing; a fault ends the process of the query."""
        draw = self.random
        acts: list[Callable[[], None]] = [self.write] * 4 + [self.compact, self.expire, self.alter]
        if draw.random() < 0.4:
            draw.choice(acts)()
            return
        if draw.random() < 0.08 and len(self.models) < 5 and (self.is_found or draw.random() < 0.3):
            self.create()
            if not self.is_found:
                self.query.restart()  # Its options name one more.
            return
        if draw.random() < 0.05:
            self.drop()
        self.fault_rate = draw.choice([0.0, 0.0, 0.02])
        try:
            self._go_on()
        except (KilledError, BrokenError) as error:
            self.trace.append(f"the query dies by {type(error).__name__}")
            self.query.restart()
        finally:
            self.fault_rate = 0.0

    def _go_on(self) -> None:
        if self.random.random() < 0.1:
            self.query.restart()
        if self.query.is_pending:
            self.deliver()
        elif self.random.random() < 0.15:
            self.replay()
        else:
            self.plan()

    def run(self) -> None:
        """Live, then catch up and compare each input with its table."""
        with self._conditions():
            for _ in range(self.random.randint(1, 3)):
                self.create()
            for _ in range(ACTS):
                self.act()
            self.query.restart()
            for _ in range(400):
                if self.query.is_pending:
                    self.deliver()
                self.plan()
                if not self.query.is_pending:
                    break
            else:
                raise AssertionError("the query does not catch up")
            for name, model in self.models.items():
                self._check(name, model)

    def _check(self, name: str, model: Model) -> None:
        seen = self.delivered.get(name, Counter())
        if not self.begins_with_snapshot and not model.is_gone:
            due = Counter((v, c) for v, changes in model.changes.items() for c in changes)
            assert seen == due, f"{name} gave {seen}, not {due}"
        rows: dict[int, int] = {}
        for _, (key, diff, value) in sorted(seen, key=lambda each: (each[0], each[1][1])):
            if diff < 0:
                assert rows.pop(key, None) == value, f"a change of {name} retracts no row"
            else:
                assert key not in rows, f"a change of {name} inserts a second row"
                rows[key] = value
        if not model.is_gone:
            assert rows == model.rows, f"{name} folds to {rows}, not {model.rows}"
            assert name in self._positions(self.query.noted[-1]), f"{name} is in no offset"

    def _positions(self, text: str) -> Mapping[str, Position]:
        offsets = CompactOffsets(Bases(StoreBelow(self.objects, FOLDER)))
        return offsets.read(json.loads(text)).positions

    @contextmanager
    def _conditions(self) -> Iterator[None]:
        """Let names be drawn from the seed, and let three inputs be very many."""
        names = random.Random(self.seed)
        with (
            patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128))),
            patch.object(secrets, "randbits", names.getrandbits),
            few_are_many(inputs=1, delta=1, kept=KEPT),
        ):
            yield


def _told(row: Row) -> tuple[str, int, int, int]:
    return row["_input"], row["_commit_version"], row["k"], row["_diff"]


def live(seed: int, *, change: Callable[[Lake], None] | None = None) -> Lake:
    """Live one lake; an error names its seed."""
    lake = Lake(seed)
    if change is not None:
        change(lake)
    try:
        lake.run()
    except (Exception, KilledError) as error:
        error.add_note(f"lake {seed}: {lake}")
        raise
    return lake
