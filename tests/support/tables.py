"""Small tables of `Command`s: key ``k``, value ``v``, order key ``seq``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HASH_END, HashRange
from spark_upsert.core.key_hash import hash_keys as _hash_keys
from spark_upsert.core.keys import Words
from spark_upsert.core.schema import Scope, TableSchema
from spark_upsert.store import Store
from spark_upsert.table.changelog.read import ChangeOptions, Deduplication
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Draft, Kind, Manifest, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import UpsertEnvelope
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns, WriteSet
from tests.support.model import Change, Command, Tally


def schema_of(
    scope: Scope,
    *,
    key: pa.DataType | None = None,
    value: pa.DataType | None = None,
    order: pa.DataType | None = None,
    seed: int = 7,
    prefix: bool = False,
) -> TableSchema:
    """Return the schema of a table of commands; all types int64 unless told.

    With ``prefix`` the key begins with a column that follows from ``k``, and hashes begin with it.
    """
    columns = pa.schema({"k": key or pa.int64(), "v": value or pa.int64()})
    fields = [] if scope is Scope.ARRIVAL else [pa.field("seq", order or pa.int64())]
    leading = [PREFIX] if prefix else []
    return TableSchema.of(
        pa.schema([*(pa.field(name, pa.int64()) for name in leading), *columns]),
        keys=[*leading, "k"],
        order=fields,
        scope=scope,
        hash_seed=seed,
        hash_prefix=len(leading),
    )


@contextmanager
def keys_that_begin_alike_lie_together(so: bool = True) -> Iterator[None]:
    """Let the schemas that are made here have a prefix where a test does not say it, or not."""
    with patch.dict(schema_of.__kwdefaults__, {"prefix": so}):
        yield


PREFIX = "half"


def prefix_of(key: Any) -> int:
    """Return with what a key begins where the schema has a prefix; several keys share it."""
    return sum(repr(key).encode()) % 2


class Ticks:
    """A clock that advances by a second each time it is read."""

    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def make_table(
    store: Store, schema: TableSchema, *, properties: Mapping[str, str] | None = None
) -> Table:
    """Make a table whose hash seed is that of the schema, or open the one that is there."""
    clock = Ticks()
    if Log(store, clock=clock).try_head() is None:
        draft = Draft(kind=Kind.CREATE, schema=schema, properties=properties)
        Log(store, clock=clock).create(draft)
    return Table(store, clock=clock)


def rows_of(schema: TableSchema, commands: Sequence[Command]) -> pa.Table:
    """Return commands as a user's rows; column ``gone`` marks the deletes, others are null."""
    columns: dict[str, Any] = {
        **{field.name: pa.nulls(len(commands), field.type) for field in schema.columns},
        "k": pa.array([c.key for c in commands], type=schema.columns.field("k").type),
        "v": pa.array([c.value for c in commands], type=schema.columns.field("v").type),
        "gone": pa.array([c.value is None for c in commands], type=pa.bool_()),
    }
    if PREFIX in schema.keys:
        columns[PREFIX] = pa.array([prefix_of(c.key) for c in commands], pa.int64())
    if schema.order:
        columns["seq"] = pa.array([c.order for c in commands], type=schema.order[0].type)
    return pa.table(columns)


def batch_of(schema: TableSchema, commands: Sequence[Command]) -> pa.RecordBatch:
    """Return commands as the batch that the stash takes."""
    envelope = UpsertEnvelope(
        schema=schema,
        sources={name: name for name in (*schema.keys, "v")},
        order=("seq",) if schema.order else (),
        deletes="gone",
    )
    batch = rows_of(schema, commands).combine_chunks().to_batches()
    return envelope.commands(batch[0]) if batch else _empty(schema)


def _empty(schema: TableSchema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=schema.run)


def stage_tasks(
    snapshot: Snapshot, tasks: Sequence[Sequence[Sequence[Command]]], *, overwrite: bool = False
) -> tuple[StagedRuns, ...]:
    """Stage the batches of several tasks."""
    schema = snapshot.manifest.schema
    return tuple(
        stage(snapshot, [batch_of(schema, batch) for batch in batches], overwrite=overwrite)
        for batches in tasks
    )


def plan_epoch(
    table: Table,
    tasks: Sequence[Sequence[Sequence[Command]]],
    *,
    transaction: Transaction | None = None,
    overwrite: bool = False,
    allow_unordered: bool = True,
) -> WriteSet:
    """Stage an epoch upon the newest version; nothing is visible yet."""
    base = table.at()
    return WriteSet(
        base=base,
        staged=stage_tasks(base, tasks, overwrite=overwrite),
        transactions=() if transaction is None else (transaction,),
        overwrite=overwrite,
        allow_unordered=allow_unordered,
    )


def apply_epoch(table: Table, tasks: Sequence[Sequence[Sequence[Command]]], **how: Any) -> Commit:
    """Stage and commit an epoch."""
    commit = table.commit(plan_epoch(table, tasks, **how))
    assert commit is not None
    return commit


def append(table: Table, commands: Sequence[Command], **how: Any) -> Commit | None:
    """Append through the public method of the table."""
    schema = table.log.head().schema
    options = {"late_rows": LateRows.REJECT, **how}
    return table.upsert(rows_of(schema, commands), deletes="gone", **options)


def pairs(rows: pa.Table) -> dict[Any, Any]:
    """Return rows as key to value; a key that stands twice is a failure."""
    keys, values = rows.column("k").to_pylist(), rows.column("v").to_pylist()
    assert len(set(keys)) == len(keys), f"a key stands twice in {sorted(keys)}"
    return dict(zip(keys, values, strict=True))


def rows_at(table: Table, version: int | None = None) -> dict[Any, Any]:
    """Return the snapshot as key to value."""
    return pairs(table.snapshot(version))


def changes_of(
    table: Table,
    lower: int = 1,
    upper: int | None = None,
    *,
    show: Deduplication = Deduplication.NONE,
    hash_range: HashRange = ALL_HASHES,
) -> list[Change]:
    """Return changelog rows, by default every one; checks columns that follow from others."""
    end = table.log.head().upper if upper is None else upper
    options = ChangeOptions(columns=("k", "v"), deduplication=show)
    batches = table.iter_changes(lower, end, options, hash_range=hash_range)
    return [_change(row) for batch in batches for row in batch.to_pylist()]


def _change(row: dict[str, Any]) -> Change:
    kind = row["_change_type"]
    sign = -1 if kind in ("delete", "update_preimage") else 1
    assert row["_diff"] == sign, f"{kind} with diff {row['_diff']}"
    return Change(kind, row["k"], row["v"], row["_commit_version"])


def tally_of(commit: Commit) -> Tally:
    """Return the counters of a commit as the model counts them."""
    counters = Counters.from_json(commit.counters)
    assert counters.is_balanced, counters
    return Tally(
        rows=counters.rows,
        inserts=counters.inserts,
        updates=counters.updates,
        deletes=counters.deletes,
        absent=counters.absent,
        stale=counters.stale,
        ignored=counters.superseded + counters.duplicates,
        retracted=counters.retracted,
    )


def by_epoch(changes: Sequence[Change]) -> list[list[Change]]:
    """Group changes by epoch, each group sorted; a pair keeps its order."""
    groups: dict[int, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.epoch, []).append(change)
    return [sorted(group, key=_place) for _, group in sorted(groups.items())]


_KINDS = ("delete", "update_preimage", "update_postimage", "insert")


def _place(change: Change) -> tuple[Any, ...]:
    return (str(change.key), _KINDS.index(change.kind))


@contextmanager
def hashes_of_few_values(count: int | None) -> Iterator[None]:
    """Let the key hash take only ``count`` values, spread over its whole range; None: all."""
    if count is None:
        yield
        return
    with (
        patch("spark_upsert.table.write.commands.hash_keys", _few_values(count)),
        patch("spark_upsert.table.state.check.hash_keys", _few_values(count)),
        patch("spark_upsert.table.state.snapshot.hash_keys", _few_values(count)),
        patch("spark_upsert.core.schema.is_injective", lambda types: False),
    ):
        yield


_HALF = np.uint64((1 << 32) - 1)


def _few_values(count: int) -> Callable[..., Words]:
    spread = np.array([i * (HASH_END - 1) // max(count - 1, 1) for i in range(count)], np.uint64)

    def hash_keys(columns: Sequence[pa.Array], *, seed: int, prefix: int = 0) -> Words:
        keys = zip(*(column.to_pylist() for column in columns), strict=True)
        numbers = [sum(sum(repr(v).encode()) for v in key) for key in keys]
        hashes = spread[np.array(numbers, dtype=np.int64) % count]
        if not prefix:
            return hashes
        upper = _hash_keys(columns[:prefix], seed=seed) & ~_HALF
        return upper | (hashes & _HALF)

    return hash_keys


def manifest_of(schema: TableSchema) -> Manifest:
    """Return the manifest of an empty table."""
    return Manifest(version=0, timestamp_ms=0, schema=schema)
