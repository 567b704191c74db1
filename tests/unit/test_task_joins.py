"""Joins that end at a barrier: what they drop, what they refuse, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError, MemoryLimitError, PlanError
from spark_upsert.plan.join_keys import ranks_of
from spark_upsert.plan.nodes import ArrowScan, HashJoin, JoinKeys, JoinType, MergeJoin
from spark_upsert.plan.nodes import Join as PlainJoin
from spark_upsert.task import join_output, merge_join
from spark_upsert.task.hash_join import HashJoinRows
from spark_upsert.task.merge_join import MergeJoinRows
from spark_upsert.task.operator import Operator, Signal
from spark_upsert.task.task import Task
from tests.support.chains import Chain, Dropping, Scripted, rows_of

LEFT = pa.schema({"a": pa.int64()})
RIGHT = pa.schema({"b": pa.int64()})

Join = TypeVar("Join", MergeJoin, HashJoin)


def plan(*given: Any, **settings: Any) -> MergeJoin:
    return joining(MergeJoin, *given, **settings)


def joining(
    cls: type[Join],
    kind: JoinType = JoinType.INNER,
    left: pa.Schema = LEFT,
    right: pa.Schema = RIGHT,
    left_keys: Sequence[str] = ("a",),
    right_keys: Sequence[str] = ("b",),
    **settings: Any,
) -> Join:
    return cls(
        id="join",
        left=ArrowScan(id="left", schema=left),
        right=ArrowScan(id="right", schema=right),
        how=kind,
        on=JoinKeys.pairs(tuple(left_keys), tuple(right_keys)),
        **settings,
    )


def merging(node: MergeJoin, right: Scripted, context: Dropping) -> Operator:
    assert isinstance(node.left, ArrowScan)
    return MergeJoinRows(node, node.left.schema, right, context.drop_input)


def hashing(node: HashJoin, right: Scripted) -> Operator:
    assert isinstance(node.left, ArrowScan)
    return HashJoinRows(node, node.left.schema, right)


def batches(schema: pa.Schema, keys: Sequence[int | None], rows: int = 100) -> list[pa.RecordBatch]:
    column = pa.array(keys, pa.int64())
    return [
        pa.RecordBatch.from_arrays([column.slice(begin, rows)], schema=schema)
        for begin in range(0, len(keys), rows)
    ]


class Case(NamedTuple):
    """A merge join of one split on each side, the right one in batches of 100 rows."""

    words: str
    kind: JoinType
    left: Sequence[int]
    right: Sequence[int]
    rows: int
    """How many come out."""
    dropped: list[str]
    right_batches: int
    """How many of the right batches are read."""

    def __str__(self) -> str:
        return self.words


TO_1000 = range(2, 1001)
INNER, OUTER, RIGHTS = JoinType.INNER, JoinType.LEFT, JoinType.RIGHT
FULL, SEMI, ANTI = JoinType.FULL, JoinType.SEMI, JoinType.ANTI

CASES = [
    Case("22 inner: the right side stops early", INNER, [1, 2], TO_1000, 1, ["right"], 1),
    Case("22 left outer: it stops early, too", OUTER, [1, 2], TO_1000, 2, ["right"], 1),
    Case("23 full outer: no early stop", FULL, [1, 2], TO_1000, 1000, [], 10),
    Case("23 right outer: no early stop", RIGHTS, [1, 2], TO_1000, 999, [], 10),
    Case("24 anti: the right side is dropped", ANTI, [1, 2], TO_1000, 1, ["right"], 1),
    Case("semi: no side is dropped", SEMI, [1, 2], TO_1000, 1, [], 10),
    Case("inner: a match is read to its end", INNER, [2], [2] * 250 + [3] * 450, 250, ["right"], 4),
    Case("inner without left rows: nothing is read", INNER, [], TO_1000, 0, ["right"], 0),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_drained_left_side_may_stop_the_right_one(case: Case) -> None:
    right = Scripted(RIGHT, [batches(RIGHT, case.right)])
    context = Dropping(right=right)
    (given,) = Chain([merging(plan(case.kind), right, context)], [right]).run(
        [batches(LEFT, case.left)], is_ended=False
    )
    assert len(rows_of(given)) == case.rows
    assert context.asked == case.dropped
    assert right.taken == case.right_batches


@pytest.mark.parametrize("kind", JoinType, ids=lambda kind: kind.value)
def test_a_drained_right_side_may_stop_the_left_one(kind: JoinType) -> None:
    right = Scripted(RIGHT, [batches(RIGHT, [1])])
    context = Dropping()
    driver = Chain([merging(plan(kind), right, context)], [right])
    # Fed and not drained: the left side goes on.
    list(driver.feed(batches(LEFT, range(1, 1001))))
    assert context.asked == (["left"] if kind in (INNER, RIGHTS) else [])


def test_30_behind_the_barrier_both_sides_are_wanted_again() -> None:
    right = Scripted(RIGHT, [batches(RIGHT, TO_1000), batches(RIGHT, [1, 2])])
    context = Dropping(right=right)
    given = Chain([merging(plan(), right, context)], [right]).run(
        [batches(LEFT, [1, 2]), batches(LEFT, [1, 2])], is_ended=False
    )
    assert [[row["b"] for row in rows_of(each)] for each in given] == [[2], [1, 2]]
    assert context.asked == ["right", "right"]


def test_the_end_of_the_left_side_stops_the_right_one_as_a_barrier_does() -> None:
    right = Scripted(RIGHT, [batches(RIGHT, TO_1000)], is_open=True)
    context = Dropping(right=right)
    driver = Chain([merging(plan(), right, context)], [right])
    given = [*driver.feed(batches(LEFT, [1, 2])), *driver.end()]
    assert (rows_of(given), context.asked) == ([{"a": 2, "b": 2}], ["right"])


def test_what_a_merge_join_gives_is_in_the_order_of_the_keys() -> None:
    right = Scripted(RIGHT, [batches(RIGHT, [0, 2, 2, 5], rows=1)])
    (given, _) = Chain([merging(plan(FULL), right, Dropping())], [right]).run(
        [batches(LEFT, [1, 2, 2, 4, 6], rows=2)]
    )
    found = [(row["a"], row["b"]) for row in rows_of(given)]
    assert found == [
        (None, 0), (1, None), (2, 2), (2, 2), (2, 2), (2, 2), (4, None), (None, 5), (6, None)
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [1, 100], ids=["across batches", "within a batch"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_side_that_does_not_ascend_is_an_error_that_names_it(side: str, rows: int) -> None:
    keys = {"left": [1, 2, 3], "right": [1, 2, 3]} | {side: [3, None, 2]}
    right = Scripted(RIGHT, [batches(RIGHT, keys["right"], rows)])
    driver = Chain([merging(plan(), right, Dropping())], [right])
    with pytest.raises(
        DataError, match=f"node 'join': the {side} side must ascend by ., but 2 comes behind 3"
    ) as caught:
        driver.run([batches(LEFT, keys["left"], rows)])
    assert caught.value.fields == {"side": side, "node": "join"}


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_large_batch_beside_small_ones_is_not_looked_at_with_each_of_them(side: str) -> None:
    looked_at: list[int] = []

    def counted(left: list[pa.Array], right: list[pa.Array]) -> Any:
        looked_at.append(len(left[0]) + len(right[0]))
        return ranks_of(left, right)

    few, many = (range(0, 600, 3), 1), (range(0, 20_000, 2), 100_000)
    left, right_rows = (few, many) if side == "left" else (many, few)
    right = Scripted(RIGHT, [batches(RIGHT, *right_rows)])
    driver = Chain([merging(plan(), right, Dropping())], [right])
    with patch.object(merge_join, "ranks_of", counted):
        (given, _) = driver.run([batches(LEFT, *left)])
    assert len(rows_of(given)) == 100
    assert sum(looked_at) < 300 * 2 * 1024, "not 10 000 rows with each of 200"


def test_a_semi_join_holds_one_right_row_of_a_key() -> None:
    right = Scripted(RIGHT, [batches(RIGHT, [1] * 1000)])
    driver = Chain([merging(plan(SEMI, memory_bytes_max=900), right, Dropping())], [right])
    (given, _) = driver.run([batches(LEFT, [1] * 5)])
    assert len(rows_of(given)) == 5


def test_a_left_row_with_very_many_matches_comes_in_small_batches() -> None:
    right = Scripted(RIGHT, [batches(RIGHT, [1] * 1000)])
    driver = Chain([merging(plan(batch_rows=64), right, Dropping())], [right])
    (given, _) = driver.run([batches(LEFT, [1] * 50)])
    assert {batch.num_rows for batch in given[:-1]} == {64}
    assert sum(batch.num_rows for batch in given) == 50_000


WIDE = pa.schema({"b": pa.int64(), "text": pa.string()})
LONG = pa.schema({"a": pa.int64(), "parts": pa.list_(pa.string())})


@pytest.mark.parametrize("way", ["merge", "hash"])
@pytest.mark.parametrize("wide_side", ["left", "right", "neither"])
def test_wide_rows_come_in_batches_of_some_bytes(way: str, wide_side: str) -> None:
    """A few rows of a thousand bytes match each of many: by rows alone all would be one batch."""
    long, count = 1_000, 200
    text = "x" * (long if wide_side == "right" else 1)
    parts = ["y" * 100] * (10 if wide_side == "left" else 0)
    left = pa.record_batch({"a": [1] * count, "parts": [parts] * count}, schema=LONG)
    right = pa.record_batch(
        {"b": [1] * 40 + [2], "text": [text] * 40 + ["z" * 100_000]}, schema=WIDE
    )
    script = Scripted(WIDE, [[right]])
    with patch.object(join_output, "BATCH_BYTES", 50_000):
        if way == "merge":
            node = plan(JoinType.RIGHT, LONG, WIDE)
            driver = Chain([merging(node, script, Dropping())], [script])
        else:
            hashed = joining(HashJoin, JoinType.RIGHT, LONG, WIDE)
            driver = Chain([hashing(hashed, script)], [script])
        (given, _) = driver.run([[left]])
    assert sum(batch.num_rows for batch in given) == 40 * count + 1
    alone = [batch.num_rows for batch in given if "z" * 100_000 in batch.column("text").to_pylist()]
    assert alone == [1], "what is larger is a batch of its own"
    sizes = [batch.nbytes for batch in given if batch.num_rows > 1]
    assert max(sizes) < 80_000
    few = 40 * count * long // 50_000 if wide_side != "neither" else 2
    assert few // 2 <= len(sizes) <= few * 2, "and they are about as large as they may be"


INT32, TEXT = pa.schema({"b": pa.int32()}), pa.schema({"b": pa.string()})
LISTS = pa.schema({"a": pa.list_(pa.int8())}), pa.schema({"b": pa.list_(pa.int8())})

REFUSED = {
    "'a' is int64 and 'b' is int32": plan(right=INT32),
    "'a' is int64 and 'b' is string": plan(right=TEXT),
    "there is no column 'x' among a": plan(left_keys=["x"]),
    "there is no column 'y' among b": plan(right_keys=["y"]),
    "both sides have a column 'a'": plan(right=LEFT, right_keys=["a"]),
    "'a' cannot be joined on, because it is list": plan(left=LISTS[0], right=LISTS[1]),
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_join_that_cannot_be_is_refused_by_name(words: str) -> None:
    node = REFUSED[words]
    assert isinstance(node.left, ArrowScan)
    assert isinstance(node.right, ArrowScan)
    source = Scripted(node.right.schema, [])
    with pytest.raises(PlanError, match=f"node 'join': .*{words}"):
        merging(node, source, Dropping())
    sides = (node.left.schema, node.right.schema, node.left_keys, node.right_keys)
    hashed = joining(HashJoin, JoinType.INNER, *sides)
    with pytest.raises(PlanError, match=f"node 'join': .*{words}"):
        hashing(hashed, source)


def test_a_semi_join_may_have_the_same_names_on_both_sides() -> None:
    right = Scripted(LEFT, [batches(LEFT, [1])])
    node = plan(SEMI, right=LEFT, right_keys=["a"])
    (given, _) = Chain([merging(node, right, Dropping())], [right]).run([batches(LEFT, [1, 2])])
    assert rows_of(given) == [{"a": 1}]


@pytest.mark.parametrize("kind", JoinType, ids=lambda kind: kind.value)
def test_columns_of_an_outer_side_may_be_null(kind: JoinType) -> None:
    left, right = (pa.schema([pa.field(name, pa.int64(), nullable=False)]) for name in "ab")
    joined = merging(plan(kind, left, right), Scripted(right, []), Dropping()).schema
    names = [field.name for field in joined if field.nullable]
    assert names == {OUTER: ["b"], RIGHTS: ["a"], FULL: ["a", "b"]}.get(kind, [])


def test_a_hash_join_takes_left_rows_once_its_right_side_is_whole() -> None:
    right = Scripted(RIGHT, [[*batches(RIGHT, [1, 2], 1), Signal.WAIT]])
    operator = hashing(joining(HashJoin), right)
    assert not operator.needs_input()
    assert operator.output() is None
    assert not operator.needs_input(), "the right side said that it waits"
    assert operator.output() is None
    assert operator.needs_input()


@pytest.mark.parametrize("cls", [MergeJoin, HashJoin], ids=lambda cls: cls.kind)
def test_right_rows_beyond_the_memory_limit_are_an_error_that_names_the_node(cls: Any) -> None:
    """A merge join holds the right rows of one key, and a hash join all of them."""
    is_hashed = cls is HashJoin
    right = Scripted(RIGHT, [batches(RIGHT, range(1000) if is_hashed else [1] * 1000)])
    node = joining(cls, memory_bytes_max=4000)
    operator = hashing(node, right) if is_hashed else merging(node, right, Dropping())
    words = "the right side has" if is_hashed else "the right rows of one key"
    with pytest.raises(MemoryLimitError, match=f"node 'join': {words}") as caught:
        Chain([operator], [right]).run([batches(LEFT, [1])])
    assert caught.value.fields["limit"] == 4000
    assert right.taken < 10, "the join stops at the batch with which the rows are too large"


def test_a_hash_join_keeps_the_order_of_the_left_rows_and_ends_with_lone_right_rows() -> None:
    right = Scripted(RIGHT, [batches(RIGHT, [9, 2, None, 1, 2, 8])])
    (given, _) = Chain([hashing(joining(HashJoin, FULL), right)], [right]).run(
        [batches(LEFT, [2, None, 1, 7], 2)]
    )
    assert [tuple(row.values()) for row in rows_of(given)] == [
        (2, 2), (2, 2), (None, None), (1, 1), (7, None), (None, 9), (None, None), (None, 8)
    ]  # fmt: skip


def test_a_join_of_a_view_joins_whole_numbers_of_other_widths() -> None:
    left = pa.table({"a": [1, 300]})
    right = pa.table({"b": pa.array([1, 2], pa.int8()), "c": ["one", "two"]})
    scans = ArrowScan(id="left", schema=left.schema), ArrowScan(id="right", schema=right.schema)
    with Task(joined_in_a_view(*scans, JoinType.LEFT)) as task:
        task.add_split("left", left)
        task.add_split("right", right)
        task.request_barrier()
        found = pa.Table.from_batches(task.iter_batches())
    assert found.to_pylist() == [{"a": 1, "c": "one"}, {"a": 300, "c": None}]
    assert found.schema.types == [pa.int64(), pa.string()]
    for how in (JoinType.FULL, JoinType.RIGHT):
        with pytest.raises(PlanError, match=r"keys of one type .* 'a' is int64 and 'b' is int8"):
            Task(joined_in_a_view(*scans, how))


def joined_in_a_view(left: ArrowScan, right: ArrowScan, how: JoinType) -> PlainJoin:
    return PlainJoin(id="join", left=left, right=right, how=how, on=JoinKeys.pairs(("a",), ("b",)))


def test_close_in_the_middle_of_a_match_releases_both_sides() -> None:
    for is_hashed in (False, True):
        right = Scripted(RIGHT, [batches(RIGHT, [1] * 1000)])
        hashed = hashing(joining(HashJoin, batch_rows=1), right)
        operator = hashed if is_hashed else merging(plan(batch_rows=1), right, Dropping())
        driver = Chain([operator], [right])
        next(iter(driver.barrier(batches(LEFT, [1] * 3))))
        driver.close()
        assert right.is_closed
        assert operator.output() is None
