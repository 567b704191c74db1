"""A row that very many others point at: what is held is bounded, and the work follows the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.state import snapshot as snapshots
from spark_upsert.table import Table
from spark_upsert.views import agg, ways
from spark_upsert.views.builder import Plan
from spark_upsert.views.relation import Looked, Step
from spark_upsert.views.table_base import TableBase
from spark_upsert.views.view import View
from spark_upsert.views.ways import Way, timed_pairs_by_piece

PIECE = 2_000

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"number": pa.int64(), "name": pa.string()})


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(ways, "PIECE_ROWS", PIECE))
        stack.enter_context(patch.object(snapshots, "CHUNK_ROWS", PIECE))
        yield


class Hot:
    """Orders that are all of one customer, whose name is about to change."""

    def __init__(self, root: Path, orders: int, *more: str) -> None:
        self.root = root
        own = {"indexBy": "customer"}
        table = Table.create(str(root / "orders"), ORDERS, keys=["id"], properties=own)
        numbers = np.arange(orders)
        rows = {"id": numbers, "customer": np.full(orders, 7), "amount": numbers}
        table.append(pa.table(rows, schema=ORDERS))
        self.customers = Table.create(str(root / "customers"), CUSTOMERS, keys=["number"])
        self.rename("a")
        of = Plan.of_table(str(root / "customers"))
        self.plan = Plan.of_table(str(root / "orders"))
        self.plan = self.plan.join(of, {"customer": "number"}, "left")
        for name in more:  # A join above, whose left side finds what it touches by the one below.
            other = of.select(other="number", **{name: "name"})
            self.plan = self.plan.join(other, {"customer": "other"}, "left")

    def rename(self, name: str) -> None:
        rows = pa.table({"number": [7, 8], "name": [name, name]}, schema=CUSTOMERS)
        self.customers.append(rows)

    def step(self) -> tuple[int, int, int]:
        """Return how many rows change, how many keys are looked up, and the most bytes held."""
        view = View(self.plan.node)
        before = view.newest()
        self.rename("b")
        looked, held, base = [0], [0], pa.total_allocated_bytes()
        look_up = TableBase.look_up

        def counted(self: TableBase, keys: pa.RecordBatch, version: int | None) -> Looked:
            found = look_up(self, keys, version)
            looked.append(keys.num_rows)
            held.append(pa.total_allocated_bytes() - base)
            return found

        count = 0
        with patch.object(TableBase, "look_up", counted):
            step = Step(before, view.newest())
            for pairs, _ in timed_pairs_by_piece(view.relation, step, Way.LOOK_UPS, rows=1):
                count += len(pairs)
                held.append(pa.total_allocated_bytes() - base)
        return count, sum(looked), max(held)


@pytest.mark.parametrize("more", [(), ("again",)], ids=["one join", "two joins"])
def test_p7_what_is_held_does_not_grow_with_the_partners_of_a_row(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    few = Hot(tmp_path / "few", 8_000, *more).step()
    many = Hot(tmp_path / "many", 32_000, *more).step()
    assert (few[0], many[0]) == (8_000, 32_000)
    assert many[1] < 1.2 * 4 * few[1], "keys are looked up as often as there are partners"
    assert many[2] < 2 * few[2]


def test_a_refresh_of_such_a_row_is_right(tmp_path: Path) -> None:
    hot = Hot(tmp_path, 3_000)
    grouped = hot.plan.group_by("name").agg(n=agg.count(), s=agg.sum("amount"))
    kept = str(tmp_path / "kept")
    assert grouped.refresh(kept)
    hot.rename("b")
    assert grouped.refresh(kept)
    wanted = [{"name": "b", "n": 3_000, "s": sum(range(3_000))}]
    assert Plan.of_table(kept).to_arrow().to_pylist() == wanted
