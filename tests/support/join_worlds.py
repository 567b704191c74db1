"""Joins of small random rows, by every operator that joins."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.plan.nodes import (
    ArrowScan,
    HashJoin,
    IndexLookupJoin,
    Join,
    JoinKeys,
    JoinType,
    MergeJoin,
)
from spark_upsert.task import merge_join
from spark_upsert.task.hash_join import HashJoinRows
from spark_upsert.task.lookup_join import ArrowLookup, LookupJoinRows
from spark_upsert.task.merge_join import MergeJoinRows
from tests.support.chains import Chain, Dropping, Scripted, rows_of
from tests.support.operator_rows import (
    VALUES,
    Row,
    alike,
    cut,
    joined_rows,
    key_of,
    some_rows,
    with_waits,
)

AnyJoin = TypeVar("AnyJoin", bound=Join)


class World:
    """Both sides of a join: three sets of splits each, of random rows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        types = self.random.choices(list(VALUES), k=self.random.choice([1, 1, 2]))
        self.left_keys = tuple(f"a{index}" for index in range(len(types)))
        self.right_keys = tuple(f"b{index}" for index in range(len(types)))
        self.keys = list(zip(self.left_keys, self.right_keys, strict=True))
        self.left = pa.schema([*zip(self.left_keys, types, strict=True), ("id", pa.int64())])
        self.right = pa.schema([*zip(self.right_keys, types, strict=True), ("id_r", pa.int64())])
        self.sets = [
            (some_rows(self.random, self.left, 12), some_rows(self.random, self.right, 12))
            for _ in range(3)
        ]

    def scan(self, name: str) -> ArrowScan:
        return ArrowScan(id=name, schema=getattr(self, name))

    def join(self, node: type[AnyJoin], kind: JoinType) -> AnyJoin:
        """Return a plan that joins both sides."""
        return node(
            id="join",
            left=self.scan("left"),
            right=self.scan("right"),
            how=kind,
            on=JoinKeys.pairs(self.left_keys, self.right_keys),
            batch_rows=self.random.choice([1, 2, 100]),
        )

    def ordered(
        self, rows: tuple[list[Row], list[Row]]
    ) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Return both sides of a set as batches that ascend by their keys."""
        left, right = rows
        return (
            cut(self.random, self.left, sorted_by(left, self.left_keys)),
            cut(self.random, self.right, sorted_by(right, self.right_keys)),
        )

    def expected(self, kind: JoinType) -> list[list[str]]:
        return [
            alike(joined_rows(kind, *rows, self.keys, self.right.names, self.left.names))
            for rows in self.sets
        ]


def sorted_by(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """Put rows in the order of their keys; those with a null in it stay where they are."""
    keyed = sorted(
        (row for row in rows if None not in [row[name] for name in names]),
        key=lambda row: key_of(row, names),
        reverse=True,
    )
    return [keyed.pop() if None not in [row[name] for name in names] else row for row in rows]


def merge_joined(world: World, kind: JoinType, *, is_waiting: bool) -> list[list[Row]]:
    lefts, rights = [], list[list[Any]]()
    for rows in world.sets:
        left, right = world.ordered(rows)
        lefts.append(left)
        rights.append(list(right))
    if is_waiting:
        rights = [with_waits(world.random, batches) for batches in rights]
    source = Scripted(world.right, rights)
    plan = world.join(MergeJoin, kind)
    operator = MergeJoinRows(plan, world.left, source, Dropping(right=source).drop_input)
    # The rows that a step looks at are cut, too.
    with patch.object(merge_join, "_STEP_ROWS", world.random.choice([1, 3, 1024])):
        given = Chain([operator], [source]).run(lefts)
    assert all(batch.num_rows <= plan.batch_rows for batches in given for batch in batches)
    return [rows_of(batches) for batches in given]


def hash_joined(world: World, kind: JoinType) -> list[list[Row]]:
    lefts = [cut(world.random, world.left, rows) for rows, _ in world.sets]
    rights = [
        with_waits(world.random, cut(world.random, world.right, rows)) for _, rows in world.sets
    ]
    source = Scripted(world.right, rights)
    plan = world.join(HashJoin, kind)
    operator = HashJoinRows(plan, world.left, source)
    given = Chain([operator], [source]).run(lefts)
    assert all(batch.num_rows <= plan.batch_rows for batches in given for batch in batches)
    return [rows_of(batches) for batches in given]


def lookup_joined(world: World, kind: JoinType, right: list[Row]) -> list[list[Row]]:
    """Look rows up in Arrow rows; the key of what is found is shown, too."""
    rows = pa.Table.from_batches(cut(world.random, world.right, right), world.right)
    lookup = ArrowLookup(rows, world.right_keys, world.right.names)
    plan = IndexLookupJoin(
        id="join",
        input=world.scan("left"),
        how=kind,
        keys=world.left_keys,
        prefetch=world.random.choice([1, 3]),
        batch_rows=world.random.choice([1, 2, 100]),
    )
    chain = Chain([LookupJoinRows(plan, world.left, lookup)])
    given = chain.run([cut(world.random, world.left, left) for left, _ in world.sets])
    chain.close()
    assert all(batch.num_rows <= plan.batch_rows for batches in given for batch in batches)
    return [rows_of(batches) for batches in given]
