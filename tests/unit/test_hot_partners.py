"""A row that very many others point at: what is held is bounded, and the work follows the rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from spark_upsert.errors import CorruptionError
from spark_upsert.plan import agg
from spark_upsert.table.index.index import Index
from spark_upsert.table.state import snapshot as snapshots
from spark_upsert.table.table import Table
from spark_upsert.views import view as ways
from spark_upsert.views.plan_builder import Plan
from spark_upsert.views.relation import LookedUpRows, Step, changes_of
from spark_upsert.views.scan import TableBase
from spark_upsert.views.view import RefreshStrategy, View, timed_pairs_by_piece

PIECE = 2_000

ORDERS = pa.schema({"id": pa.int64(), "customer": pa.int64(), "amount": pa.int64()})
CUSTOMERS = pa.schema({"number": pa.int64(), "name": pa.string()})


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(patch.object(ways, "PIECE_ROWS", PIECE))
        stack.enter_context(patch.object(snapshots, "CHUNK_ROWS", PIECE))
        yield


class Work(NamedTuple):
    """What a step took."""

    changed: int
    """Rows that it changes."""
    looked: int
    """Keys that are looked up."""
    proposed: int
    """Entries that are read of indexes."""
    held: int
    """The most bytes that are held."""


def counted_in(counts: list[int], pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield pieces, and note how many rows each has."""
    for piece in pieces:
        counts.append(piece.num_rows)
        yield piece


class Hot:
    """Orders that are all of one customer, whose name is about to change."""

    def __init__(self, root: Path, orders: int, *more: str) -> None:
        self.root = root
        own = {"indexBy": "customer"}
        table = Table.create(str(root / "orders"), ORDERS, keys=["id"], properties=own)
        numbers = np.arange(orders)
        rows = {"id": numbers, "customer": np.full(orders, 7), "amount": numbers}
        table.upsert(pa.table(rows, schema=ORDERS))
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
        self.customers.upsert(rows)

    def turned(self, how: str) -> Self:
        """Look at the customers, with their orders."""
        of = Plan.of_table(str(self.root / "customers"))
        orders = Plan.of_table(str(self.root / "orders"))
        self.plan = of.join(orders, {"number": "customer"}, how)
        return self

    def step(self) -> Work:
        """Take a step in which the customer's name changes."""
        view = View(self.plan.node)
        before = view.newest()
        self.rename("b")
        looked, held, base = [0], [0], pa.total_allocated_bytes()
        look_up = TableBase.look_up

        def counted(self: TableBase, keys: pa.RecordBatch, version: int | None) -> LookedUpRows:
            found = look_up(self, keys, version)
            looked.append(keys.num_rows)
            held.append(pa.total_allocated_bytes() - base)
            return found

        proposed, iter_keys_having = [0], Index.iter_keys_having

        def noted(
            self: Index, values: pa.Array, *, near: int | None = None
        ) -> tuple[int, Iterator[pa.RecordBatch]]:
            shows, pieces = iter_keys_having(self, values, near=near)
            return shows, counted_in(proposed, pieces)

        count = 0
        with (
            patch.object(TableBase, "look_up", counted),
            patch.object(Index, "iter_keys_having", noted),
        ):
            step = Step(before, view.newest())
            for pairs, _ in timed_pairs_by_piece(
                view.relation, step, RefreshStrategy.LOOK_UPS, rows=1
            ):
                count += len(pairs)
                held.append(pa.total_allocated_bytes() - base)
        return Work(count, sum(looked), sum(proposed), max(held))


@pytest.mark.parametrize("more", [(), ("again",)], ids=["one join", "two joins"])
@pytest.mark.sweep(1)
def test_p7_what_is_held_does_not_grow_with_the_partners_of_a_row(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    few = Hot(tmp_path / "few", 8_000, *more).step()
    many = Hot(tmp_path / "many", 32_000, *more).step()
    assert (few.changed, many.changed) == (8_000, 32_000)
    # Rows that both joins reach are told once: their keys are held meanwhile.
    require_linear(few, many, held=2.0 if more else 1.5)


@pytest.mark.parametrize(
    ("how", "changed"), [("inner", 0), ("left", 1), ("semi", None), ("anti", None)]
)
@pytest.mark.sweep(1)
def test_p7_what_is_held_does_not_grow_with_the_partners_of_a_changed_row(
    tmp_path: Path, how: str, changed: int | None
) -> None:
    few = Hot(tmp_path / "few", 8_000).turned(how).step()
    many = Hot(tmp_path / "many", 32_000).turned(how).step()
    wanted = (1, 1) if changed is None else (8_000 + changed, 32_000 + changed)
    assert (few.changed, many.changed) == wanted
    require_linear(few, many)


def require_linear(few: Work, many: Work, *, held: float = 1.5) -> None:
    """Raise unless four times the partners are four times the work, and held as few were."""
    assert many.looked < 1.2 * 4 * few.looked, "keys are looked up as often as there are partners"
    assert many.proposed < 1.2 * 4 * few.proposed, "an index is read on from piece to piece"
    assert many.held < held * few.held


def test_an_index_that_is_damaged_behind_its_first_piece_is_not_used(tmp_path: Path) -> None:
    hot = Hot(tmp_path, 10_000)
    before = sorted(hot.plan.to_arrow().to_pylist(), key=lambda row: row["id"])
    iter_keys_having = Index.iter_keys_having

    def breaking(self: Index, *asked: pa.Array, **how: int) -> tuple[int, Iterator[pa.RecordBatch]]:
        shows, pieces = iter_keys_having(self, *asked, **how)

        def some() -> Iterator[pa.RecordBatch]:
            yield from islice(pieces, 3)
            raise CorruptionError("a block of the index is not what was written", path="x")

        return shows, some()

    view = View(hot.plan.node)
    at = view.newest()
    hot.rename("b")
    step = Step(at, view.newest())
    with patch.object(Index, "iter_keys_having", breaking):
        found = changes_of(view.relation, step)
    assert sorted(found.old.to_pylist(), key=lambda row: row["id"]) == before
    assert len(found) == 10_000


def test_a_refresh_of_such_a_row_is_right(tmp_path: Path) -> None:
    hot = Hot(tmp_path, 3_000)
    grouped = hot.plan.group_by("name").agg(n=agg.count(), s=agg.sum("amount"))
    kept = str(tmp_path / "kept")
    assert grouped.refresh(kept)
    hot.rename("b")
    assert grouped.refresh(kept)
    wanted = [{"name": "b", "n": 3_000, "s": sum(range(3_000))}]
    assert Plan.of_table(kept).to_arrow().to_pylist() == wanted
