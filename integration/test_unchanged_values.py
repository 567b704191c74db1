"""The changes that PostgreSQL decodes, without the values that it does not send, make its table.

Random transactions (`integration.unsent_changes`) are read by whole transactions, by two
partitions of the keys, and in any order; the expected rows are PostgreSQL's own.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from integration.servers.postgres import Postgres
from integration.unsent_changes import (
    COLUMNS,
    Change,
    Part,
    Rows,
    in_one_event,
    oracle_table,
    transactions,
)
from spark_upsert.core.schema import OnUnknown
from spark_upsert.envelopes.write_plan import plan_table_write
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from tests.support.envelopes import KAFKA
from tests.support.registers_model import RegistersModel
from tests.support.stores import forget_runs_and_logs

pytestmark = pytest.mark.slow

HISTORIES = int(os.environ.get("POSTGRES_HISTORIES", "200"))


@pytest.fixture(scope="module")
def connection(postgres: Postgres) -> Iterator[psycopg.Connection[Any]]:
    with oracle_table(postgres) as connection:
        yield connection


ROWS = KAFKA.append(
    pa.field("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
)
OPTIONS = {
    "envelope": "debezium",
    "keys": "id",
    "sequenceBy": "source.lsn",
    "valueFormat": "json",
    "valueSchema": "id BIGINT, n BIGINT, x STRING, y STRING, a ARRAY<INT>",
}


class EventTable:
    """A table into which Debezium's events are written."""

    def __init__(self, path: Path, dice: random.Random, **options: str) -> None:
        self.path = path
        self.table = Table(open_store(str(path), {}))
        self.dice = dice
        self.options = {"path": str(path), **OPTIONS, **options}
        self.offset = 0

    def write(self, parts: Sequence[Part]) -> None:
        """Write an epoch, or two that two writers stage on one version, by keys.

        Without moves, since one between keys of two writers leaves a row unknown for a while.
        """
        is_by_keys = self.dice.random() < 0.2 and self.offset > 0 and not _have_moves(parts)
        epochs = _halves(parts) if is_by_keys else [parts]
        staged = [self._staged(epoch) for epoch in self.dice.sample(epochs, len(epochs))]
        for write_set in staged:
            assert self.table.commit(write_set) is not None
        if self.dice.random() < 0.2:
            self.table.compact(full=self.dice.random() < 0.5)
        if self.dice.random() < 0.2:
            forget_runs_and_logs()
            self.table = Table.open(str(self.path))

    def _staged(self, parts: Sequence[Part]) -> WriteSet:
        """Stage an epoch on the newest version, in one task or, by keys, in two.

        An update of a key in one event has rows of two keys, so that no task has all of a key's.
        """
        planned = plan_table_write(self.table, WriteOptions.parse(self.options), ROWS)
        base = Snapshot(self.table.store, planned.base)
        have_two_keys = any(not part.records for part in parts)
        is_by_keys = self.dice.random() < 0.3 and not have_two_keys
        tasks = _halves(parts) if is_by_keys else [parts]
        late = LateRows.FAIL
        staged = tuple(
            stage(base, [planned.envelope.commands(self._batch(task))], late_rows=late)
            for task in tasks
        )
        return WriteSet(base=base, staged=staged, late_rows=late)

    def _batch(self, parts: Sequence[Part]) -> pa.RecordBatch:
        rows = []
        for record in (record for part in parts for record in part.records):
            rows.append({"topic": "t", "partition": 0, "offset": self.offset, **record})
            self.offset += 1
        return pa.RecordBatch.from_pylist(rows, schema=ROWS)

    def rows(self) -> Rows:
        """Return the rows by key."""
        rows = self.table.snapshot().to_pylist()
        return {row["id"]: tuple(row[name] for name in COLUMNS) for row in rows}


def _have_moves(parts: Sequence[Part]) -> bool:
    return any(part.command.moved_to is not None for part in parts)


def _halves(parts: Sequence[Part]) -> list[list[Part]]:
    return [[p for p in parts if (p.command.key or 0) % 2 == side] for side in (0, 1)]


def commits_of(
    connection: psycopg.Connection[Any], seed: int, *, moves: bool = True
) -> list[tuple[list[Change], Rows]]:
    """Return the changes and the rows of some commits."""
    with transactions(connection, seed, moves=moves) as history:
        return list(history.commits(history.dice.randint(2, 12)))


def parts_of(commits: Sequence[tuple[list[Change], Rows]]) -> list[Part]:
    """Return all parts of the changes of some commits."""
    return [part for changes, _ in commits for change in changes for part in change.parts]


def in_partitions(parts: Sequence[Part], dice: random.Random) -> list[Part]:
    """Return parts as two partitions of the keys are read: each in its order."""
    halves = _halves(parts)
    read = []
    while any(halves):
        read.append(dice.choice([half for half in halves if half]).pop(0))
    return read


def cut(parts: Sequence[Part], dice: random.Random) -> Iterator[list[Part]]:
    """Cut parts into epochs."""
    start = 0
    while start < len(parts):
        count = dice.randint(1, 6)
        yield list(parts[start : start + count])
        start += count


def require_no_wrong_value(model: RegistersModel, expected: Rows, seed: int) -> None:
    """Require that each value is PostgreSQL's, or unknown."""
    assert set(model.rows()) == set(expected)
    for number, row in model.rows().items():
        lost = model.unknown_rows.get(number, ())
        for name, value, own in zip(COLUMNS, row, expected[number], strict=True):
            assert value == own or name in lost, f"seed {seed}, key {number}, column {name}"


def test_the_model_has_the_rows_of_each_commit(connection: psycopg.Connection[Any]) -> None:
    """And it finds what the statements are meant to make: values not sent, and moves of rows."""
    unsent = moves = 0
    for seed in range(HISTORIES):
        model = RegistersModel(COLUMNS, OnUnknown.FAIL)
        for changes, rows in commits_of(connection, seed):
            model.apply([part.command for change in changes for part in change.parts])
            assert model.rows() == rows, f"seed {seed}"
            unsent += sum(len(change.unsent) for change in changes)
            moves += sum(change.is_move for change in changes)
    assert unsent > 5 * HISTORIES
    assert moves > HISTORIES / 4


def test_the_model_has_no_wrong_value_after_two_partitions(
    connection: psycopg.Connection[Any],
) -> None:
    unknown = 0
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        commits = commits_of(connection, seed)
        model = RegistersModel(COLUMNS)
        for epoch in cut(in_partitions(parts_of(commits), dice), dice):
            model.apply([part.command for part in epoch])
        unknown += bool(model.unknown_rows)
        require_no_wrong_value(model, commits[-1][1], seed)
    assert unknown < HISTORIES / 4


def test_the_model_has_the_rows_after_any_order(connection: psycopg.Connection[Any]) -> None:
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        commits = commits_of(connection, seed, moves=False)
        parts = parts_of(commits)
        dice.shuffle(parts)
        model = RegistersModel(COLUMNS)
        for epoch in cut(parts, dice):
            model.apply([part.command for part in epoch])
        assert model.rows() == commits[-1][1], f"seed {seed}"


@pytest.mark.parametrize("moves", ["delete and create", "one update"])
def test_a_table_has_the_rows_of_each_commit(
    connection: psycopg.Connection[Any], tmp_path: Path, moves: str
) -> None:
    """With the default options: a row that is unknown in a column would be an error.

    Now and then the records from some place on come again, as after a restart of the source.
    """
    for seed in range(HISTORIES):
        table = EventTable(tmp_path / f"{seed}", random.Random(seed))
        sent: list[Part] = []
        parts: list[Part] = []
        for changes, rows in commits_of(connection, seed):
            parts += [part for change in changes for part in change.parts]
            if parts and table.dice.random() < 0.8:
                parts = in_one_event(parts) if moves == "one update" else parts
                table.write(parts)
                sent, parts = [*sent, *parts], []
                assert table.rows() == rows, f"seed {seed}"
                if table.dice.random() < 0.2:
                    table.write(sent[table.dice.randrange(len(sent)) :])
                    assert table.rows() == rows, f"seed {seed}, repeated"
        shutil.rmtree(table.path, ignore_errors=True)


def _require_own_or_unknown(table: EventTable, expected: Rows, seed: int) -> bool:
    """Require that each value is PostgreSQL's, or unknown; returns whether one is unknown."""
    rows, is_unknown = table.rows(), bool(table.table.log.head().unknown_rows)
    assert set(rows) == set(expected), f"seed {seed}"
    for number, row in rows.items():
        for name, value, own in zip(COLUMNS, row, expected[number], strict=True):
            is_lost = value is None and is_unknown
            assert value == own or is_lost, f"seed {seed}, key {number}, column {name}"
    return is_unknown


def test_a_table_has_no_wrong_value_after_two_partitions(
    connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    unknown = 0
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        commits = commits_of(connection, seed)
        table = EventTable(tmp_path / f"{seed}", dice, onUnknown="null")
        for epoch in cut(in_partitions(parts_of(commits), dice), dice):
            table.write(epoch)
        if commits[-1][1] or table.offset:
            unknown += _require_own_or_unknown(table, commits[-1][1], seed)
        shutil.rmtree(table.path, ignore_errors=True)
    assert unknown < HISTORIES / 4


def test_a_table_has_the_rows_after_any_order(
    connection: psycopg.Connection[Any], tmp_path: Path
) -> None:
    for seed in range(HISTORIES):
        dice = random.Random(seed)
        commits = commits_of(connection, seed, moves=False)
        parts = parts_of(commits)
        dice.shuffle(parts)
        table = EventTable(tmp_path / f"{seed}", dice, onUnknown="null")
        for epoch in cut(parts, dice):
            table.write(epoch)
        if parts:
            assert table.rows() == commits[-1][1], f"seed {seed}"
        shutil.rmtree(table.path, ignore_errors=True)
