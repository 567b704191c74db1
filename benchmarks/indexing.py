"""What an index costs a commit, and what reads by an index or by a prefix save; without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import spread
from spark_upsert.table.table import Table

PER_VALUE = 20
"""Rows of a customer."""

WANTED = 100
"""Customers that are looked for."""

SCHEMA = pa.schema({"customer_id": pa.int64(), "order_id": pa.int64(), "amount": pa.int64()})

PLAIN, INDEXED = "no index", "an index"


def measure(folder: Path, rows: int, batch_rows: int, *, rounds: int) -> dict[str, Any]:
    """Time commits to a table with and without an index, and reads of some customers, in turn.

    Returns
    -------
    dict
        ``rows``, ``batch_rows``, ``wanted``; below ``commits``, ``reads`` and ``skew`` for each
        way the spread of ``cpu_s``, the processor time of all threads.
    """
    tables = {
        PLAIN: _made(folder / "plain", rows, keys=["order_id"]),
        INDEXED: _made(folder / "indexed", rows, keys=["order_id"], index_by="customer_id"),
    }
    prefixed = _made(folder / "prefixed", rows, keys=["customer_id", "order_id"], hash_prefix=1)
    for table in (*tables.values(), prefixed):
        table.compact(full=True)
    tables[INDEXED].build_indexes()
    commits: dict[str, list[float]] = {name: [] for name in tables}
    for number in range(2 * rounds):
        batch = _batch(np.random.default_rng(number).integers(0, rows, batch_rows), rows, number)
        for name, table in tables.items():
            commits[name].append(_cpu_s(partial(table.upsert, batch)))
    values = list(range(0, WANTED * 7, 7))
    wanted = pa.table({"customer_id": values})
    ways: dict[str, Callable[[], pa.Table]] = {
        "by the beginning of the key": lambda: prefixed.having_prefix(wanted),
        "by an index": lambda: tables[INDEXED].rows_having("customer_id", values),
        "all rows read, and filtered": lambda: tables[PLAIN].rows_having("customer_id", values),
    }
    reads: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            reads[name].append(_cpu_s(way))
    return {
        "rows": rows,
        "batch_rows": batch_rows,
        "wanted": WANTED,
        "found": {name: way().num_rows for name, way in ways.items()},
        "commits": {name: {"cpu_s": spread(took)} for name, took in commits.items()},
        "reads": {name: {"cpu_s": spread(took)} for name, took in reads.items()},
        "skew": _skew(folder, rows, rounds=rounds),
    }


def _skew(folder: Path, rows: int, *, rounds: int) -> dict[str, Any]:
    """Time the load, the compaction and a scan of a table whose rows mostly have one value."""
    found: dict[str, Any] = {}
    for name, common in (("values of 20 rows", 0.0), ("one value has nine rows in ten", 0.9)):
        took: dict[str, list[float]] = {"load": [], "compact": [], "scan": []}
        for number in range(rounds):
            at = folder / f"skew {common} {number}"
            took["load"].append(_cpu_s(partial(_skewed, at, rows, common)))
            table = Table.open(str(at))
            took["compact"].append(_cpu_s(partial(table.compact, full=True)))
            took["scan"].append(_cpu_s(partial(_scanned, table)))
        found[name] = {step: {"cpu_s": spread(times)} for step, times in took.items()}
    return found


def _scanned(table: Table) -> int:
    return sum(batch.num_rows for batch in table.scan())


def _skewed(path: Path, rows: int, common: float) -> Table:
    return _made(path, rows, keys=["customer_id", "order_id"], hash_prefix=1, common=common)


def _made(
    path: Path,
    rows: int,
    *,
    keys: list[str],
    index_by: str = "",
    hash_prefix: int = 0,
    common: float = 0.0,
) -> Table:
    """Make a table in eight epochs."""
    properties = {"indexBy": index_by}
    table = Table.create(
        str(path), SCHEMA, keys=keys, hash_prefix=hash_prefix, properties=properties
    )
    for part in np.array_split(np.arange(rows), 8):
        customers = np.where((part * 7) % 10 < common * 10, 0, part // PER_VALUE)
        table.upsert(_rows(customers, part, 0))
    return table


def _batch(orders: Any, rows: int, number: int) -> pa.Table:
    """Return updates of orders, every second of which goes to another customer."""
    orders = np.unique(orders)
    moved = (orders // PER_VALUE + number) % max(1, rows // PER_VALUE)
    return _rows(np.where(orders % 2, orders // PER_VALUE, moved), orders, number)


def _rows(customers: Any, orders: Any, number: int) -> pa.Table:
    amounts = orders * 3 + number
    return pa.table([customers, orders, amounts], schema=SCHEMA)


def _cpu_s(action: Callable[[], object]) -> float:
    before = time.process_time()
    action()
    return time.process_time() - before
