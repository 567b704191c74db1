"""View splits: planning, reading by a pooled task, and the JSON form inside a row.

A task's plan stays bound between splits; its tables are checked once per split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import ALL_HASHES, HashRange
from spark_upsert.core.keys import Positions
from spark_upsert.errors import DataError, NewerFormatError, OtherTableError, TableNotFoundError
from spark_upsert.options.views import ViewOptions
from spark_upsert.plan.json import plan_from_json
from spark_upsert.plan.nodes import ChangeScan, Node, Scan
from spark_upsert.store.records import MALFORMED, RECORD_BYTES_MAX, optional, text, whole
from spark_upsert.streams.reads.splits import SPLIT_ROWS
from spark_upsert.table.changelog.read import (
    ChangeOptions,
    Deduplication,
    inserts,
    new_values,
    render_sides,
)
from spark_upsert.task.task import Task, TaskPool
from spark_upsert.views.grouping import Grouping, contributions, marker_entry
from spark_upsert.views.intervals import Pairs
from spark_upsert.views.relation import At, Step
from spark_upsert.views.view import (
    Choice,
    MovedBy,
    RefreshStrategy,
    StepRange,
    TimedStep,
    View,
    combine_steps,
    net_step,
    sort_epochs,
    steps,
    timed_pairs_by_piece,
)


@dataclass(frozen=True, slots=True)
class ViewSplit:
    """Changes in some steps, or all rows at a position, in a hash range.

    Hashes belong to the moved table if each output row depends on one of its rows and is looked up;
    otherwise to the leftmost table.
    """

    steps: tuple[TimedStep, ...]
    """A step from an empty position means all rows."""
    hash_range: HashRange
    rows: int
    """Estimated row count in the moved tables."""
    bytes: int
    queries: frozenset[str] = frozenset()
    """Streaming queries that wrote the read versions, by their transactions' writers."""
    marker_entry: tuple[str, str] | None = None
    """A grouped view's positions before and after the batch, in one of its splits."""

    def steps_text(self) -> str:
        """Describe the steps for an explanation."""
        shown_steps = self.steps
        if not shown_steps:
            return "nothing but the position"
        if not shown_steps[0].step.before:
            return "all rows"
        first, last = shown_steps[0].version, shown_steps[-1].version
        count = f"{len(shown_steps)} steps, versions {first} to {last}"
        compared = [
            step for step in shown_steps if step.choice.strategy is RefreshStrategy.SNAPSHOTS
        ]
        if not compared:
            return f"{count}, by look-ups"
        few = "" if len(compared) == len(shown_steps) else f" for {len(compared)} of them"
        return f"{count}, by comparing both snapshots{few} ({compared[0].choice})"


def step_splits(view: View, options: ViewOptions, before: At, after: At) -> list[ViewSplit]:
    """Cut the changes between two positions into splits; an empty list if no table moved."""
    every = list(view.iter_epochs(before, after))
    if not every:
        return []
    # A table materializing groups shows a batch's end, and nothing between.
    is_net = options.deduplication is Deduplication.NET_CHANGES or view.grouping is not None
    take = net_step if is_net else steps
    moved = sort_epochs(step.moved for step in every)
    rows, size = sum(step.rows for step in every), sum(step.bytes for step in every)
    planned_steps = _with_strategies(view, take(before, moved, view.times_ms(before)), every)
    queries = frozenset(
        transaction.writer
        for moved_table in moved
        for transaction in view.log(moved_table.path).commit(moved_table.version).transactions
    )
    return _cut(planned_steps, options, ALL_HASHES, rows, size, queries)


def _with_strategies(
    view: View, found: list[TimedStep], every: list[MovedBy]
) -> tuple[TimedStep, ...]:
    """Return the steps with a refresh strategy each; there is one step per epoch, or one for all.

    The strategy is chosen during planning, because all of a step's tasks must use the same one.
    """
    moved = [every] if len(found) == 1 else [[step] for step in every]
    return tuple(
        timed._replace(choice=view.choose_strategy(timed.step, by))
        for timed, by in zip(found, moved, strict=True)
    )


def snapshot_splits(
    view: View, options: ViewOptions, at: At, hash_range: HashRange = ALL_HASHES
) -> list[ViewSplit]:
    """Cut all rows at a position, with driving hashes in a range, into splits."""
    times_ms = view.times_ms(at)
    step = TimedStep(Step({}, at), sum(at.values()), max(times_ms.values(), default=0))
    manifests = [view.log(path).at(version) for path, version in at.items()]
    share = hash_range.width / ALL_HASHES.width
    rows = int(share * sum(manifest.live_rows for manifest in manifests))
    size = int(share * sum(manifest.bytes for manifest in manifests))
    return _cut((step,), options, hash_range, rows, size, frozenset())


def _cut(
    found: tuple[TimedStep, ...],
    options: ViewOptions,
    hash_range: HashRange,
    rows: int,
    size: int,
    queries: frozenset[str],
) -> list[ViewSplit]:
    count = options.splits or max(1, min(options.query.slots, rows // SPLIT_ROWS))
    return [
        ViewSplit(found, piece, rows // count, size // count, queries)
        for piece in hash_range.cut(count)
    ]


READ = "read"
"""The tasks' single plan node."""


def open_view(options: ViewOptions) -> View:
    """Open a read's view."""
    return View(plan_from_json(options.plan), options.storage)


def read_view(split: ViewSplit, options: ViewOptions) -> Iterator[pa.RecordBatch]:
    """Yield a split's rows."""
    with TASKS.lend(_ReadBinding(options.plan, options.storage)) as task:
        for scan_step in _iter_scan_steps(split, options):
            yield from task.read(READ, scan_step)


class _ReadBinding(NamedTuple):
    """A task's binding: equal bindings read the same tables with the same settings."""

    plan: str
    storage: Mapping[str, str]


class _ScanStep(NamedTuple):
    """One pass over a split; the task processes it as one unit."""

    split: ViewSplit
    options: ViewOptions
    begin: int
    """Index of its first step among the split's steps."""
    stretch: StepRange | None
    """None: all rows at a position, or only a marker."""

    @property
    def is_last(self) -> bool:
        """Whether it is the split's last pass."""
        taken = 0 if self.stretch is None else self.begin + len(self.stretch.steps)
        return taken in (0, len(self.split.steps))


def _iter_scan_steps(split: ViewSplit, options: ViewOptions) -> Iterator[_ScanStep]:
    if not split.steps or not split.steps[0].step.before:
        yield _ScanStep(split, options, 0, None)
        return
    begin = 0
    for stretch in combine_steps(split.steps):
        yield _ScanStep(split, options, begin, stretch)
        begin += len(stretch.steps)


class _Reader:
    """A task's reader, with its bound plan."""

    def __init__(self) -> None:
        self._view: View | None = None

    def __call__(self, each: _ScanStep) -> Iterator[pa.RecordBatch]:
        view = self._current_view(each) if each.begin == 0 or self._view is None else self._view
        with view.use_cached_heads():
            yield from _rows(view, each)
        if each.is_last and each.split.steps:
            view.report_failures(each.split.steps[-1].step.after, each.options.on_error)

    def _current_view(self, each: _ScanStep) -> View:
        """Return the view, bound to the current tables."""
        if self._view is not None:
            with suppress(OtherTableError, TableNotFoundError):
                if self._view.is_bound():
                    return self._view
        self._view = open_view(each.options)
        return self._view


def _task(_: _ReadBinding) -> Task:
    """Return a task for reading a view."""
    return Task(ChangeScan(id=READ), readers={READ: _Reader()})


TASKS: TaskPool[_ReadBinding] = TaskPool(_task)
"""A worker's task pool; Spark mostly reuses the worker for the query's next batch."""


def _rows(view: View, each: _ScanStep) -> Iterator[pa.RecordBatch]:
    if view.grouping is not None:
        yield from _contributions(view, view.grouping, each)
        return
    changes = (batch for batch in _changes(view, each) if batch.num_rows)
    if each.options.change_feed:
        yield from changes
        return
    keys = view.relation.key
    assert keys is not None
    yield from new_values(changes, each.options, keys=keys)


def _contributions(view: View, grouping: Grouping, each: _ScanStep) -> Iterator[pa.RecordBatch]:
    """Yield the rows' contributions to their groups, after the batch's marker."""
    if each.split.marker_entry is not None and each.begin == 0:
        lower, upper = each.split.marker_entry
        yield marker_entry(grouping, lower=lower, upper=upper)
    for pairs in _pairs(view, each):
        result = contributions(grouping, pairs[0])
        if result.num_rows:
            yield result


def _changes(view: View, each: _ScanStep) -> Iterator[pa.RecordBatch]:
    split = each.split
    if each.stretch is None:
        for timed in split.steps:
            yield from _all_rows(view, timed, split)
        return
    shown = ChangeOptions(
        columns=tuple(view.relation.schema.names), compute_updates=each.options.compute_updates
    )
    for pairs, positions in _pairs(view, each):
        yield render_sides(
            pairs.old,
            pairs.new,
            pairs.has_old,
            pairs.has_new,
            version=np.array([step.version for step in split.steps])[positions],
            time_ms=np.array([step.time_ms for step in split.steps])[positions],
            options=shown,
        )


def _all_rows(view: View, timed: TimedStep, split: ViewSplit) -> Iterator[pa.RecordBatch]:
    for piece in view.relation.driving.chunks(timed.step.after, split.hash_range):
        rows = view.relation.scan(timed.step.after, piece)
        yield inserts(rows, version=timed.version, time_ms=timed.time_ms)


def _pairs(view: View, each: _ScanStep) -> Iterator[tuple[Pairs, Positions]]:
    """Yield the steps' row pairs in a split's range, and each pair's step index."""
    split = each.split
    stretches = combine_steps(split.steps) if each.stretch is None else [each.stretch]
    for stretch in stretches:
        for pairs, times in timed_pairs_by_piece(
            view.relation,
            stretch.step,
            stretch.strategy,
            rows=split.rows,
            hash_range=split.hash_range,
        ):
            order = np.argsort(times, kind="stable")
            yield pairs.take(order), each.begin + times[order] - 1


VERSION = 1

_FIELDS = frozenset(
    ("version", "plan", "tables", "steps", "hashes", "rows", "bytes", "queries", "marker")
)


def split_to_json(split: ViewSplit, plan: Node) -> bytes:
    """Return a split's JSON form within a plan.

    ``tables`` are the live paths; a step is ``[before, after, version, time, way]`` with versions
    in that order, null for a table not created yet. ``marker`` has the positions before and after
    the batch. The form names no other table and contains no code.
    """
    tables = _tables(plan)
    record = {
        "version": VERSION,
        "plan": plan.fingerprint(),
        "tables": tables,
        "steps": [
            [
                [timed.step.before.get(path) for path in tables],
                [timed.step.after.get(path) for path in tables],
                timed.version,
                timed.time_ms,
                timed.choice.strategy.value,
            ]
            for timed in split.steps
        ],
        "hashes": split.hash_range.to_json(),
        "rows": split.rows,
        "bytes": split.bytes,
        "queries": sorted(split.queries),
        "marker": split.marker_entry,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def split_from_json(data: bytes | None, plan: Node) -> ViewSplit:
    """Parse a split's JSON form; raises `DataError` or `NewerFormatError`."""
    if data is None or len(data) > RECORD_BYTES_MAX:
        raise _foreign(data, "nothing" if data is None else f"{len(data)} bytes")
    try:
        record = json.loads(data)
        version = whole(record["version"])
        if version == VERSION:
            return _parse_split(record, plan)
    except MALFORMED as error:
        raise _foreign(data, f"{type(error).__name__}: {error!s:.200}") from error
    raise NewerFormatError.of("the split in a row of a deferred read", version, VERSION)


def _parse_split(record: dict[str, Any], plan: Node) -> ViewSplit:
    if record.keys() != _FIELDS:
        raise ValueError(f"the fields {', '.join(record)}")
    tables = _tables(plan)
    if (record["plan"], record["tables"]) != (plan.fingerprint(), tables):
        raise ValueError(f"the plan {record['plan']!r:.80}, and this is {plan.fingerprint()}")
    return ViewSplit(
        steps=tuple(_parse_step(record, tables) for record in record["steps"]),
        hash_range=HashRange.from_json(record["hashes"]),
        rows=whole(record["rows"]),
        bytes=whole(record["bytes"]),
        queries=frozenset(map(text, record["queries"])),
        marker_entry=optional(_parse_marker, record["marker"]),
    )


def _parse_step(record: Any, tables: Sequence[str]) -> TimedStep:
    before, after, version, time_ms, strategy = record
    step = Step(_parse_versions(before, tables), _parse_versions(after, tables))
    return TimedStep(step, whole(version), whole(time_ms), Choice(RefreshStrategy(strategy)))


def _parse_versions(versions: Any, tables: Sequence[str]) -> At:
    if type(versions) is not list:
        raise ValueError(f"{versions!r:.80} is no list of versions")
    pairs = zip(tables, versions, strict=True)
    return {path: whole(version) for path, version in pairs if version is not None}


def _parse_marker(record: Any) -> tuple[str, str]:
    lower, upper = map(text, record)
    return lower, upper


def _tables(plan: Node) -> list[str]:
    scans = (node for node in plan.walk() if isinstance(node, Scan))
    return list(dict.fromkeys(scan.path for scan in scans if scan.version is None))


def _foreign(data: bytes | None, found: str) -> DataError:
    shown = "" if data is None else f", in {data[:40]!r}"
    return DataError(
        "a row holds no split of the view that this query keeps: expected what a read with "
        f"'deferred' gives, found {found}{shown}.",
        hint="drop 'deferred', which only 'keep' sets: the rows of others are written as they are. "
        "If 'keep' did set it, the driver and its executors run different versions of upsertflow.",
    )
