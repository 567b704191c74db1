"""Reading a split of a view: by a task that is kept, with its plan bound, from split to split.

A stretch of steps is a split of the task and ends with a barrier; so are all rows at a position.
The view's operators give what changed over a stretch whole (`views.relation`), so that nothing
stands in them behind the barrier but the tables that they are bound to. Those are looked at once
for each split that Spark hands to the task: a table that was replaced, or has other columns by now,
is bound anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_upsert.errors import OtherTableError, TableNotFoundError
from spark_upsert.model.arrays import Positions
from spark_upsert.options.view import ViewOptions
from spark_upsert.plan.nodes import ChangeScan
from spark_upsert.plan.text import plan_from_json
from spark_upsert.streams.reads.view_splits import ViewSplit
from spark_upsert.table.changes.modes import ChangeOptions
from spark_upsert.table.changes.new_values import new_values
from spark_upsert.table.changes.render import inserts, render_sides
from spark_upsert.task.pool import TaskPool
from spark_upsert.task.task import Task
from spark_upsert.views.groups.contributions import contributions, marker
from spark_upsert.views.groups.grouping import Grouping
from spark_upsert.views.pairs import Pairs
from spark_upsert.views.steps import StepStretch, Timed, in_stretches
from spark_upsert.views.view import View
from spark_upsert.views.ways import timed_pairs_by_piece

READ = "read"
"""The one node of the plans of the tasks."""


def open_view(options: ViewOptions) -> View:
    """Return the view of a read."""
    return View(plan_from_json(options.plan), options.storage)


def read_view(split: ViewSplit, options: ViewOptions) -> Iterator[pa.RecordBatch]:
    """Yield what a split holds.

    Yields
    ------
    pyarrow.RecordBatch
        With ``readChangeFeed`` the columns of a changelog, step by step; else the rows that there
        are, or those that the view gained.

    Raises
    ------
    DataLossError
        What the tables were is expired.
    OptionError
        Of new values alone: a step deletes a row.
    DataError
        A formula has no value for a row, now nor where the split ends (`views.failing`).
    """
    with TASKS.taken(_Read(options.plan, options.storage)) as task:
        for each in _passes(split, options):
            yield from task.read(READ, each)


class _Read(NamedTuple):
    """The binding of a task: those that are equal read the same tables in the same way."""

    plan: str
    storage: Mapping[str, str]


class _Pass(NamedTuple):
    """The work of one pass: a split of the task."""

    split: ViewSplit
    options: ViewOptions
    begin: int
    """The place of the first of its steps among those of the split."""
    stretch: StepStretch | None
    """None: all rows at a position, or nothing but a marker."""

    @property
    def is_last(self) -> bool:
        """Whether no pass of the split comes behind it."""
        taken = 0 if self.stretch is None else self.begin + len(self.stretch.steps)
        return taken in (0, len(self.split.steps))


def _passes(split: ViewSplit, options: ViewOptions) -> Iterator[_Pass]:
    if not split.steps or not split.steps[0].step.before:
        yield _Pass(split, options, 0, None)
        return
    begin = 0
    for stretch in in_stretches(split.steps):
        yield _Pass(split, options, begin, stretch)
        begin += len(stretch.steps)


class _Reader:
    """The reader of a task: its plan, bound."""

    def __init__(self) -> None:
        self._view: View | None = None

    def __call__(self, each: _Pass) -> Iterator[pa.RecordBatch]:
        view = self._followed(each) if each.begin == 0 or self._view is None else self._view
        with view.resting():
            yield from _rows(view, each)
        if each.is_last and each.split.steps:
            view.judge_failures(each.split.steps[-1].step.after, each.options.on_error)

    def _followed(self, each: _Pass) -> View:
        """Return the view, bound to the tables as they are now."""
        if self._view is not None:
            with suppress(OtherTableError, TableNotFoundError):
                if self._view.is_bound():
                    return self._view
        self._view = open_view(each.options)
        return self._view


def _task(_: _Read) -> Task:
    """Return a task that reads a view."""
    return Task(ChangeScan(id=READ), readers={READ: _Reader()})


TASKS: TaskPool[_Read] = TaskPool(_task)
"""The pool of a worker, which Spark mostly uses again for the next batch of a query."""


def _rows(view: View, each: _Pass) -> Iterator[pa.RecordBatch]:
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


def _contributions(view: View, grouping: Grouping, each: _Pass) -> Iterator[pa.RecordBatch]:
    """Yield what rows contribute to their groups, and the marker of the batch."""
    if each.split.marker is not None and each.begin == 0:
        lower, upper = each.split.marker
        yield marker(grouping, lower=lower, upper=upper)
    for pairs in _pairs(view, each):
        found = contributions(grouping, pairs[0])
        if found.num_rows:
            yield found


def _changes(view: View, each: _Pass) -> Iterator[pa.RecordBatch]:
    split = each.split
    if each.stretch is None:
        for timed in split.steps:
            yield from _all_rows(view, timed, split)
        return
    shown = ChangeOptions(
        columns=tuple(view.relation.schema.names), compute_updates=each.options.compute_updates
    )
    for pairs, steps in _pairs(view, each):
        yield render_sides(
            pairs.old,
            pairs.new,
            pairs.has_old,
            pairs.has_new,
            version=np.array([each.version for each in split.steps])[steps],
            time_ms=np.array([each.time_ms for each in split.steps])[steps],
            options=shown,
        )


def _all_rows(view: View, timed: Timed, split: ViewSplit) -> Iterator[pa.RecordBatch]:
    for piece in view.relation.driving.chunks(timed.step.after, split.hash_range):
        rows = view.relation.scan(timed.step.after, piece)
        yield inserts(rows, version=timed.version, time_ms=timed.time_ms)


def _pairs(view: View, each: _Pass) -> Iterator[tuple[Pairs, Positions]]:
    """Yield what steps changed in the range of a split, by step, and the place of each's step."""
    split = each.split
    stretches = in_stretches(split.steps) if each.stretch is None else [each.stretch]
    for stretch in stretches:
        for pairs, times in timed_pairs_by_piece(
            view.relation,
            stretch.step,
            stretch.way,
            rows=split.rows,
            hash_range=split.hash_range,
        ):
            order = np.argsort(times, kind="stable")
            yield pairs.take(order), each.begin + times[order] - 1
