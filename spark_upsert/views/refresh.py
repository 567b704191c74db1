"""One-step refresh for a materialized table, from its recorded position to the newest."""

from __future__ import annotations

from collections.abc import Iterator

from spark_upsert.core.key_hash import HASH_END, HashRange
from spark_upsert.options.read import OnError
from spark_upsert.plan.join_keys import no_rows
from spark_upsert.table.log.view_position import KeptPosition
from spark_upsert.table.retention.expiry import despite_expiry
from spark_upsert.table.table import Table
from spark_upsert.table.write.moves import NOTHING
from spark_upsert.views.grouping import contributions
from spark_upsert.views.materialized import MaterializedView
from spark_upsert.views.pairs import Pairs, concat
from spark_upsert.views.relation import At, Step
from spark_upsert.views.view import View, pairs_by_piece


def refresh(view: View, table: Table, *, on_error: OnError = OnError.FAIL) -> bool:
    """Update the table that materializes a grouped view; create it if it does not exist.

    A refresh leaves a lease on each of the view's tables, for a lease's duration (`LEASE_MS`),
    because the next refresh begins there. It renews the leases even if there is nothing to do: a
    table without a writer may be compacted and expired, too.
    """
    assert view.grouping is not None
    view_table = MaterializedView.made(table, view.grouping, view.plan.to_json())
    recorded, consumer = view_table.position(), f"refresh-{table.log.head().table_id}"
    begun = _begin(view, recorded)

    def held() -> At:
        newest = view.newest()
        view.keep_held(consumer, newest if begun is None else begun[0])
        return newest

    newest = despite_expiry(held, view.urls)
    view = view.following()
    grouping = view.grouping
    assert grouping is not None
    at, cut = begun or (newest, 0)
    with view.resting():
        upper = view.kept_position(newest).text
        if upper == recorded:
            return False
        every = (contributions(grouping, pairs) for pairs in _pairs(view, at, cut, newest))
        nonempty = [batch for batch in every if batch.num_rows]
    # What several pieces contribute to one group the table sums up, as it does of several tasks.
    view.judge_failures(newest, on_error)
    group_rows = concat(nonempty or [no_rows(grouping.kept.columns)])
    has_moved = view_table.take(group_rows, lower=recorded, upper=upper)
    view.hold(consumer, newest)
    return has_moved


def _begin(view: View, recorded: str) -> tuple[At, int | None] | None:
    """Return a materialized table's position and snapshot progress; None before the first step."""
    if recorded == NOTHING:
        return None
    position = KeptPosition.read(recorded)
    view.require_kept(position)
    return {path: table_ref.version for path, table_ref in position.at.items()}, position.snapshot


def _pairs(view: View, at: At, cut: int | None, newest: At) -> Iterator[Pairs]:
    """Yield the rows missing from a first snapshot, and the changes since."""
    relation = view.relation
    if cut is not None:
        for piece in relation.driving.chunks(at, HashRange(cut, HASH_END)):
            yield Pairs.of_inserts(relation.scan(at, piece))
    if dict(at) != dict(newest):
        step, moved = Step(at, newest), list(view.moved(at, newest))
        rows = sum(moved_table.rows for moved_table in moved)
        yield from pairs_by_piece(relation, step, view.choice(step, moved).way, rows=rows)
