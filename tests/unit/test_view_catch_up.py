"""What it takes to catch up: work that follows the epochs behind, each as much as the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.views.plan_builder import Plan
from tests.support.view_queries import Query, folded

ROWS = 40

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"number": pa.int64(), "name": pa.string()})


class Behind:
    """A stream of orders with their customers, and epochs that it has yet to read."""

    def __init__(self, root: Path, how: str) -> None:
        self.orders = Table.create(str(root / "orders"), ORDERS, keys=["id"])
        self.customers = Table.create(str(root / "customers"), CUSTOMERS, keys=["number"])
        self.orders.alter(self.orders.schema, {"indexBy": "customer"})
        self._write(0)
        orders, customers = (Plan.of_table(str(root / name)) for name in ("orders", "customers"))
        if how == "fans out":
            self.plan = customers.join(orders, {"number": "customer"}, "left")
        else:
            self.plan = orders.join(customers, {"customer": "number"}, "left")
        self.query = Query(self.plan.node)
        self.rows = self.query.all()

    def fall_behind(self, epochs: int) -> None:
        """Write epochs of both tables; the index shows the newest version."""
        for number in range(1, epochs + 1):
            self._write(number)

    def _write(self, number: int) -> None:
        ids = range(ROWS) if number == 0 else [number % ROWS]
        if number % 2 == 0:
            customer = [(each + number) % ROWS for each in ids]
            columns = {"id": list(ids), "customer": customer, "amount": [number] * len(ids)}
            self.orders.upsert(pa.table(columns, schema=ORDERS))
        if number == 0 or number % 2:
            names = [f"name {number}"] * len(ids)
            self.customers.upsert(pa.table({"number": list(ids), "name": names}, schema=CUSTOMERS))

    def catch_up(self, **limits: str) -> Counter[str]:
        """Read all that lies ahead, by default in one batch; return how much of what it took."""
        self.query.start(**limits)
        with counted() as work:
            self.rows += self.query.all()
        wanted = {tuple(row.values()) for row in self.plan.to_arrow().to_pylist()}
        assert folded(self.rows) == wanted
        return work


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the keys that are looked up, and the runs that are asked or read."""
    work: Counter[str] = Counter()
    find, parts = Snapshot.find, Snapshot.parts

    def counted_find(self: Snapshot, hashes: Any, *rest: Any) -> Any:
        work["keys"] += len(hashes)
        work["runs"] += len(self.manifest.slices)
        return find(self, hashes, *rest)

    def counted_parts(self: Snapshot, *where: Any) -> Any:
        work["runs"] += len(self.manifest.slices)
        return parts(self, *where)

    with (
        patch.object(Snapshot, "find", counted_find),
        patch.object(Snapshot, "parts", counted_parts),
    ):
        yield work


@pytest.mark.parametrize("how", ["enriched", "fans out"])
@pytest.mark.sweep(1)
def test_p7_an_epoch_costs_the_same_however_many_are_behind(tmp_path: Path, how: str) -> None:
    few, many = Behind(tmp_path / "few", how), Behind(tmp_path / "many", how)
    few.fall_behind(10)
    many.fall_behind(80)
    work = few.catch_up(), many.catch_up()
    for what in ("keys", "runs"):
        assert work[1][what] / 80 < 1.2 * work[0][what] / 10, what


@pytest.mark.parametrize("how", ["enriched", "fans out"])
@pytest.mark.slow
def test_p7_a_limited_batch_does_not_look_at_what_lies_behind_it(tmp_path: Path, how: str) -> None:
    """An index that leads is read as it was: it is not bridged back from where it is."""
    few, many = Behind(tmp_path / "few", how), Behind(tmp_path / "many", how)
    few.fall_behind(8)
    many.fall_behind(48)
    work = [each.catch_up(maxEpochsPerTrigger="2")["keys"] for each in (few, many)]
    assert work[1] / 48 < 1.2 * work[0] / 8


def test_a_batch_tells_each_epoch_by_itself(tmp_path: Path) -> None:
    behind = Behind(tmp_path, "enriched")
    first = max(row["_commit_version"] for row in behind.rows)
    behind.fall_behind(7)
    behind.catch_up()
    versions = {row["_commit_version"] for row in behind.rows}
    assert versions == set(range(first, first + 8))
