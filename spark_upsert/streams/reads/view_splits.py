"""The share of one task in a view: steps, and a range of hashes; and how it is read."""

from __future__ import annotations

from dataclasses import dataclass

from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.options.view import ViewOptions
from spark_upsert.streams.reads.splits import SPLIT_ROWS
from spark_upsert.table.changes.modes import Deduplication
from spark_upsert.views.relation import At, Step
from spark_upsert.views.steps import Timed, in_order, netted, steps
from spark_upsert.views.view import MovedBy, View
from spark_upsert.views.ways import Way


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

    def steps_text(self) -> str:
        """Return the steps in words, for an explanation."""
        found = self.steps
        if not found:
            return "nothing but the position"
        if not found[0].step.before:
            return "all rows"
        count = f"{len(found)} steps, versions {found[0].version} to {found[-1].version}"
        compared = [each for each in found if each.choice.way is Way.SNAPSHOTS]
        if not compared:
            return f"{count}, by look-ups"
        few = "" if len(compared) == len(found) else f" for {len(compared)} of them"
        return f"{count}, by comparing both snapshots{few} ({compared[0].choice})"


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
