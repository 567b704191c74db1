"""``upsertflow demo``: a table whose sum equals the sum of its changes, without Java or a server.

The same command makes the same rows.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.table.table import Table

ROWS = 100_000
"""Initial orders: a realistic size, about a second of work."""

COLUMNS = pa.schema(
    {"order_id": pa.int64(), "country": pa.string(), "amount": pa.int64(), "at": pa.int64()}
)

_COUNTRIES = ("DE", "FR", "NL")

LATER = (
    {"order_id": 7, "country": "NL", "amount": 500, "at": 5, "gone": False},
    {"order_id": 7, "country": "NL", "amount": 300, "at": 3, "gone": False},
    {"order_id": 8, "country": None, "amount": None, "at": 5, "gone": True},
    {"order_id": 9, "country": "DE", "amount": 900, "at": 0, "gone": False},
)
"""An update; an older update to the same order, arriving late; a delete; and an update older than
the stored row."""

_SHOWN = {"order_id": [7, 8, 9]}

_CHANGE = ("order_id", "country", "amount", "_change_type", "_diff")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A demo step and its result."""

    title: str
    rows: Sequence[Mapping[str, Any]] = ()
    seconds: float
    """Step duration."""
    is_right: bool = True


def steps(path: str, rows: int, clock: Callable[[], float]) -> Iterator[Scene]:
    """Create a table with orders, change it and read it; yields the steps."""
    began_s = clock()

    def step(title: str, *, is_right: bool = True, rows: Sequence[Mapping[str, Any]] = ()) -> Scene:
        nonlocal began_s
        ended_s = clock()
        took, began_s = ended_s - began_s, ended_s
        return Scene(title=title, rows=rows, seconds=took, is_right=is_right)

    table = Table.create(path, COLUMNS, keys=["order_id"], sequence_by=["at"])
    table.upsert(orders(rows))
    table.publish()
    yield step(f"{rows:,} orders came; each order_id is one row, of the newest `at`.")
    yield step("The rows of three of them:", rows=table.get(_SHOWN).to_pylist())

    table.upsert(pa.Table.from_pylist(list(LATER)), deletes="gone")
    yield step("Then four changes come, two of them late, and one that deletes:", rows=LATER)
    yield step(
        "The table: the late rows lost, and the deleted one is gone.",
        rows=table.get(_SHOWN).to_pylist(),
    )
    changes = table.changes(2).select(_CHANGE).to_pylist()
    yield step("Its changes, exact: what each row was (-1), and what it is (+1).", rows=changes)
    yield step("Version 1 is still there:", rows=table.get(_SHOWN, version=1).to_pylist())

    total = _sum_rows(table)
    summed = sum(_sum_changes(batch) for batch in table.scan_changes(1))
    yield step(
        f"The sum of amount is {total:,}, and over all changes ever, times _diff: {summed:,}.",
        is_right=total == summed,
    )
    mirror = table.publish().place
    yield step(f"A Delta table follows it, by what changed: {mirror}")
    for name, answer in answers(table, mirror):
        text = f"{answer:,}" if isinstance(answer, int) else answer
        yield step(f"{name}: {text}", is_right=answer == total or isinstance(answer, str))


def orders(count: int) -> pa.Table:
    """Return orders numbered from 0, with amounts from 0 to 99."""
    ids = np.arange(count)
    columns = [ids, pa.array(_COUNTRIES).take(pa.array(ids % 3)), ids % 100, np.ones_like(ids)]
    return pa.table(columns, schema=COLUMNS)


def _sum_rows(table: Table) -> int:
    return int(pc.sum(table.snapshot(columns=["amount"])["amount"]).as_py())


def _sum_changes(changes: pa.RecordBatch) -> int:
    """Sum each amount times its row's `_diff`."""
    return int(pc.sum(pc.multiply(changes["amount"], changes["_diff"])).as_py() or 0)


def answers(table: Table, mirror: str) -> Iterator[tuple[str, int | str]]:
    """Yield the sum computed by installed engines, or an install command."""
    if find_spec("polars") and find_spec("deltalake"):
        import polars as pl

        try:
            total = pl.scan_delta(mirror).select(pl.col("amount").sum()).collect().item()
            yield "Polars reads the Delta table, and finds", int(total)
        except OSError as error:  # Polars 2.1 finds no file below a folder with a space.
            yield "Polars cannot read the Delta table", str(error)
    else:
        yield "To read the Delta table by Polars", "pip install polars deltalake"
    if find_spec("duckdb"):
        import duckdb

        relation = duckdb.from_arrow(table.scan(columns=["amount"]))
        yield "DuckDB reads the table, and finds", int(relation.sum("amount").fetchall()[0][0])
    else:
        yield "To read the table by DuckDB", "pip install duckdb"


def what_next(path: str) -> Iterator[tuple[str, str]]:
    """Yield follow-up commands, each with its purpose."""
    at = shlex.quote(path)
    yield f"upsertflow info {at}", "the table in a few numbers"
    yield f"upsertflow changes {at} --from 2", "what the second version changed"
    yield f"upsertflow get {at} 7 --version 1", "an order as it was"
    yield "upsertflow init polars my-project", "a project of your own, with tests, without Java"
    yield f"rm -r {at}", "when you have seen enough"
