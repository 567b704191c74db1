"""Tasks that counted upon different versions are committed as if all had seen the newest."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.table.compaction import compact_runs
from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns, WriteSet
from tests.support.stores import MemoryStore

STRETCH = 40

ROWS = pa.schema({"id": pa.int64(), "at": pa.int64(), "v": pa.int64(), "gone": pa.bool_()})

COLUMNS = pa.schema([ROWS.field("id"), ROWS.field("v")])

AT = pa.schema([ROWS.field("at")])


def rows_of(rng: random.Random) -> pa.Table:
    """Return a few commands of even fewer keys."""
    rows = [
        {
            "id": rng.randrange(4),
            "at": rng.randrange(5),
            "v": rng.randrange(2),
            "gone": rng.random() < 0.4,
        }
        for _ in range(rng.randrange(1, 4))
    ]
    return pa.Table.from_pylist(rows, schema=ROWS)


def staged_upon(table: Table, rows: pa.Table, late_rows: LateRows) -> StagedRuns:
    """Stage the rows of one task upon what is the newest version to it."""
    head = table.log.head()
    envelope = envelope_of_rows(head.schema, rows.schema, deletes="gone")
    commands = map(envelope.commands, rows.to_batches())
    return stage(Snapshot(table.store, head), commands, late_rows=late_rows)


def committed(table: Table, staged: Sequence[StagedRuns], late_rows: LateRows) -> Commit:
    """Commit what tasks staged, each upon its own version."""
    places = {each.base.version: each.base for each in staged}
    bases = {v: Snapshot(table.store, table.log.at(v)) for v in sorted(places)}
    commit = table.commit(
        WriteSet(
            base=bases[min(bases)],
            bases=bases,
            staged=tuple(staged),
            allow_unordered=True,
            late_rows=late_rows,
        )
    )
    assert commit is not None
    return commit


def meddle(table: Table, rng: random.Random) -> None:
    """Let a second writer or a compaction come between."""
    if rng.random() < 0.6:
        table.upsert(rows_of(rng), deletes="gone", late_rows=LateRows.REJECT)
    if rng.random() < 0.4:
        for job in table.compaction_jobs(full=True):
            table.commit_compactions([compact_runs(table.store, table.log.head(), job)])


def copy_of(table: Table) -> Table:
    """Return the table as it is, in a place of its own."""
    store, copy = table.store, MemoryStore()
    assert isinstance(store, MemoryStore)
    copy.objects = dict(store.objects)
    return Table(copy)


def check(seed: int) -> bool:
    """Check one world; returns whether the tasks counted upon different versions."""
    rng = random.Random(seed)
    table = Table(MemoryStore())
    scope = rng.choice([Scope.TABLE, Scope.EPOCH])
    late_rows = rng.choice([LateRows.REJECT, LateRows.APPLY])
    schema = TableSchema.of(COLUMNS, keys=["id"], order=AT, scope=scope)
    table.ensure(schema, {"tombstoneRetention": rng.choice(["1 epochs", "7 days"])})
    batches, staged = [], []
    for _ in range(rng.randrange(2, 4)):
        meddle(table, rng)
        batches.append(rows_of(rng))
        staged.append(staged_upon(table, batches[-1], late_rows))
    meddle(table, rng)
    other = copy_of(table)
    expected = committed(
        other, [staged_upon(other, rows, late_rows) for rows in batches], late_rows
    )
    found = committed(table, staged, late_rows)
    assert found.counters == expected.counters, seed
    assert found.live_rows == expected.live_rows == table.snapshot().num_rows, seed
    assert rows_in(table) == rows_in(other), seed
    assert not table.check().findings, seed
    return len({each.base.version for each in staged}) > 1


def rows_in(table: Table) -> list[dict[str, int]]:
    """Return the rows of a table in the order of their keys."""
    return table.snapshot().sort_by("id").to_pylist()


@pytest.mark.parametrize("first", range(0, 80, STRETCH), ids="seeds from {}".format)
def test_tasks_upon_different_versions_count_as_upon_the_newest(first: int) -> None:
    mixed = sum(check(seed) for seed in range(first, first + STRETCH))
    assert mixed > STRETCH // 2, "the tasks mostly saw the same version: the law says nothing"
