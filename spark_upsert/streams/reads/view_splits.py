"""What one task reads of a view: steps, and a range of hashes; and how it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_upsert.model.arrays import Positions
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.options.view import ViewOptions
from spark_upsert.streams.reads.splits import SPLIT_ROWS
from spark_upsert.table.changes.modes import ChangeOptions, Deduplication
from spark_upsert.table.changes.new_values import new_values
from spark_upsert.table.changes.render import inserts, render_sides
from spark_upsert.views.groups.contributions import contributions, marker
from spark_upsert.views.groups.grouping import Grouping
from spark_upsert.views.pairs import Pairs
from spark_upsert.views.relation import At, Relation, Step
from spark_upsert.views.steps import Timed, in_order, in_stretches, netted, steps
from spark_upsert.views.view import MovedBy, View
from spark_upsert.views.ways import Way, timed_pairs_by_piece


@dataclass(frozen=True, slots=True)
class ViewSplit:
    """What some steps changed, or all rows at a position, in a range of hashes.

    The hashes are those of the table that moved, where each output row depends on one row of it and
    is looked up, and else those of the leftmost table.
    """

    steps: tuple[Timed, ...]
    """One from nothing: all rows."""
    hash_range: HashRange
    rows: int
    """An estimate of the rows of the tables that moved."""
    bytes: int
    queries: frozenset[str] = frozenset()
    """The streaming queries that made what is read, as their transactions name them."""
    marker: tuple[str, str] | None = None
    """The positions before and after a batch of a grouped view, in one of its splits."""


def step_splits(view: View, options: ViewOptions, before: At, after: At) -> list[ViewSplit]:
    """Cut what lies between two positions into splits; none if nothing moved."""
    every = list(view.moved(before, after))
    if not every:
        return []
    # A table that keeps groups shows where a batch ends, and nothing between.
    is_net = options.deduplication is Deduplication.NET_CHANGES or view.grouping is not None
    take = netted if is_net else steps
    moved = in_order(each.moved for each in every)
    rows, size = sum(each.rows for each in every), sum(each.bytes for each in every)
    found = _with_ways(view, take(before, moved, view.times_ms(before)), every)
    queries = frozenset(
        transaction.writer
        for each in moved
        for transaction in view.log(each.path).commit(each.version).transactions
    )
    return _cut(found, options, ALL_HASHES, rows, size, queries)


def _with_ways(view: View, found: list[Timed], every: list[MovedBy]) -> tuple[Timed, ...]:
    """Return steps, one for each epoch or one for all, with the way in which each is computed.

    Chosen where a batch is planned, as all of its tasks must go the same way: each has its own cut.
    """
    moved = [every] if len(found) == 1 else [[each] for each in every]
    return tuple(
        timed._replace(choice=view.choice(timed.step, by))
        for timed, by in zip(found, moved, strict=True)
    )


def snapshot_splits(
    view: View, options: ViewOptions, at: At, hash_range: HashRange = ALL_HASHES
) -> list[ViewSplit]:
    """Cut all rows at a position, with driving hashes in a range, into splits."""
    times_ms = view.times_ms(at)
    step = Timed(Step({}, at), sum(at.values()), max(times_ms.values(), default=0))
    manifests = [view.log(path).at(version) for path, version in at.items()]
    share = hash_range.width / ALL_HASHES.width
    rows = int(share * sum(manifest.live_rows for manifest in manifests))
    size = int(share * sum(manifest.bytes for manifest in manifests))
    return _cut((step,), options, hash_range, rows, size, frozenset())


def _cut(
    found: tuple[Timed, ...],
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


def read_view(view: View, split: ViewSplit, options: ViewOptions) -> Iterator[pa.RecordBatch]:
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
    yield from _read(view, split, options)
    if split.steps:
        view.judge_failures(split.steps[-1].step.after, options.on_error)


def _read(view: View, split: ViewSplit, options: ViewOptions) -> Iterator[pa.RecordBatch]:
    if view.grouping is not None:
        yield from _contributions(view, view.grouping, split)
        return
    changes = (batch for batch in _changes(view, split, options) if batch.num_rows)
    if options.change_feed:
        yield from changes
        return
    keys = view.relation.key
    assert keys is not None
    yield from new_values(changes, keys=keys, ignore_deletes=options.ignore_deletes)


def _contributions(view: View, grouping: Grouping, split: ViewSplit) -> Iterator[pa.RecordBatch]:
    """Yield what rows contribute to their groups, and the marker of the batch."""
    if split.marker is not None:
        lower, upper = split.marker
        yield marker(grouping, lower=lower, upper=upper)
    with view.resting():
        for pairs in _pairs(view.relation, split):
            found = contributions(grouping, pairs[0])
            if found.num_rows:
                yield found


def _changes(view: View, split: ViewSplit, options: ViewOptions) -> Iterator[pa.RecordBatch]:
    shown = ChangeOptions(
        columns=tuple(view.relation.schema.names), compute_updates=options.compute_updates
    )
    with view.resting():
        if _is_first(split):
            [timed] = split.steps
            yield from _all_rows(view.relation, timed, split.hash_range)
            return
        for pairs, steps in _pairs(view.relation, split):
            yield render_sides(
                pairs.old,
                pairs.new,
                pairs.has_old,
                pairs.has_new,
                version=np.array([each.version for each in split.steps])[steps],
                time_ms=np.array([each.time_ms for each in split.steps])[steps],
                options=shown,
            )


def _is_first(split: ViewSplit) -> bool:
    """Return whether a split holds all rows at a position, and not steps."""
    return bool(split.steps) and not split.steps[0].step.before


def _all_rows(relation: Relation, timed: Timed, hash_range: HashRange) -> Iterator[pa.RecordBatch]:
    for piece in relation.driving.chunks(timed.step.after, hash_range):
        rows = relation.scan(timed.step.after, piece)
        yield inserts(rows, version=timed.version, time_ms=timed.time_ms)


def _pairs(relation: Relation, split: ViewSplit) -> Iterator[tuple[Pairs, Positions]]:
    """Yield what steps changed in the range of a split, by step, and the place of each's step."""
    begin = 0
    for stretch in in_stretches(split.steps):
        for pairs, times in timed_pairs_by_piece(
            relation, stretch.step, stretch.way, rows=split.rows, hash_range=split.hash_range
        ):
            order = np.argsort(times, kind="stable")
            yield pairs.take(order), begin + times[order] - 1
        begin += len(stretch.steps)


def tell_steps(found: Sequence[Timed]) -> str:
    """Return the steps of a split in words."""
    if not found:
        return "nothing but the position"
    if not found[0].step.before:
        return "all rows"
    told = f"{len(found)} steps, versions {found[0].version} to {found[-1].version}"
    compared = [each for each in found if each.choice.way is Way.SNAPSHOTS]
    if not compared:
        return f"{told}, by look-ups"
    few = "" if len(compared) == len(found) else f" for {len(compared)} of them"
    return f"{told}, by comparing both snapshots{few} ({compared[0].choice})"
