"""What joins and groups of a task cost, against pyarrow's own, which have all rows at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.measure import spread
from spark_upsert.task import (
    Aggregate,
    ArrowScan,
    Group,
    HashJoin,
    JoinKeys,
    JoinType,
    MergeJoin,
    Node,
    Task,
)

BATCH_ROWS = 1 << 16
"""Of the splits."""

AGGREGATES = (Aggregate.of("sum", "sum", "value"), Aggregate.of("rows", "count"))


class _Case(NamedTuple):
    """A plan with its splits, and the same by pyarrow: each returns how many rows come out."""

    ours: Callable[[], int]
    theirs: Callable[[], int]


def measure(rows: int, *, rounds: int) -> dict[str, Any]:
    """Time joins and groups over so many rows, ours and pyarrow's in turn.

    Returns
    -------
    dict
        ``rows``, ``batch_rows``; below ``cases`` for each the spreads of the processor time,
        ``ours_s`` and ``pyarrow_s``.
    """
    cases = {**_groups(rows), **_joins(rows)}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            (ours, given), (theirs, expected) = _busy(case.ours), _busy(case.theirs)
            assert given == expected, name
            took[name].append((ours, theirs))
    return {
        "rows": rows,
        "batch_rows": BATCH_ROWS,
        "cases": {
            name: {
                "ours_s": spread([ours for ours, _ in each]),
                "pyarrow_s": spread([theirs for _, theirs in each]),
            }
            for name, each in took.items()
        },
    }


def _busy(function: Callable[[], int]) -> tuple[float, int]:
    before = time.process_time()
    given = function()
    return time.process_time() - before, given


def _run(plan: Node, **splits: pa.Table) -> int:
    """Return how many rows a plan gives of a split for each scan."""
    with Task(plan) as task:
        for name, rows in splits.items():
            task.add_split(name, rows.to_batches(max_chunksize=BATCH_ROWS))
        task.request_barrier()
        return sum(batch.num_rows for batch in task.iter_batches())


def _groups(rows: int) -> dict[str, _Case]:
    drawn = np.random.default_rng(1)
    values = drawn.integers(-1000, 1000, rows)
    few, many = (drawn.integers(0, max(1, rows // each), rows) for each in (2000, 20))
    texts = pa.array(few).cast(pa.string())
    return {
        "groups of 2 000 rows": _grouped(pa.table({"key": few, "value": values})),
        "groups of 20 rows": _grouped(pa.table({"key": many, "value": values})),
        "groups of 20 rows, clustered": _grouped(
            pa.table({"key": np.sort(many), "value": values}), is_clustered=True
        ),
        "groups of 2 000 rows by a text": _grouped(pa.table({"key": texts, "value": values})),
    }


def _grouped(rows: pa.Table, *, is_clustered: bool = False) -> _Case:
    plan = Group(
        id="groups",
        input=ArrowScan(id="rows", schema=rows.schema),
        keys=("key",),
        aggregates=AGGREGATES,
        is_clustered=is_clustered,
    )

    def theirs() -> int:
        groups = rows.group_by("key", use_threads=False)
        return int(groups.aggregate([("value", "sum"), ([], "count_all")]).num_rows)

    return _Case(lambda: _run(plan, rows=rows), theirs)


def _joins(rows: int) -> dict[str, _Case]:
    drawn = np.random.default_rng(2)
    keys = drawn.integers(0, rows // 2, rows // 2)
    others = drawn.permutation(rows // 2)[: rows // 10]
    left = pa.table({"key": keys, "value": keys})
    right = pa.table({"other": others, "weight": others})
    ordered = pa.table({"key": np.sort(keys), "value": keys})
    behind = pa.table({"other": np.sort(others), "weight": others})
    texts = [
        pa.table({name: pa.array(np.sort(each)).cast(pa.string()), "x" + name: each}).sort_by(name)
        for name, each in (("key", keys), ("other", others))
    ]
    return {
        "hash join, inner": _joined(HashJoin, left, right, JoinType.INNER),
        "hash join, left": _joined(HashJoin, left, right, JoinType.LEFT),
        "merge join, inner": _joined(MergeJoin, ordered, behind, JoinType.INNER),
        "merge join, full": _joined(MergeJoin, ordered, behind, JoinType.FULL),
        "merge join by a text, inner": _joined(MergeJoin, texts[0], texts[1], JoinType.INNER),
    }


def _joined(
    kind: type[HashJoin | MergeJoin], left: pa.Table, right: pa.Table, join: JoinType
) -> _Case:
    plan = kind(
        id="joined",
        left=ArrowScan(id="left", schema=left.schema),
        right=ArrowScan(id="right", schema=right.schema),
        how=join,
        on=JoinKeys.pairs(("key",), ("other",)),
    )
    name = join.value if join is JoinType.INNER else f"{join.value} outer"

    def theirs() -> int:
        found = left.join(right, "key", "other", join_type=name, use_threads=False)
        return int(found.num_rows)

    return _Case(lambda: _run(plan, left=left, right=right), theirs)
