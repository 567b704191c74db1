"""Tasks that are used again, and the splits of the connector that are read by them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_upsert.errors import CorruptionError, PlanError
from spark_upsert.options.read import ReadOptions
from spark_upsert.plan.nodes import Node
from spark_upsert.streams.reads import read_split as serving
from spark_upsert.streams.reads.read_split import READ, read_split
from spark_upsert.streams.reads.splits import Split, changes_splits, rows_splits
from spark_upsert.table.table import Table
from spark_upsert.task import Limit, Phase, TableScan, Task
from spark_upsert.task.task import TaskPool
from tests.support.tasks import Boom, numbers, scan, values_of

ONE, OTHER = scan("one"), scan("other")


@pytest.fixture
def made() -> list[Task]:
    return []


@pytest.fixture
def pool(made: list[Task]) -> TaskPool[Node]:
    def make(plan: Node) -> Task:
        made.append(Task(plan))
        return made[-1]

    return TaskPool(make, idle_max=2)


def use(pool: TaskPool[Node], plan: Node) -> Task:
    with pool.lend(plan) as task:
        task.add_split(plan.id, numbers(1))
        task.request_barrier()
        assert values_of(task.iter_batches()) == [1]
    return task


def test_a_task_is_used_again_and_by_one_at_once(pool: TaskPool[Node], made: list[Task]) -> None:
    assert use(pool, ONE) is use(pool, scan("one")), "an equal plan is the same"
    assert use(pool, OTHER) is not made[0]
    assert len(made) == 2
    assert made[0].statistics.barriers == 2
    with pool.lend(ONE) as first, pool.lend(ONE) as second:
        assert first is not second


def test_what_is_kept_has_a_bound(pool: TaskPool[Node], made: list[Task]) -> None:
    for name in ("a", "b", "c"):
        use(pool, scan(name))
    assert len(pool) == 2
    assert [task.phase for task in made] == [Phase.ABORTED, Phase.OPEN, Phase.OPEN]


@pytest.mark.parametrize("is_raised", [True, False], ids=["by an error", "in mid-barrier"])
def test_a_task_that_did_not_come_to_its_barrier_is_not_used_again(
    pool: TaskPool[Node], made: list[Task], is_raised: bool
) -> None:
    try:
        with pool.lend(ONE) as task:
            task.add_split("one", numbers(1, 2))
            task.request_barrier()
            task.next()
            if is_raised:
                raise Boom
    except Boom:
        pass
    assert len(pool) == 0
    assert made[0].phase is Phase.ABORTED


# -- the connector ---------------------------------------------------------------------------

COLUMNS = pa.schema({"id": pa.int64(), "v": pa.int64()})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Three epochs, of which the second is an overwrite: three stretches."""
    table = Table.create(str(tmp_path / "t"), COLUMNS, keys=["id"])
    for number, overwrite in enumerate([False, True, False]):
        rows = pa.table({"id": [1, 2, number + 3], "v": [number] * 3})
        table.upsert(rows, overwrite=overwrite)
    return table


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    made: list[Task] = []

    def make(plan: Node) -> Task:
        made.append(Task(plan, readers={READ: serving._read}))
        return made[-1]

    monkeypatch.setattr(serving, "TASKS", TaskPool(make))
    return made


def options(table: Table, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": table.store.url, "splits": "1", **given})


def read(table: Table, split: Split, how: ReadOptions) -> Iterator[pa.RecordBatch]:
    return read_split(table.store, split, how, ("id", "v"))


def test_a_stretch_ends_with_a_barrier_and_the_next_split_has_the_same_task(
    table: Table, tasks: list[Task]
) -> None:
    how = options(table, readChangeFeed="true")
    [split] = changes_splits(table.log, how, 0, table.log.head().upper)
    assert len(split.stretches) == 3
    first = values_of(read(table, split, how), "_commit_version")
    assert sorted(set(first)) == [1, 2, 3]
    assert values_of(read(table, split, how), "_commit_version") == first
    [task] = tasks
    assert task.statistics.barriers == 6
    assert task.statistics.splits.finished == 6
    assert task.statistics.rows == 2 * len(first)


def test_who_stops_reading_leaves_nothing_open(table: Table, tasks: list[Task]) -> None:
    how = options(table, readChangeFeed="true")
    [split] = changes_splits(table.log, how, 0, table.log.head().upper)
    rows = read(table, split, how)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert [task.phase for task in tasks] == [Phase.ABORTED]
    assert list(read(table, split, how))
    assert len(tasks) == 2, "it was not used again"


def test_an_error_of_a_read_is_told_as_it_is(table: Table, tasks: list[Task]) -> None:
    how = options(table)
    [split] = rows_splits(table.log.head(), how)
    for path in (Path(table.store.url) / "data").iterdir():
        path.unlink()
    with pytest.raises(CorruptionError) as caught:
        list(read(table, split, how))
    assert "node" not in caught.value.fields, "of one scan no node is told"
    assert [task.phase for task in tasks] == [Phase.FAILED]


def test_a_scan_without_columns_stands_alone() -> None:
    plan = Limit(id="few", input=TableScan(id="t"), count=1)
    with pytest.raises(PlanError, match="node 't': a table_scan without a schema stands below"):
        Task(plan, readers={"t": iter})
