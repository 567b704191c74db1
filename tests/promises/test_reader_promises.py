"""P5 and P6 of values that no reader accepts: they are refused, and close no table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import UpsertFlowError
from spark_upsert.store import Store
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table
from tests.support.column_types import NESTINGS, TYPES, UNSOUND, column, earlier_release
from tests.support.stores import MemoryStore, forget_runs_and_logs

ROWS = pa.table({"id": [1, 2], "w": ["a", "b"]})

WEEK_MS: Any = 7 * 86_400 * 1e3
HALF: Any = 0.5

Use = Callable[[Table], object]


def _transaction(number: Any) -> Use:
    return lambda table: table.upsert(ROWS, transaction=Transaction(writer="w", number=number))


def _properties(**properties: str) -> Use:
    return lambda table: table.alter(table.schema, properties)


USES: dict[str, Use] = {
    "a transaction by the time of day": _transaction(time.time()),
    "a transaction beyond 64 bits": _transaction(2**64),
    "a lease for a fraction": lambda table: table.hold("c", 0, ttl_ms=WEEK_MS),
    "an expiry of a fraction": lambda table: table.expire(retain_versions=HALF),
    "a text of other bytes than UTF-8": lambda table: table.upsert(
        pa.table({"id": [1], "w": UNSOUND["string"][:1]})
    ),
    "a property of megabytes": _properties(publishPath="x" * (2 << 20)),
    "an internal property": _properties(historyOf="x"),
    **{
        f"a column of {name}": lambda table, own=own: table.upsert(  # type: ignore[misc]
            pa.table({"id": [1], "w": ["c"], "v": own.given[:1]}), merge_schema=True
        )
        for name, own in TYPES.items()
        if own.stored is None
    },
}


def made(rows: pa.Table, properties: Mapping[str, str] | None = None) -> Store:
    """Return the storage of a table with some rows."""
    store = MemoryStore()
    table = Table(store)
    table.ensure(TableSchema.of(rows.schema, keys=["id"]), properties)
    table.upsert(rows)
    return store


def reopened(store: Store) -> Table:
    """Return a table as a new process opens it."""
    forget_runs_and_logs()
    return Table(store)


def test_p6_no_value_of_a_caller_makes_a_table_unreadable() -> None:
    store = made(ROWS)
    for name, use in USES.items():
        try:
            use(reopened(store))
        except UpsertFlowError:
            pass
        else:
            raise AssertionError(f"{name} is accepted")
        table = reopened(store)
        assert table.snapshot().sort_by("id") == ROWS, name
        table.upsert(ROWS)
        table.expire(retain_versions=0, safety_ms=0)
        table.compact(full=True)


def test_p5_a_column_is_stored_exactly_whatever_its_layout() -> None:
    columns = {
        f"{name} in {nesting}": own
        for name in TYPES
        for nesting in ("a column", "a list")
        if (own := column(name, nesting)).stored is not None
    }
    given = {f"v{place}": own.given for place, own in enumerate(columns.values())}
    rows = pa.table({"id": pa.array(range(4)), **given})
    table = Table(store := MemoryStore())
    table.ensure(TableSchema.of(rows.schema, keys=["id"]))
    for batch in rows.to_batches(max_chunksize=2):
        table.upsert(batch)
    shown = reopened(store).snapshot().sort_by("id")
    for place, (name, own) in enumerate(columns.items()):
        assert shown[f"v{place}"].combine_chunks().equals(own.stored), name


def test_p6_a_table_of_an_earlier_release_is_read_or_repaired() -> None:
    for name in ("fixed_size_list", "uuid", "dense_union", "opaque"):
        for nesting in list(NESTINGS)[:3]:
            own = column(name, nesting)
            rows = pa.table({"id": range(4), "w": ["a", "b", "c", "d"], "v": own.given})
            with earlier_release():
                store = made(rows)
            reopened(store).repair()
            shown = reopened(store).snapshot().sort_by("id")
            left = rows.drop_columns("v")
            if own.stored is not None:
                left = left.append_column("v", own.stored)
            assert shown.equals(left), f"{name} in {nesting}"
