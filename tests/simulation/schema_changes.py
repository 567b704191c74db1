"""Random histories of a table whose schema another process changes between any two steps.

One process reads and writes the table on every path. Between two steps of its storage, another one
adds, drops or widens a column, writes rows of its own, or compacts. A plain model holds each
version: its columns and its rows. Each read is one version of the model, and each write is in it,
whatever the other process did. A path may refuse only columns that its caller named and that are
gone.
"""

from __future__ import annotations

import logging
import random
import struct
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import polars as pl
import pyarrow as pa

from spark_upsert.core.merge_engines import Engine, MergeEngine
from spark_upsert.core.schema import TableSchema
from spark_upsert.delta.log import open_mirror_store
from spark_upsert.delta.publish import Mirror
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.errors import SchemaError, UpsertFlowError
from spark_upsert.feedback import FeedbackUpsert
from spark_upsert.options.read import ReadOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.plan.aggregates import Aggregate, AggregateKind
from spark_upsert.plan.nodes import Group, Scan
from spark_upsert.streams.inputs import batch as batch_input
from spark_upsert.streams.inputs import table as table_input
from spark_upsert.streams.inputs.batch import BatchRead
from spark_upsert.streams.reads.columns import read_columns
from spark_upsert.table.changelog.read import VALID_NAMES, ChangeOptions, ValidBy
from spark_upsert.table.keep_history import keep_history
from spark_upsert.table.log.manifest import Commit, Kind, Transaction
from spark_upsert.table.log.properties import PUBLISH, PUBLISH_FEED
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert.views import plan_builder
from spark_upsert.views import view as view_module
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.plan_builder import Plan, refresh
from spark_upsert.views.view import View
from tests.support.delta import DeltaTable
from tests.support.stores import FaultyStore, MemoryStore, Steps, forget_runs_and_logs
from tests.support.streams import Query, position_in, stream_of
from tests.support.view_queries import Query as ViewQuery

Row = dict[str, Any]

KEYS = 8
"""Keys of the process whose steps are disturbed; the other one has those from `OTHERS` on."""

OTHERS = 100

ACTS = 25

VISITS_MAX = 3
"""How often the other process comes into one act."""

TEXTS = ("a", "b", "c", None)
FLOATS = (0.0, -0.0, 1.5, float("nan"), None)
OLD, NEW = datetime(2001, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
WIDER = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}


@dataclass(frozen=True)
class State:
    """The table at a version."""

    columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    rows: Mapping[int, Row] = field(default_factory=dict)

    def shown(self, names: Sequence[str]) -> list[Any]:
        """Return the rows with some columns, in any order."""
        return sorted((plain(row, names) for row in self.rows.values()), key=repr)


@dataclass
class Span:
    """The versions that were the newest one while something was done."""

    first: int
    last: int = -1

    @property
    def versions(self) -> range:
        return range(self.first, self.last + 1)


def plain(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    """Return values that are equal where no expression tells them apart."""
    return tuple(_bits(row.get(name)) for name in names)


def _bits(value: Any) -> Any:
    return struct.pack("<d", value).hex() if isinstance(value, float) else value


@dataclass(frozen=True)
class Shape:
    """What a table of a history is."""

    keys: tuple[str, ...] = ("id",)
    is_ordered: bool = False
    is_stored: bool = True
    """Whether the order is a column of the table."""
    engine: Engine = Engine.DEDUPLICATE
    properties: Mapping[str, str] = field(default_factory=lambda: {"indexBy": "c"})


SHAPES = {
    "by arrival": Shape(),
    "ordered": Shape(is_ordered=True),
    "ordered by no column": Shape(is_ordered=True, is_stored=False),
    "with a prefix": Shape(keys=("part", "id")),
    "partial updates": Shape(engine=Engine.PARTIAL_UPDATE),
    "partial updates in order": Shape(engine=Engine.PARTIAL_UPDATE, is_ordered=True),
    "with a row TTL": Shape(properties={"indexBy": "c", "rowTtl": "1 hour", "rowTtlBy": "t"}),
    "mirrored": Shape(properties={"indexBy": "c", PUBLISH: "delta", PUBLISH_FEED: "true"}),
}


class History:
    """One table, the process that is disturbed, the other one, and the model of both."""

    def __init__(self, seed: int) -> None:
        self.seed, self.dice = seed, random.Random(seed)
        self.kind = [*SHAPES][seed % len(SHAPES)]
        self.shape = SHAPES[self.kind]
        self.raw, self.steps = MemoryStore(), Steps()
        self.store = FaultyStore(self.raw, self.steps, process=("schemas", seed))
        self.events: dict[int, Callable[[State], State]] = {}
        self.visits: list[str] = []
        self.trace: list[str] = []
        self._number = 0
        self._names = iter(f"a{number}" for number in range(1_000))
        self._states: dict[int, State] = {-1: State()}
        self._inside = False
        self.make()
        self.table = Table(self.store)
        self.kept = Table(FaultyStore(MemoryStore(), self.steps, process=("kept", seed)))
        self.kept_columns = self.dice.choice([None, ["c", "d0", "n"]])
        self.reader, self.viewer, self.grouper = Reader(self), Viewer(self), Grouper(self)

    def make(self) -> None:
        int32, text = pa.int32(), pa.string()
        types = {"id": int32, "c": text, "n": int32, "f": pa.float32(), "d0": text, "d1": text}
        if "part" in self.shape.keys:
            types = {"part": int32, **types}
        if "rowTtlBy" in self.shape.properties:
            types["t"] = pa.timestamp("us", "UTC")
        order = [pa.field("s", int32)] if self.shape.is_ordered else []
        if order and self.shape.is_stored:
            types["s"] = int32
        schema = TableSchema.of(
            pa.schema(types),
            keys=self.shape.keys,
            order=order,
            engine=MergeEngine(self.shape.engine),
            hash_prefix=len(self.shape.keys) - 1,
        )
        self.other = Table(self.raw)
        self.other.ensure(schema, dict(self.shape.properties))
        self.events[0] = lambda _: State(types)

    # -- the model -----------------------------------------------------------------------

    @property
    def head(self) -> int:
        """The newest version."""
        return self.other.log.head().version

    def at(self, version: int) -> State:
        """Return what a version holds."""
        if version not in self._states:
            before = self.at(version - 1)
            event = self.events.get(version)
            self._states[version] = before if event is None else event(before)
        return self._states[version]

    def note(self, version: int, event: Callable[[State], State]) -> None:
        """Note what a version did."""
        assert version not in self.events, f"two things happened at version {version}"
        self.events[version] = event
        self._states = {v: state for v, state in self._states.items() if v < version}

    def note_others(self) -> None:
        """Note the alterations that the process itself has made last, and expiries of rows."""
        log = self.other.log
        for version in range(max(self.events) + 1, log.head().version + 1):
            commit = log.commit(version)
            if any(each.writer.startswith("rowTtl:") for each in commit.transactions):
                self.note(version, self.gone(lambda row: row["t"] == OLD))
            elif commit.kind is Kind.ALTER:
                assert commit.schema is not None
                self.note(version, _altering(commit.schema.columns))

    def put(self, rows: Sequence[Row]) -> Callable[[State], State]:
        """Return what a write of rows does."""

        def act(state: State) -> State:
            found = dict(state.rows)
            for row in rows:
                own = {name: row.get(name) for name in state.columns}
                if self.shape.engine is Engine.PARTIAL_UPDATE:
                    old = found.get(row["id"], {})
                    own = {n: old.get(n) if v is None else v for n, v in own.items()}
                found[row["id"]] = own
            return replace(state, rows=found)

        return act

    @staticmethod
    def gone(is_gone: Callable[[Row], bool]) -> Callable[[State], State]:
        """Return what a delete does."""

        def act(state: State) -> State:
            return replace(state, rows={k: r for k, r in state.rows.items() if not is_gone(r)})

        return act

    # -- the other process ---------------------------------------------------------------

    @contextmanager
    def disturbed(self) -> Iterator[Span]:
        """Let the other process act between some steps; gives the versions of that time."""
        dice = self.dice
        left = [None] * dice.randrange(VISITS_MAX + 1)
        rate = dice.choice([0.02, 0.1, 0.4])

        def watch() -> None:
            if left and not self._inside and dice.random() < rate:
                left.pop()
                self._inside = True
                try:
                    for _ in range(dice.choice([1, 1, 2, 4])):
                        self.visit()
                finally:
                    self._inside = False

        span = Span(self.head)
        self.steps.begin_anew(watch=watch)
        try:
            yield span
        finally:
            self.steps.begin_anew()
            span.last = self.head

    def visit(self) -> None:
        """Let the other process do something."""
        self.note_others()
        if self.dice.random() < 0.3:
            self.other = Table(self.raw)
        table, state = self.other, self.at(self.head)
        droppable = [name for name in state.columns if name[0] in "da"]
        if self.shape.engine is Engine.PARTIAL_UPDATE:
            droppable = []
        narrow = [n for n in (*self.shape.keys, "n", "f", "s") if state.columns.get(n) in WIDER]
        acts = ["add", "write", "compact"]
        acts += ["drop"] * 2 * bool(droppable) + ["widen"] * 2 * bool(narrow)
        act = self.dice.choice(acts)
        self.visits.append(act)
        match act:
            case "add":
                name, type_ = next(self._names), self.dice.choice([pa.string(), pa.int32()])
                self._alter(table, {**state.columns, name: type_})
            case "drop":
                name = self.dice.choice(droppable)
                self.note(table.drop_columns(name).version, _dropping(name))
            case "widen":
                name = self.dice.choice(narrow)
                self._alter(table, {**state.columns, name: WIDER[state.columns[name]]})
            case "write":
                rows = [self.row(state, OTHERS + self.dice.randrange(3))]
                commit = table.upsert(self.arrow(rows, self.columns_of(state)))
                assert commit is not None
                self.note(commit.version, self.put(rows))
            case _:
                table.compact(full=self.dice.random() < 0.5)
        self.trace.append(f"    {act}: version {self.head}")

    def _alter(self, table: Table, types: Mapping[str, pa.DataType]) -> None:
        schema = table.schema.accept(pa.schema(dict(types)), merge=True)
        version = table.alter(schema).version
        self.note(version, lambda state: replace(state, columns=types))

    # -- rows ----------------------------------------------------------------------------

    def columns_of(self, state: State) -> dict[str, pa.DataType]:
        """Return the columns of rows that have all columns of the table."""
        order = self.other.schema.order
        return {**_types(order), **state.columns}

    def row(self, state: State, key: int) -> Row:
        """Return a row of random values."""
        row = {name: self._value(name, type_) for name, type_ in state.columns.items()}
        if key >= OTHERS and "t" in row:
            row["t"] = NEW
        number = self.number()
        own = {"part": key % 2} if "part" in self.shape.keys else {}
        return {**row, "id": key, **own, **({"s": number} if self.shape.is_ordered else {})}

    def number(self) -> int:
        """Return the next number, above all orders that the table has."""
        self._number += 1
        return self._number

    def _value(self, name: str, type_: pa.DataType) -> Any:
        if pa.types.is_string(type_):
            return self.dice.choice(TEXTS if name == "c" else ("x", "y", None))
        if pa.types.is_floating(type_):
            return self.dice.choice(FLOATS)
        if pa.types.is_timestamp(type_):
            return self.dice.choice([OLD, NEW])
        return self.dice.choice([0, 1, 2, *([2**40] if type_ == pa.int64() else [])])

    def arrow(self, rows: Sequence[Row], types: Mapping[str, pa.DataType]) -> pa.Table:
        """Return rows as a table of some columns."""
        return pa.Table.from_pylist(
            [{name: row.get(name) for name in types} for row in rows], schema=pa.schema(dict(types))
        )

    def key_of(self, key: int) -> Any:
        return (key % 2, key) if "part" in self.shape.keys else key

    # -- what is tried -------------------------------------------------------------------

    def live(self, acts: int = ACTS) -> None:
        """Take paths in any order, and compare each with the model."""
        with ExitStack() as stack:
            for module in (view_module, plan_builder, table_input, batch_input):
                stack.enter_context(patch.object(module, "open_store", lambda *_: self.store))
            for _ in range(acts):
                name, act = self.dice.choice(ACTS_OF)
                if self.dice.random() < 0.2:
                    self.table = Table(self.store)
                self.trace.append(f"{name} at version {self.head}")
                act(self)
                self.note_others()
            self.finish()

    def finish(self) -> None:
        """Compare all versions, and all that follows the table."""
        table = Table(self.raw)
        head = table.log.head()
        self.note_others()
        for version in range(head.since, head.version + 1):
            self.require(table.snapshot(version), [version], None)
        assert table.check().is_sound
        self.reader.catch_up()
        self.viewer.catch_up()
        self.keep()
        if PUBLISH in self.shape.properties:
            self.publish()

    def require(
        self,
        found: pa.Table,
        versions: Sequence[int],
        names: Sequence[str] | None,
        is_wanted: Callable[[Row], bool] = lambda row: True,
    ) -> None:
        """Require that rows are those of one of some versions, with its types."""
        shown = found.column_names
        rows = sorted((plain(row, shown) for row in found.to_pylist()), key=repr)
        expected: list[Any] = []
        for state in map(self.at, versions):
            types = [(n, state.columns[n]) for n in names or state.columns if n in state.columns]
            wanted = {key: row for key, row in state.rows.items() if is_wanted(row)}
            expected.append((types, replace(state, rows=wanted).shown(shown)))
        result = [*zip(shown, found.schema.types, strict=True)], rows
        assert result in expected, f"{result} is none of versions {versions}: {expected[0]}"

    def read(
        self,
        read: Callable[[int | None, list[str] | None], pa.Table],
        named: Sequence[str] = (),
        is_wanted: Callable[[Row], bool] = lambda row: True,
    ) -> None:
        """Read a version, the newest or another one, all of its columns or some."""
        since = self.other.log.head().since
        version = self.dice.choice([None, self.dice.randint(since, self.head)])
        with self.disturbed() as span:
            state = self.at(span.first if version is None else version)
            names = self.some_of(state)
            asked = [*named, *(names or ())]
            if any(name not in state.columns for name in named):
                return
            try:
                found = read(version, names)
            except (UpsertFlowError, pl.exceptions.ColumnNotFoundError):
                assert version is None, "an older version is as it was"
                assert self.are_gone(asked), f"none of {asked} is gone"
                return
        versions = [version] if version is not None else span.versions
        self.require(found, versions, names, is_wanted)

    def some_of(self, state: State) -> list[str] | None:
        """Return some columns of a version, or None for all."""
        return self.dice.choice([None, self.dice.sample([*state.columns], 3)])

    def are_gone(self, names: Sequence[str]) -> bool:
        """Return whether another process has dropped one of some columns."""
        return not set(names) <= self.at(self.head).columns.keys()

    def snapshot(self) -> None:
        text, column, is_wanted = self.dice.choice(FILTERS)
        self.read(
            lambda version, names: self.table.snapshot(version, columns=names, filter=text),
            [column],
            is_wanted,
        )

    def pieces(self) -> None:
        text, column, is_wanted = self.dice.choice(FILTERS)

        def read(version: int | None, names: list[str] | None) -> pa.Table:
            pieces = self.table.pieces(3, columns=names, filter=text, version=version)
            return pa.concat_tables([piece.scan().read_all() for piece in pieces])

        self.read(read, [column], is_wanted)

    def rows_having(self) -> None:
        column = self.dice.choice(["c", "c", "n", "d0"])
        values = self.dice.choice([["a"], ["a", "x"]]) if column != "n" else [1, 0]
        self.read(
            lambda version, names: self.table.rows_having(
                column, values, columns=names, version=version
            ),
            [column],
            lambda row: row.get(column) in values,
        )

    def get(self) -> None:
        keys = self.dice.sample(range(KEYS), 3)
        self.read(
            lambda version, names: self.table.get(
                [self.key_of(key) for key in keys], columns=names, version=version
            ),
            (),
            lambda row: row["id"] in keys,
        )

    def frame(self) -> None:
        def read(version: int | None, names: list[str] | None) -> pa.Table:
            frame = self.table.to_polars(version=version).filter(pl.col("c") == "a")
            rows = (frame if names is None else frame.select(names)).collect().to_arrow()
            fields = [
                each.with_type(pa.string()) if pa.types.is_large_string(each.type) else each
                for each in rows.schema
            ]
            return rows.cast(pa.schema(fields))

        self.read(read, ["c"], lambda row: row["c"] == "a")

    def by_prefix(self) -> None:
        if "part" in self.shape.keys:
            self.read(
                lambda version, names: self.table.having_prefix(
                    pa.table({"part": [1]}), columns=names, version=version
                ),
                (),
                lambda row: row["part"] == 1,
            )

    def changes(self) -> None:
        log = self.other.log.head()
        lower = self.dice.randint(log.first_changes, log.upper)
        upper = self.dice.choice([None, self.dice.randint(lower, log.upper)])
        with self.disturbed() as span:
            names = self.some_of(self.at(span.first))
            try:
                reader = self.read_changes(lower, upper, names)
                found = [row for batch in reader for row in batch.to_pylist()]
            except UpsertFlowError:
                assert self.are_gone(names or ()), f"none of {names} is gone"
                return
        rows = sorted(map(_change, found), key=repr)
        expected = [
            self.changed(self.at(version), lower, version + 1 if upper is None else upper, names)
            for version in span.versions
        ]
        assert rows in expected, f"{rows} are no changes of {lower} to {upper}: {expected[0]}"

    def read_changes(
        self, lower: int, upper: int | None, names: list[str] | None
    ) -> Iterable[pa.RecordBatch]:
        """Return the changes of some versions, read by one of two ways."""
        if names is None or upper is None or self.dice.random() < 0.5:
            return self.table.scan_changes(lower, upper, columns=names)
        return self.table.iter_changes(lower, upper, ChangeOptions(columns=tuple(names)))

    def changed(
        self, shown: State, lower: int, upper: int, names: list[str] | None
    ) -> list[tuple[Any, ...]]:
        """Return the changes between two versions in the columns of one."""
        found = []
        own = [*shown.columns]
        for version in range(lower, upper):
            sides = [self.at(version - 1).rows, self.at(version).rows]
            for key in sides[0].keys() | sides[1].keys():
                old, new = (side.get(key) for side in sides)
                if old is not None and new is not None and plain(old, own) == plain(new, own):
                    continue
                for row, diff in ((old, -1), (new, 1)):
                    if row is not None:
                        kept = {name: row.get(name) for name in names or own}
                        found.append(_change({**kept, "_commit_version": version, "_diff": diff}))
        return sorted(found, key=repr)

    def history(self) -> None:
        head = Table(self.raw).log.head()
        lower = self.dice.randint(head.since, head.version)
        with self.disturbed() as span:
            names = self.some_of(self.at(span.first))
            try:
                reader = self.table.history(lower, columns=names, by=ValidBy.VERSION)
                found = reader.read_all()
            except UpsertFlowError:
                assert self.are_gone(names or ()), f"none of {names} is gone"
                return
        shown = [name for name in found.column_names if name not in VALID_NAMES]
        rows = found.to_pylist()
        tried = [
            self.differing(rows, range(lower, last + 1), shown)
            for last in span.versions
            if names is not None or [*self.at(last).columns] == shown
        ]
        assert None in tried, f"no history from {lower} on: {tried}"

    def differing(
        self, rows: Sequence[Row], versions: Sequence[int], shown: Sequence[str]
    ) -> str | None:
        """Return at which version rows with their validity are others than the table had."""
        begins, ends, _ = VALID_NAMES
        for version in versions:
            state = self.at(version)
            names = [name for name in shown if name in state.columns]
            valid = [
                row
                for row in rows
                if row[begins] <= version and (row[ends] is None or version < row[ends])
            ]
            found = sorted((plain(row, names) for row in valid), key=repr)
            if found != state.shown(names):
                return f"version {version} of {names}: {found}, not {state.shown(names)}"
        return None

    def keep(self) -> None:
        """Take a step of the kept history, and compare all that it holds."""
        is_first = self.kept.log.try_head() is None
        with self.disturbed() as span:
            named = self.kept_columns
            try:
                keep_history(self.table, self.kept, columns=named, by=ValidBy.VERSION)
            except SchemaError:
                since = self.other.log.head().since
                ever = {n for v in range(since, span.first + 1) for n in self.at(v).columns}
                assert is_first, "a history is kept of columns that are gone"
                assert not set(named or ()) <= ever, f"{named} are among {ever}"
                return
        rows = self.kept.snapshot().to_pylist()
        first = min([row[VALID_NAMES[0]] for row in rows], default=None)
        if first is None:
            return
        shown = [name for name in self.kept.schema.columns.names if name in rows[0]]
        shown = [name for name in shown if name not in (*VALID_NAMES, "from_version")]
        if self.kept_columns is None:
            assert set(self.at(span.first).columns) <= set(shown)
        tried = [self.differing(rows, range(first, last + 1), shown) for last in span.versions]
        assert None in tried, f"the kept history is another one: {tried}"

    def may_be_refused(self, names: Iterable[str], span: Span) -> bool:
        """Return whether rows had a column that was dropped, or lacked one that was added."""
        given = set(names) - {"s"}
        columns = [set(self.at(v).columns) for v in range(span.first, self.head + 1)]
        return any(not given <= own or own - given - {"s"} for own in columns)

    def append(self) -> None:
        """Write rows that have all columns of the table."""
        with self.disturbed() as span:
            state = self.at(span.first)
            rows = [self.row(state, key) for key in self.some_keys()]
            types = self.columns_of(state)
            try:
                commit = self.table.upsert(self.arrow(rows, types))
            except SchemaError as error:
                message = str(error)
                assert self.may_be_refused(types, span), message
                return
        self.note_write(commit, rows)

    def merge(self) -> None:
        """Write rows that lack columns, and that have others."""
        with self.disturbed() as span:
            state = self.at(span.first)
            rows = [self.row(state, key) for key in self.some_keys()]
            needed = {*self.shape.keys, *(["s"] if self.shape.is_ordered else [])}
            types = {
                name: type_
                for name, type_ in self.columns_of(state).items()
                if name in needed or self.dice.random() < 0.7
            }
            if self.dice.random() < 0.3:
                name = next(self._names)
                types[name] = pa.string()
                rows = [{**row, name: "z"} for row in rows]
            if types.get("n") == pa.int32() and self.dice.random() < 0.3:
                types["n"] = pa.int64()
                rows = [{**row, "n": 2**41} for row in rows]
            leap = 0
            if types.get("s") == pa.int32() and self.dice.random() < 0.3:
                types["s"] = pa.int64()
                rows = [{**row, "s": 2**40 + self.number()} for row in rows]
                leap = 2**40
            given = [{name: row.get(name) for name in types} for row in rows]
            try:
                commit = self.table.upsert(self.arrow(given, types), merge_schema=True)
            except SchemaError as error:
                message = str(error)
                assert "was dropped" in message, message
                assert any(f"'{name}'" in message for name in types), message
                self.note_others()
                return
        self._number += leap
        self.note_others()
        self.note_write(commit, given)

    def note_write(self, commit: Commit | None, rows: Sequence[Row]) -> None:
        assert commit is not None
        self.note(commit.version, self.put(rows))

    def some_keys(self) -> list[int]:
        return self.dice.sample(range(KEYS), self.dice.randint(1, 3))

    def delete(self) -> None:
        """Delete by keys, of which some have no row."""
        keys, number = self.some_keys(), self.number()
        transaction = self.dice.choice([None, Transaction(writer="deletes", number=number)])
        with self.disturbed() as span:
            given = [self.key_of(key) for key in keys]
            commit = self.table.delete(given, transaction=transaction)
        has_rows = bool(set(keys) & self.at(span.first).rows.keys())
        assert (commit is None) == (not has_rows and transaction is None)
        if commit is not None:
            self.note(commit.version, self.gone(lambda row: row["id"] in keys))

    def delete_by_filter(self) -> None:
        with self.disturbed():
            commit = self.table.delete(filter=f"c = 'a' AND id < {OTHERS}")
        if commit is not None:
            gone = self.gone(lambda row: row["c"] == "a" and row["id"] < OTHERS)
            self.note(commit.version, gone)

    def sink(self) -> None:
        """Write rows by options, as Spark does."""
        merges = self.dice.random() < 0.6
        given = {"keys": ",".join(self.shape.keys), "mergeSchema": f"{merges}".lower()}
        if not self.shape.is_stored:
            given["exceptColumnList"] = "s"
        options = WriteOptions.parse({"path": "/table", **given})
        with self.disturbed() as span:
            state = self.at(span.first)
            rows = [self.row(state, key) for key in self.some_keys()]
            types = self.columns_of(state)
            if merges:
                types = {n: t for n, t in types.items() if n not in ("d0", "f")}
                types[next(self._names)] = pa.string()
            rows = [{name: row.get(name) for name in types} for row in rows]
            try:
                commit = self.written(options, self.arrow(rows, types))
            except SchemaError as error:
                message = str(error)
                self.note_others()
                given_names = [name for name in types if name != "s"]
                refused = self.are_gone(given_names) if merges else self.may_be_refused(types, span)
                assert refused, message
                return
        self.note_others()
        self.note_write(commit, rows)

    def written(self, options: WriteOptions, rows: pa.Table) -> Commit | None:
        """Return the commit of rows that are written by options, in one task."""
        table = Table(self.store)
        plan = plan_table_write(table, options, rows.schema)
        base = Snapshot(self.store, plan.base)
        staged = stage(base, plan.commands(base, rows.to_batches()))
        return table.commit(WriteSet(base=base, staged=(staged,)))

    def sink_deletes(self) -> None:
        """Write keys by options, of which the rows go."""
        keys = self.some_keys()
        options = WriteOptions.parse({"path": "/table", "operation": "delete"})
        types = {name: self.at(self.head).columns[name] for name in self.shape.keys}
        rows = [{"id": key, "part": key % 2} for key in keys]
        with self.disturbed():
            commit = self.written(options, self.arrow(rows, types))
        assert commit is not None
        self.note(commit.version, self.gone(lambda row: row["id"] in keys))

    def feedback(self) -> None:
        """Write rows by an operator that keeps what it writes apart until it is due."""
        with self.disturbed() as span:
            state = self.at(span.first)
            rows = [self.row(state, key) for key in self.some_keys()]
            types = self.columns_of(state)
            [batch] = self.arrow(rows, types).to_batches()
            with FeedbackUpsert(self.table, f"source {self.number()}") as loop:
                try:
                    loop.ingest(batch, 0)
                except SchemaError as error:
                    message = str(error)
                    assert self.may_be_refused(types, span), message
                    return
                loop.advance(1)
                [commit] = loop.run()
        self.note_write(commit, rows)

    def batch_read(self) -> None:
        """Plan the columns of a read, and the read itself later, as Spark does."""
        head = self.other.log.head()
        version = self.dice.randint(head.since, head.version)
        name = self.dice.choice([*BATCH_READS])
        given = {key: text.format(version) for key, text in BATCH_READS[name].items()}
        options = ReadOptions.parse({"path": "/table", **given})
        if name in ("changes", "exact") and version < head.first_changes:
            return
        with self.disturbed() as span:
            columns = read_columns(Table(self.store).log, options)
            read = BatchRead(options, columns)
            try:
                if name == "exact":
                    splits = [step.split() for step in read.steps()]
                else:
                    splits = [*read.splits()]
                batches = [b for each in splits if each is not None for b in read.read(each)]
            except SchemaError as error:
                message = str(error)
                assert "versionAsOf" not in given, message
                schemas = [self.at(v).columns for v in range(span.first, self.head + 1)]
                assert any(columns != schemas[0] for columns in schemas), message
                return
        found = pa.Table.from_batches(batches, schema=columns)
        versions = span.versions
        if "versionAsOf" in given:
            self.require(found, [version], None, BATCH_FILTERS.get(name, lambda row: True))
        elif name == "newest":
            self.require(found, versions, columns.names)
        elif name == "history":
            names = [each for each in columns.names if each not in VALID_NAMES]
            rows = found.to_pylist()
            tried = [self.differing(rows, range(version, v + 1), names) for v in versions]
            assert None in tried, f"no history from {version} on: {tried}"
        else:
            rows = sorted(map(_change, found.to_pylist()), key=repr)
            names = [each for each in columns.names if each[0] != "_"]
            expected = [self.changed(self.at(v), version, v + 1, names) for v in versions]
            assert rows in expected, f"{rows} are no changes from {version} on"

    def alter(self) -> None:
        """Add a column, or drop one, while the other process alters the table, too."""
        name = self.dice.choice(["d0", next(self._names)])
        with self.disturbed():
            if name != "d0":
                own = self.table.schema
                wanted = own.accept(pa.schema({**_types(own.columns), name: INT32}), merge=True)
                self.table.alter(wanted, upon=own)
            elif self.shape.engine is Engine.DEDUPLICATE:
                try:
                    self.table.drop_columns(name)
                except SchemaError:
                    assert self.are_gone([name])
        self.note_others()

    def expire_rows(self) -> None:
        with self.disturbed():
            self.table.expire_rows()
        self.note_others()

    def check(self) -> None:
        with self.disturbed():
            report = self.table.check()
        assert report.is_sound, report.findings

    def compact(self) -> None:
        with self.disturbed():
            self.table.compact(full=self.dice.random() < 0.5)

    def index(self) -> None:
        with self.disturbed():
            self.table.build_indexes(rebuild=self.dice.random() < 0.5)

    def expire(self) -> None:
        with self.disturbed():
            self.table.expire(retain_versions=self.dice.randint(2, 20), safety_ms=0)

    def publish(self) -> None:
        if PUBLISH not in self.shape.properties:
            return
        with self.disturbed():
            shown = self.table.publish().shown
        target = open_mirror_store(self.raw, None)
        rows = DeltaTable(target).rows().to_pylist()
        state = self.at(shown)
        found = sorted((plain(row, [*state.columns]) for row in rows), key=repr)
        if Mirror(Table(self.raw).log, self.raw, target).shown() == shown:
            assert found == state.shown([*state.columns]), f"the mirror at {shown} shows {found}"

    def follow(self) -> None:
        with self.disturbed():
            self.reader.step()

    def group(self) -> None:
        with self.disturbed() as span:
            self.grouper.step(span.first)

    def view(self) -> None:
        with self.disturbed():
            self.viewer.step()


def _altering(columns: pa.Schema) -> Callable[[State], State]:
    def act(state: State) -> State:
        types = {each.name: each.type for each in columns}
        rows = {k: {n: r.get(n) for n in types} for k, r in state.rows.items()}
        return State(types, rows)

    return act


def _dropping(name: str) -> Callable[[State], State]:
    def act(state: State) -> State:
        types = {n: t for n, t in state.columns.items() if n != name}
        rows = {k: {n: v for n, v in r.items() if n != name} for k, r in state.rows.items()}
        return State(types, rows)

    return act


def _change(row: Row) -> tuple[Any, ...]:
    names = sorted(n for n in row if n not in ("_change_type", "_commit_timestamp"))
    return tuple((name, _bits(row[name])) for name in names)


class Reader:
    """A streaming query over the table. It restarts when an error reports changed columns."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.query = Query(
            lambda: stream_of(Table(history.store), consumerId="reader", maxEpochsPerTrigger=3)
        )
        self.rows: dict[int, Row] = {}
        self.common: set[str] | None = None
        """The columns that all of its processes have read."""

    def step(self) -> bool:
        query, history = self.query, self.history
        try:
            if not (query.is_pending or query.plan()):
                return False
            batch = query.deliver()
        except SchemaError:
            query.restart()
            return True
        names = {name for row in batch for name in row if name[0] != "_"}
        if names:
            self.common = names if self.common is None else self.common & names
        own = sorted(self.common or ())
        for row in sorted(batch, key=lambda r: (r["_commit_version"], r["_diff"])):
            if row["_diff"] < 0:
                old = self.rows.pop(row["id"])
                assert plain(old, own) == plain(row, own), f"{row} takes back {old}"
            else:
                assert row["id"] not in self.rows, f"{row} is a second row of its key"
                self.rows[row["id"]] = row
        at = position_in(query.noted[-1])
        if not at.is_in_snapshot:
            state = history.at(at.upper - 1)
            own = [name for name in own if name in state.columns]
            found = sorted((plain(row, own) for row in self.rows.values()), key=repr)
            assert found == state.shown(own), f"followed to {found} at {at.upper - 1}"
        return True

    def catch_up(self) -> None:
        while self.step():
            pass


class Viewer:
    """A query over a view of two columns. It begins with a new plan when an error asks for one."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.query: ViewQuery | None = None
        self.rows: dict[int, Row] = {}

    def _started(self) -> ViewQuery:
        """Return the query, with a plan of the newest columns if there is none."""
        if self.query is None:
            schema = self.history.other.schema
            scan = Scan.of("table", schema.columns, schema.keys)
            plan = Plan(scan).select(*schema.keys, "c")
            self.query, self.rows = ViewQuery(plan.node, consumerId="viewer"), {}
        return self.query

    def step(self) -> bool:
        try:
            query = self._started()
            batch = query.batch()
        except SchemaError as error:
            message = str(error)
            assert "plan anew" in message, message
            self.query = None
            return True
        if batch is None:
            return False
        for row in sorted(batch, key=lambda r: (r["_commit_version"], r["_diff"])):
            if row["_diff"] < 0:
                assert self.rows.pop(row["id"])["c"] == row["c"]
            else:
                self.rows[row["id"]] = row
        position = query.position()
        if position is not None:
            [version] = position.values()
            state = self.history.at(version)
            found = sorted((plain(row, ["id", "c"]) for row in self.rows.values()), key=repr)
            assert found == state.shown(["id", "c"]), f"the view at {version} is {found}"
        return True

    def catch_up(self) -> None:
        while self.step():
            pass


class Grouper:
    """A kept view that counts the rows of each value; made again when an error asks for it."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.begin()

    def begin(self) -> None:
        schema = self.history.other.schema
        scan = Scan.of("table", schema.columns, schema.keys)
        counted = (Aggregate("rows", AggregateKind.COUNT),)
        self.plan = Group(input=scan, keys=("c",), aggregates=counted)
        steps = self.history.steps
        self.kept = Table(FaultyStore(MemoryStore(), steps, process=("groups", id(self))))

    def step(self, first: int) -> None:
        try:
            refresh(View(self.plan), self.kept)
        except SchemaError as error:
            message = str(error)
            assert "plan anew" in message, message
            self.begin()
            return
        found = {
            row["c"]: row["rows"] for row in MaterializedView.open(self.kept).rows().to_pylist()
        }
        states = map(self.history.at, range(first, self.history.head + 1))
        counts = [Counter(row["c"] for row in state.rows.values()) for state in states]
        assert found in counts, f"{found} is none of {counts}"


def _types(columns: Iterable[pa.Field]) -> dict[str, pa.DataType]:
    return {each.name: each.type for each in columns}


INT32 = pa.int32()

BATCH_READS: Mapping[str, Mapping[str, str]] = {
    "version": {"versionAsOf": "{}"},
    "filter": {"versionAsOf": "{}", "filter": "c = 'a'"},
    "newest": {},
    "changes": {"readChangeFeed": "true", "startingVersion": "{}"},
    "exact": {"readChangeFeed": "true", "startingVersion": "{}"},
    "history": {"readHistory": "true", "validBy": "version", "startingVersion": "{}"},
}
BATCH_FILTERS = {"filter": lambda row: row["c"] == "a"}

FILTERS: tuple[tuple[str | None, str, Callable[[Row], bool]], ...] = (
    (None, "id", lambda row: True),
    ("c = 'a'", "c", lambda row: row["c"] == "a"),
    ("c IN ('a', 'b')", "c", lambda row: row["c"] in ("a", "b")),
    ("id = 3", "id", lambda row: row["id"] == 3),
    ("n >= 1", "n", lambda row: row["n"] is not None and row["n"] >= 1),
    ("d0 = 'x'", "d0", lambda row: row.get("d0") == "x"),
    ("d1 IS NULL", "d1", lambda row: row.get("d1") is None),
)

PATHS: tuple[Callable[[History], None], ...] = (
    History.snapshot,
    History.pieces,
    History.rows_having,
    History.get,
    History.frame,
    History.by_prefix,
    History.changes,
    History.history,
    History.keep,
    History.append,
    History.append,
    History.merge,
    History.merge,
    History.delete,
    History.delete_by_filter,
    History.sink,
    History.sink,
    History.sink_deletes,
    History.feedback,
    History.batch_read,
    History.batch_read,
    History.alter,
    History.expire_rows,
    History.check,
    History.group,
    History.compact,
    History.index,
    History.expire,
    History.publish,
    History.follow,
    History.view,
)
ACTS_OF = [(path.__name__, path) for path in PATHS]


class Swallowed(logging.Handler):
    """Notes errors that stop no commit: of an index, a mirror, or an expiry of rows."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "error=" in message:
            self.messages.append(message)


def live(seed: int) -> History:
    """Live one history; an error has its trace."""
    forget_runs_and_logs()
    history, swallowed = History(seed), Swallowed()
    logger = logging.getLogger("spark_upsert")
    logger.addHandler(swallowed)
    try:
        history.live()
        assert not swallowed.messages, swallowed.messages
    except Exception as error:
        error.add_note(f"history {seed}, {history.kind}:\n" + "\n".join(history.trace[-40:]))
        raise
    finally:
        logger.removeHandler(swallowed)
    return history


def finding(seed: int) -> str | None:
    """Live one history in a process of its own; returns what went wrong, if anything did."""
    try:
        live(seed)
    except Exception:  # noqa: BLE001 - whatever it is, it is the finding
        return traceback.format_exc()
    return None
