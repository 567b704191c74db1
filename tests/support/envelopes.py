"""Rows as Kafka's and Debezium's users have them, and tables written through a write's options."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_upsert.envelopes.inferred_schema import infer_options
from spark_upsert.envelopes.write_plan import default_late_rows, plan_table_write
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.open import open_store
from spark_upsert.table.log.manifest import Commit
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert_sink.writers import SinkPlan, plan_sink

KAFKA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
    }
)
"""The columns of Spark's Kafka source."""

JSON = {
    "envelope": "kafka",
    "keyFormat": "json",
    "keySchema": "k BIGINT",
    "valueFormat": "json",
    "valueSchema": "v STRING",
}
"""Options of a topic whose keys are ``{"k": 1}`` and whose values are ``{"v": "a"}``."""

Record = tuple[bytes | None, bytes | None]


def key(number: int | None) -> bytes:
    """Return a key of a `JSON` topic."""
    return json.dumps({"k": number}).encode()


def value(text: Any) -> bytes:
    """Return a value of a `JSON` topic."""
    return json.dumps({"v": text}).encode()


def records(
    pairs: Iterable[Record], *, offsets: Iterable[int] | None = None, partition: int = 0
) -> pa.Table:
    """Return records of one partition; offsets count from 0 unless given."""
    numbers = iter(itertools.count() if offsets is None else offsets)
    rows = [
        {"key": k, "value": v, "topic": "t", "partition": partition, "offset": next(numbers)}
        for k, v in pairs
    ]
    return pa.Table.from_pylist(rows, schema=KAFKA)


def plan(path: Path, rows: pa.Schema, **options: Any) -> SinkPlan:
    """Plan a write as the sink does."""
    given = {"path": str(path), **{name: str(v) for name, v in options.items()}}
    return plan_sink(WriteOptions.parse(given), rows, overwrite=False)


def write(path: Path, rows: pa.Table, **options: Any) -> Commit:
    """Write rows as one epoch, under the options of a write."""
    planned = plan(path, rows.schema, **options)
    table = planned.table()
    base = Snapshot(table.store, planned.write.base)
    commands = (planned.write.envelope.commands(batch) for batch in rows.to_batches())
    given = WriteOptions.parse({"path": str(path), **{k: str(v) for k, v in options.items()}})
    late = default_late_rows(given, LateRows.FAIL)
    staged = stage(base, commands, late_rows=late)
    commit = table.commit(WriteSet(base=base, staged=(staged,), late_rows=late))
    assert commit is not None
    return commit


def write_found(path: Path, rows: pa.Table, **options: Any) -> Commit | None:
    """Write rows as one epoch, under options by which the columns are found in them."""
    given = WriteOptions.parse({"path": str(path), **{k: str(v) for k, v in options.items()}})
    table = Table(open_store(given.path, {}))
    head = table.log.try_head()
    found = infer_options(given, rows.to_batches(2), None if head is None else head.schema)
    planned = plan_table_write(table, found, rows.schema)
    base = Snapshot(table.store, planned.base)
    commands = (planned.envelope.commands(batch) for batch in rows.to_batches(3))
    staged = stage(base, commands, late_rows=LateRows.FAIL)
    return table.commit(WriteSet(base=base, staged=(staged,), late_rows=LateRows.FAIL))


def rows_of(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table, sorted."""
    return sorted(Table.open(str(path)).snapshot(version).to_pylist(), key=repr)


def quarantine_of(path: Path, version: int | None = None) -> list[dict[str, Any]]:
    """Return the error entries of a table, sorted, without their epochs."""
    found = [
        row for batch in Table.open(str(path)).quarantine(version) for row in batch.to_pylist()
    ]
    return sorted(({n: v for n, v in row.items() if n != "_epoch"} for row in found), key=repr)


def counters_of(commit: Commit) -> Counters:
    """Return the counters of a commit, which must balance."""
    counters = Counters.from_json(commit.counters)
    assert counters.is_balanced, counters
    return counters


def assert_sound(path: Path) -> None:
    """Check that the changes fold to the snapshot at every version, and are as many as counted."""
    table = Table.open(str(path))
    keys, names = table.log.head().schema.keys, table.log.head().schema.columns.names
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for version in range(table.log.head().upper):
        commit = table.log.commit(version)
        changes = table.changes(version, version + 1, emit_unchanged=True).to_pylist()
        for change in changes:
            row = {name: change[name] for name in names}
            name = tuple(row[k] for k in keys)
            if change["_change_type"] in ("delete", "update_preimage"):
                assert rows.pop(name, "no row") == row
            else:
                assert name not in rows
                rows[name] = row
        # In the columns of the newest version, as the changes are.
        then = [{name: row.get(name) for name in names} for row in rows_of(path, version)]
        assert sorted(rows.values(), key=repr) == sorted(then, key=repr)
        assert commit.live_rows == len(rows)
        if commit.is_epoch:
            assert counters_of(commit).output_count == len(changes)


def reasons(path: Path) -> Sequence[str]:
    """Return the reasons in the quarantine, sorted."""
    return sorted(row["_reason"] for row in quarantine_of(path))
