"""Random plans of every node, their answers in plain Python, and a task run step by step.

The answers go by batches, because a union takes batches in turn; every operator cuts them by the
rows alone. Times do not come into it: which driver goes next is drawn, a look-up is done when it is
drawn, and what cannot move any more has hung.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from spark_upsert.task import (
    Aggregate,
    ArrowLookup,
    ArrowScan,
    AssignUniqueId,
    Filter,
    Group,
    HashJoin,
    IndexLookupJoin,
    JoinKeys,
    JoinType,
    Limit,
    LocalPartition,
    MergeJoin,
    MixedUnion,
    Node,
    Project,
    ProjectedColumn,
    Task,
    Values,
    lookup_join,
)
from spark_upsert.task.lifecycle import Phase

Row = tuple[int | None, ...]
Batches = list[list[Row]]
STEPS_MAX = 200_000
"""A task that makes so many steps for one set of splits hangs."""

INT = pa.int64()
NAMES = "abcdefgh"


def schema_of(names: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, INT) for name in names])


def table_of(names: Sequence[str], rows: Sequence[Row]) -> pa.RecordBatch:
    columns = [pa.array([row[at] for row in rows], INT) for at in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(names))


@dataclass(slots=True)
class Side:
    """A node with the names of its columns, and whether it ascends by the first of them."""

    node: Node
    names: list[str]
    is_sorted: bool


@dataclass(slots=True)
class TaskWorld:
    """A plan drawn by a seed, with what it is fed."""

    seed: int
    random: random.Random = field(init=False)
    plan: Node = field(init=False)
    lookups: dict[str, ArrowLookup] = field(default_factory=dict)
    found: dict[str, list[Row]] = field(default_factory=dict)
    """The rows that a look-up finds keys in."""
    scans: dict[str, bool] = field(default_factory=dict)
    """Whether the splits of a scan ascend, by its name."""
    count: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.plan = self.side(self.random.choice([2, 3, 4]), is_sorted=False).node

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def batch_rows(self) -> int:
        return self.random.choice([1, 2, 3, 100])

    # -- plans

    def side(self, depth: int, *, is_sorted: bool) -> Side:
        """Return a side; one that ascends, if that is wanted."""
        side = self.leaf(is_sorted) if not depth else self.above(depth - 1, is_sorted=is_sorted)
        if self.random.random() < 0.35:
            count, offset = self.random.choice([0, 1, 2, 5, 9, 20]), self.random.choice([0, 0, 2])
            limit = Limit(id=self.name(), input=side.node, count=count, offset=offset)
            side = Side(limit, side.names, side.is_sorted)
        return side

    def leaf(self, is_sorted: bool) -> Side:
        name = self.name()
        names = [f"{name}_{letter}" for letter in NAMES[:2]]
        if self.random.random() < 0.15:
            rows = pa.Table.from_batches([table_of(names, self.rows(is_sorted, 5))])
            return Side(Values(id=name, rows=rows), names, is_sorted)
        self.scans[name] = is_sorted
        return Side(ArrowScan(id=name, schema=schema_of(names)), names, is_sorted)

    def above(self, depth: int, *, is_sorted: bool) -> Side:
        kinds = [self.filtered, self.projected, self.numbered, self.joined, self.merged]
        kinds += [self.looked_up, self.clustered]
        if not is_sorted:
            kinds += [self.grouped, self.united, self.united]
        return self.random.choice(kinds)(depth, is_sorted)

    def filtered(self, depth: int, is_sorted: bool) -> Side:
        side = self.side(depth, is_sorted=is_sorted)
        where = f"{self.random.choice(side.names)} > {self.random.choice([-1, 0, 1])}"
        return Side(
            Filter(id=self.name(), input=side.node, where=where), side.names, side.is_sorted
        )

    def projected(self, depth: int, is_sorted: bool) -> Side:
        return self.renamed(self.side(depth, is_sorted=is_sorted), 3)

    def renamed(self, side: Side, most: int) -> Side:
        """Return the first columns under other names."""
        name = self.name()
        names = [f"{name}_{letter}" for letter in NAMES[: min(most, len(side.names))]]
        columns = tuple(map(ProjectedColumn, names, side.names))
        return Side(Project(id=name, input=side.node, columns=columns), names, side.is_sorted)

    def numbered(self, depth: int, is_sorted: bool) -> Side:
        side = self.side(depth, is_sorted=is_sorted)
        name = self.name()
        node = AssignUniqueId(id=name, input=side.node, column=name)
        return Side(node, [*side.names, name], side.is_sorted)

    def joined(self, depth: int, is_sorted: bool) -> Side:
        left = self.side(depth, is_sorted=is_sorted)
        return self.join(HashJoin, left, self.side(depth, is_sorted=False), is_sorted)

    def merged(self, depth: int, is_sorted: bool) -> Side:
        left, right = (self.side(depth, is_sorted=True) for _ in range(2))
        return self.join(MergeJoin, left, right, is_sorted)

    def join(
        self, kind: type[HashJoin | MergeJoin], left: Side, right: Side, is_sorted: bool
    ) -> Side:
        kinds = [JoinType.INNER, JoinType.LEFT, JoinType.SEMI, JoinType.ANTI]
        if not is_sorted:
            kinds += [JoinType.RIGHT, JoinType.FULL]
        join = self.random.choice(kinds)
        node = kind(
            id=self.name(),
            left=left.node,
            right=right.node,
            how=join,
            on=(JoinKeys(left.names[0], right.names[0]),),
            batch_rows=self.batch_rows(),
        )
        is_alone = join in (JoinType.SEMI, JoinType.ANTI)
        names = left.names if is_alone else [*left.names, *right.names]
        return Side(node, names, left.is_sorted and join not in (JoinType.RIGHT, JoinType.FULL))

    def looked_up(self, depth: int, is_sorted: bool) -> Side:
        side = self.side(depth, is_sorted=is_sorted)
        name = self.name()
        rows = self.rows(False, 6)
        columns = [f"{name}_key", f"{name}_value"]
        self.found[name] = rows
        table = pa.Table.from_batches([table_of(columns, rows)])
        self.lookups[name] = ArrowLookup(table, columns[:1], columns[1:])
        node = IndexLookupJoin(
            id=name,
            input=side.node,
            how=self.random.choice([JoinType.INNER, JoinType.LEFT]),
            keys=(side.names[0],),
            prefetch=self.random.choice([1, 3]),
            batch_rows=self.batch_rows(),
        )
        return Side(node, [*side.names, columns[1]], side.is_sorted)

    def clustered(self, depth: int, is_sorted: bool) -> Side:
        return self.aggregated(self.side(depth, is_sorted=is_sorted), is_clustered=True)

    def grouped(self, depth: int, is_sorted: bool) -> Side:
        assert not is_sorted
        return self.aggregated(self.side(depth, is_sorted=False), is_clustered=False)

    def aggregated(self, side: Side, *, is_clustered: bool) -> Side:
        name = self.name()
        keys = side.names[: 1 if is_clustered else self.random.choice([0, 1, 2])]
        aggregates = [
            Aggregate.of(f"{name}_count", "count"),
            Aggregate.of(f"{name}_sum", "sum", side.names[-1]),
        ]
        node = Group(
            id=name,
            input=side.node,
            keys=tuple(keys),
            aggregates=tuple(aggregates),
            is_clustered=is_clustered,
            batch_rows=self.batch_rows(),
        )
        return Side(node, [*keys, *(each.name for each in aggregates)], side.is_sorted)

    def united(self, depth: int, is_sorted: bool) -> Side:
        assert not is_sorted
        sides = [self.side(depth, is_sorted=False) for _ in range(self.random.choice([1, 2, 2, 3]))]
        width = min(len(each.names) for each in sides)
        name = self.name()
        names = [f"{name}_{letter}" for letter in NAMES[:width]]
        parts = tuple(
            Project(
                id=self.name(),
                input=each.node,
                columns=tuple(map(ProjectedColumn, names, each.names)),
            )
            for each in sides
        )
        if self.random.random() < 0.5:
            return Side(MixedUnion(id=name, parts=parts), names[:width], False)
        keys = tuple(names[: self.random.choice([0, 1])])
        return Side(LocalPartition(id=name, parts=parts, keys=keys), names[:width], False)

    # -- rows

    def rows(self, is_sorted: bool, most: int) -> list[Row]:
        """Return rows whose first column is a key, or none."""
        count = self.random.randint(0, most)
        keys = [self.random.choice([0, 1, 2, 3]) for _ in range(count)]
        if is_sorted:
            keys.sort()
        return [
            (None if self.random.random() < 0.2 else key, self.random.randint(-2, 9))
            for key in keys
        ]

    def splits(self) -> dict[str, list[list[pa.RecordBatch]]]:
        """Return splits for each scan: those of a sorted one ascend together."""
        found = {}
        for name, is_sorted in self.scans.items():
            rows = self.rows(is_sorted, 14)
            found[name] = [
                self.cut(name, part) for part in self.parted(rows, self.random.choice([1, 2]))
            ]
        return found

    def parted(self, rows: list[Row], count: int) -> list[list[Row]]:
        middle = self.random.randint(0, len(rows)) if count > 1 else len(rows)
        return [rows[:middle], rows[middle:]]

    def cut(self, name: str, rows: list[Row]) -> list[pa.RecordBatch]:
        names = [f"{name}_{letter}" for letter in NAMES[:2]]
        batches = []
        while rows:
            count = self.random.choice([1, 2, 5])
            batches.append(table_of(names, rows[:count]))
            rows = rows[count:]
        return batches


class Model:
    """What a plan gives, set by set, in plain Python."""

    def __init__(self, world: TaskWorld) -> None:
        self._world = world
        self._left = {
            node.id: [node.offset, node.count]
            for node in world.plan.walk()
            if isinstance(node, Limit)
        }
        self._next = {
            node.id: node.first for node in world.plan.walk() if isinstance(node, AssignUniqueId)
        }

    def give(self, splits: dict[str, Any], *, with_values: bool = True) -> list[Row]:
        """Return the rows of a set of splits."""
        self._splits, self._with_values = splits, with_values
        return [row for batch in self._of(self._world.plan) for row in batch]

    def is_over(self, node: Node | None = None) -> bool:
        """Say whether a node gives nothing any more, whatever comes: its limit is reached."""
        node = self._world.plan if node is None else node
        match node:
            case Limit():
                return not self._left[node.id][1] or self.is_over(node.input)
            case Filter() | Project() | AssignUniqueId() | IndexLookupJoin():
                return self.is_over(node.input)
            case Group():
                return bool(node.keys) and self.is_over(node.input)
            case HashJoin() | MergeJoin():
                shows = node.how in (JoinType.RIGHT, JoinType.FULL)
                return not shows and self.is_over(node.left)
            case _:
                return False

    def _of(self, node: Node) -> Batches:
        match node:
            case ArrowScan():
                splits = self._splits.get(node.id, [])
                found = [_rows(batch) for split in splits for batch in split]
            case Values():
                whole = _rows(node.rows.combine_chunks().to_batches()[0]) if node.rows else []
                found = [whole] if self._with_values else []
            case Filter():
                name, _, least = str(node.where).split()
                at = _names(node.input).index(name)
                found = [
                    [row for row in batch if (value := row[at]) is not None and value > int(least)]
                    for batch in self._of(node.input)
                ]
            case Project():
                places = [_names(node.input).index(str(each)) for _, each in node.columns]
                found = [
                    [tuple(row[at] for at in places) for row in batch]
                    for batch in self._of(node.input)
                ]
            case Limit():
                found = [self._limited(node.id, batch) for batch in self._of(node.input)]
            case AssignUniqueId():
                found = [self._numbered(node.id, batch) for batch in self._of(node.input)]
            case Group():
                found = self._aggregated(node)
            case HashJoin():
                found = self._hash_joined(node)
            case MergeJoin():
                found = _cut(self._merge_joined(node), node.batch_rows)
            case IndexLookupJoin():
                found = self._looked_up(node)
            case LocalPartition() | MixedUnion():
                found = _in_turn([self._of(part) for part in node.parts])
            case _:
                raise AssertionError(node)
        return [batch for batch in found if batch]

    def _limited(self, name: str, batch: list[Row]) -> list[Row]:
        skip, left = self._left[name]
        given = batch[skip : skip + left]
        self._left[name] = [skip - min(skip, len(batch)), left - len(given)]
        return given

    def _numbered(self, name: str, batch: list[Row]) -> list[Row]:
        begin = self._next[name]
        self._next[name] += len(batch)
        return [(*row, begin + at) for at, row in enumerate(batch)]

    def _aggregated(self, node: Group) -> Batches:
        names = _names(node.input)
        places = [names.index(key) for key in node.keys]
        column = node.aggregates[1].column
        at = names.index(str(column))
        rows = [row for batch in self._of(node.input) for row in batch]

        def key_of(row: Row) -> Row:
            return tuple(row[place] for place in places)

        groups: list[tuple[Row, list[Row]]] = []
        if node.is_clustered:
            groups = [(key, list(each)) for key, each in groupby(rows, key_of)]
        else:
            by_key: dict[Row, list[Row]] = {} if places else {(): []}
            for row in rows:
                by_key.setdefault(key_of(row), []).append(row)
            groups = list(by_key.items())
        given = []
        for key, members in groups:
            values = [value for row in members if (value := row[at]) is not None]
            given.append((*key, len(members), sum(values) if values else None))
        return _cut(given, node.batch_rows)

    def _hash_joined(self, node: HashJoin) -> Batches:
        right = [row for batch in self._of(node.right) for row in batch]
        width = len(_names(node.right))
        matched: set[int] = set()
        found: Batches = []
        left_at, right_at = _places(node)
        for batch in self._of(node.left):
            given: list[Row] = []
            for row in batch:
                others = _matches(row[left_at], right, right_at)
                matched.update(others)
                given += _shown(node.how, row, [right[at] for at in others], width)
            found += _cut(given, node.batch_rows)
        if node.how in (JoinType.RIGHT, JoinType.FULL):
            nothing = (None,) * len(_names(node.left))
            alone = [nothing + row for at, row in enumerate(right) if at not in matched]
            found += _cut(alone, node.batch_rows)
        return found

    def _merge_joined(self, node: MergeJoin) -> list[Row]:
        left, right = (
            [row for batch in self._of(side) for row in batch] for side in (node.left, node.right)
        )
        left_at, right_at = _places(node)
        width = len(_names(node.right))
        matched: set[int] = set()
        given: list[tuple[float, int, list[Row]]] = []
        for rank, row in _ranked(left, left_at):
            others = _matches(row[left_at], right, right_at)
            matched.update(others)
            given.append((rank, 0, _shown(node.how, row, [right[at] for at in others], width)))
        if node.how in (JoinType.RIGHT, JoinType.FULL):
            nothing = (None,) * len(_names(node.left))
            for at, (rank, row) in enumerate(_ranked(right, right_at)):
                if at not in matched:
                    given.append((rank, 1, [nothing + row]))
        return [row for *_, rows in sorted(given, key=lambda each: each[:2]) for row in rows]

    def _looked_up(self, node: IndexLookupJoin) -> Batches:
        at = _names(node.input).index(node.keys[0])
        rows = self._world.found[node.id]
        found: Batches = []
        for batch in self._of(node.input):
            given: list[Row] = []
            for row in batch:
                others: list[Row] = [(rows[place][1],) for place in _matches(row[at], rows, 0)]
                given += _shown(node.how, row, others, 1)
            found += _cut(given, node.batch_rows)
        return found


def _rows(batch: pa.RecordBatch) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _names(node: Node) -> list[str]:
    match node:
        case ArrowScan():
            return list(node.schema.names)
        case Values():
            return list(node.rows.schema.names)
        case Filter() | Limit():
            return _names(node.input)
        case Project():
            return [name for name, _ in node.columns]
        case AssignUniqueId():
            return [*_names(node.input), node.column]
        case Group():
            return [*node.keys, *(each.name for each in node.aggregates)]
        case HashJoin() | MergeJoin():
            is_alone = node.how in (JoinType.SEMI, JoinType.ANTI)
            return _names(node.left) + ([] if is_alone else _names(node.right))
        case IndexLookupJoin():
            return [*_names(node.input), f"{node.id}_value"]
        case LocalPartition() | MixedUnion():
            return _names(node.parts[0])
        case _:
            raise AssertionError(node)


def _places(node: HashJoin | MergeJoin) -> tuple[int, int]:
    return (
        _names(node.left).index(node.left_keys[0]),
        _names(node.right).index(node.right_keys[0]),
    )


def _ranked(rows: list[Row], at: int) -> Iterator[tuple[float, Row]]:
    """Yield rows with their key, those without one with that of the row before."""
    rank = float("-inf")
    for row in rows:
        key = row[at]
        rank = rank if key is None else key
        yield rank, row


def _matches(key: int | None, rows: list[Row], at: int) -> list[int]:
    return [] if key is None else [place for place, row in enumerate(rows) if row[at] == key]


def _shown(kind: JoinType, row: Row, others: list[Row], width: int) -> list[Row]:
    """Return what a join shows of a left row, given its matches."""
    if kind in (JoinType.SEMI, JoinType.ANTI):
        return [row] if bool(others) is (kind is JoinType.SEMI) else []
    if not others and kind in (JoinType.LEFT, JoinType.FULL):
        return [row + (None,) * width]
    return [row + other for other in others]


def _cut(rows: list[Row], count: int) -> Batches:
    return [rows[begin : begin + count] for begin in range(0, len(rows), count)]


def _in_turn(parts: list[Batches]) -> Batches:
    most = max((len(part) for part in parts), default=0)
    return [part[at] for at in range(most) for part in parts if at < len(part)]


class Lingering:
    """An executor whose calls are done when they are drawn, or when nothing else can be."""

    waiting: list[Callable[[], None]]

    def __init__(self, *_: Any) -> None:
        pass

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append(lambda: future.set_result(call(*given)))
        return future

    def shutdown(self, **_: Any) -> None:
        pass


class Stepped(Task):
    """A task of several drivers whose steps are drawn: no thread runs, and what hangs is seen."""

    def __init__(self, world: TaskWorld, drivers: int, random_: random.Random) -> None:
        super().__init__(world.plan, drivers=drivers, lookups=world.lookups)
        self._random = random_
        self._steps = 0
        self._is_threaded = False
        Lingering.waiting = []

    def _work(self) -> bool:
        self._steps += 1
        assert self._steps < STEPS_MAX, "the task runs on and on"
        if Lingering.waiting and self._random.random() < 0.1:
            self._look_up()
        drivers = list(self._pipelines.drivers)
        if self._random.random() < 0.5:
            self._random.shuffle(drivers)
        try:
            if any(driver.step() for driver in drivers):
                return True
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return True
        if Lingering.waiting:
            self._look_up()
            return True
        return False

    def _look_up(self) -> None:
        Lingering.waiting.pop(self._random.randrange(len(Lingering.waiting)))()


def given_by(task: Task, plan: Node) -> list[Row]:
    """Return the rows up to the barrier, or the end."""
    batches = list(task.iter_batches())
    most = getattr(plan, "batch_rows", None)
    assert most is None or all(batch.num_rows <= most for batch in batches)
    return [row for batch in batches for row in _rows(batch)]


def played(seed: int, drivers: int, plays: int = 0) -> Iterator[tuple[list[Row], list[Row]]]:
    """Yield the rows of each set, found and expected."""
    world = TaskWorld(seed)
    model = Model(world)
    steps = random.Random(f"{seed} {drivers} {plays}")
    with (
        patch.object(lookup_join, "ThreadPoolExecutor", Lingering),
        Stepped(world, drivers, steps) as task,
    ):
        sets = world.random.choice([0, 1, 2, 4])
        has_tail = True
        for number in range(sets):
            splits = world.splits()
            added = [task.add_split(name, split) for name, each in splits.items() for split in each]
            done = task.request_barrier()
            if not all(added):
                # The limit is reached.
                assert model.is_over()
                assert task.phase is Phase.FINISHED
                assert done.done()
                return
            if number == sets - 1 and world.random.random() < 0.5:
                # Under the barrier, behind which they end.
                for name in world.scans:
                    task.no_more_splits(name)
            yield given_by(task, world.plan), model.give(splits)
            assert done.done()
            assert (task.phase is Phase.FINISHED) is model.is_over()
            if task.phase is Phase.FINISHED:
                return
            has_tail = False
        splits = {} if task._state.ended else world.splits()
        for name, each in splits.items():
            for split in each:
                has_tail = True
                task.add_split(name, split)
        for name in world.scans:
            task.no_more_splits(name)
        yield given_by(task, world.plan), model.give(splits, with_values=has_tail)
        assert task.phase is Phase.FINISHED
