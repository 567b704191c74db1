"""A view is read by a task that is kept, with its plan bound, from split to split."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.options.views import ViewOptions
from spark_upsert.plan.nodes import JoinType, Node
from spark_upsert.streams.inputs.view import ViewInput
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.reads import views
from spark_upsert.streams.reads.views import ViewSplit
from spark_upsert.table.table import Table
from spark_upsert.task.lifecycle import Phase
from spark_upsert.task.task import Task, TaskPool
from spark_upsert.views.view import View
from tests.unit.test_view_source import ORDERS, Shop


def some_shop(root: Path) -> Shop:
    """Return two customers with an order each."""
    found = Shop(root)
    found.customer((7, "ada"), (8, "bob"))
    found.order((1, 7, 10), (2, 8, 20))
    return found


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return some_shop(tmp_path)


@pytest.fixture(autouse=True)
def tasks() -> Iterator[list[Task]]:
    """The tasks that are made, of a pool that no other test has used."""
    made: list[Task] = []

    def make(key: views._ReadBinding) -> Task:
        made.append(views._task(key))
        return made[-1]

    with patch.object(views, "TASKS", TaskPool(make)):
        yield made


class Batches:
    """The batches of a stream over a view, each split of which is read as a worker does."""

    def __init__(self, plan: Node, **options: str) -> None:
        given = {"plan": plan.to_json(), "readChangeFeed": "true", **options}
        self.input = ViewInput(ViewOptions.parse(given))
        self.at: Position | None = None

    def splits(self) -> list[ViewSplit]:
        end = self.input.backlog(self.at, self.input.head()).end()
        found = self.input.splits(self.at, end)
        self.at = end
        return found

    def read(self, split: ViewSplit) -> Generator[pa.RecordBatch]:
        reader = pickle.loads(pickle.dumps(self.input))
        yield from reader.read(split)

    def next(self) -> list[tuple[int, str | None, int]]:
        batches = [batch for split in self.splits() for batch in self.read(split)]
        rows = [row for batch in batches for row in batch.to_pylist()]
        return [(row["id"], row["name"], row["_diff"]) for row in rows]


def test_the_next_batch_has_the_same_task_and_plan_and_a_stretch_ends_with_a_barrier(
    shop: Shop, tasks: list[Task]
) -> None:
    batches = Batches(shop.plan())
    assert sorted(batches.next()) == [(1, "ada", 1), (2, "bob", 1)]
    shop.order((3, 7, 30))
    shop.customer((8, "eve"))
    with (
        patch.object(views, "open_view", side_effect=AssertionError("bound again")),
        patch.object(View, "is_bound", autospec=True, side_effect=View.is_bound) as looked,
    ):
        assert batches.next() == [(3, "ada", 1), (2, "bob", -1), (2, "eve", 1)]
    assert looked.call_count == 1, "tables are looked at once for each split"
    shop.customer((7, "zoe"))
    assert sorted(batches.next()) == [(1, "ada", -1), (1, "zoe", 1), (3, "ada", -1), (3, "zoe", 1)]
    [task] = tasks
    assert task.statistics.barriers == task.statistics.splits.finished == 3


def test_a_table_that_was_made_anew_in_the_same_place_is_read_itself(shop: Shop) -> None:
    assert len(Batches(shop.plan()).next()) == 2
    for name in ("orders", "customers"):
        shutil.rmtree(shop.root / name)
    again = Shop(shop.root)
    again.customer((7, "new"))
    again.order((9, 7, 10))
    assert Batches(shop.plan()).next() == [(9, "new", 1)]


def test_a_table_that_is_gone_is_told_of_and_then_one_comes(shop: Shop) -> None:
    first = Batches(shop.plan())
    [split] = first.splits()
    assert list(first.read(split))
    shutil.rmtree(shop.root / "orders")
    with pytest.raises(Exception, match="orders"):
        list(first.read(split))
    shop.orders = Table.create(str(shop.root / "orders"), ORDERS, keys=["id"])
    shop.order((4, 8, 1))
    assert Batches(shop.plan()).next() == [(4, "bob", 1)]


def test_a_table_that_gained_a_column_is_bound_anew(shop: Shop, tasks: list[Task]) -> None:
    batches = Batches(shop.plan())
    batches.next()
    columns = ORDERS.append(pa.field("note", pa.string()))
    shop.orders.alter(replace(shop.orders.schema, columns=columns))
    rows = {"id": [5], "customer": [8], "amount": [1], "note": ["x"]}
    shop.orders.upsert(pa.table(rows, schema=columns))
    with patch.object(views, "open_view", wraps=views.open_view) as opened:
        assert batches.next() == [(5, "bob", 1)]
    assert opened.call_count == 1
    assert len(tasks) == 1


def test_views_of_other_plans_have_rows_of_their_own(shop: Shop) -> None:
    left, inner = Batches(shop.plan(JoinType.LEFT)), Batches(shop.plan(JoinType.INNER))
    shop.order((3, 9, 30))
    assert (3, None, 1) in left.next()
    assert (3, None, 1) not in inner.next()


def test_a_split_that_is_left_early_leaves_no_task_behind(shop: Shop, tasks: list[Task]) -> None:
    batches = Batches(shop.plan())
    [split] = batches.splits()
    reading = batches.read(split)
    assert len(list(islice(reading, 1))) == 1
    reading.close()
    assert tasks[0].phase is Phase.ABORTED
    assert len(list(batches.read(split))) == 1
    assert len(tasks) == 2
