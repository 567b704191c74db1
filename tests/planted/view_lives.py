"""Bugs in the life of a stream of a view, or of a kept table: restarts, leases, kinds of tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from pyspark_upsertflow.stream_reader import ChangeStreamReader
from spark_upsert.errors import DataError
from spark_upsert.plan.nodes import Node
from spark_upsert.streams.inputs.view import ViewInput, ViewPosition
from spark_upsert.streams.reads import views
from spark_upsert.table.index.index import Index
from spark_upsert.table.state import snapshot
from spark_upsert.table.write.outcomes import Move, Verdict
from spark_upsert.views import group_rows, row_errors, view
from spark_upsert.views import view as steps
from spark_upsert.views.scan import ScanRelation
from spark_upsert.views.view import MovedBy, View
from spark_upsert_sink import writers
from tests.laws import test_views as laws
from tests.planted.bug import Patch, bug, wrapped
from tests.planted.look_ups import with_what_is_gone
from tests.promises import test_view_promises as promises
from tests.unit import test_deferred as deferred
from tests.unit import test_failing_rows as failing_rows
from tests.unit import test_hot_partners as hot
from tests.unit import test_keeping as keeping
from tests.unit import test_view_catch_up as catch_up
from tests.unit import test_view_tasks as view_tasks

REAL = promises.test_p2_folded_changes_of_a_view_of_real_tables_are_the_batch_query
STREAM = laws.test_p2_the_folded_stream_of_a_view_is_the_batch_query
KEPT = laws.test_p2_what_a_table_keeps_of_a_view_is_the_batch_query


def test_p6_a_refresh_goes_on_behind_expiries() -> None:
    with TemporaryDirectory() as folder:
        shop = keeping.KeptShop(Path(folder))
        keeping.test_a_refresh_goes_on_behind_a_table_that_nobody_writes_and_that_is_expired(shop)


def test_p2_deferred_reads_keep_the_view() -> None:
    for _ in range(8):  # Which rows are in a split's first batch is drawn with a table's hashes.
        with TemporaryDirectory() as folder:
            deferred.test_what_is_kept_by_deferred_reads_is_the_view(Path(folder), fails_once=False)


def test_p4_deferred_reads_go_on_where_rows_were_written() -> None:
    with TemporaryDirectory() as folder:
        deferred.test_an_offset_that_was_begun_with_rows_is_gone_on_with(Path(folder))


def test_p5_a_row_of_another_view_is_refused() -> None:
    with TemporaryDirectory() as folder:
        shop = keeping.KeptShop(Path(folder))
        deferred.test_bytes_of_somebody_else_are_refused(shop, deferred.FOREIGN["another plan"])


@bug("what is put off is read to its first batch", test_p2_deferred_reads_keep_the_view)
def _() -> Patch:
    def first(original: Any, *told: Any) -> Any:
        return islice(original(*told), 1)

    return wrapped(writers, "read_deferred_rows", first)


@bug("a row of a deferred read may be of another view", test_p5_a_row_of_another_view_is_refused)
def _() -> Patch:
    def any_plan(original: Any, record: dict[str, Any], plan: Node) -> Any:
        return original({**record, "plan": plan.fingerprint()}, plan)

    return wrapped(views, "_parse_split", any_plan)


@bug("a deferred read begins anew", test_p4_deferred_reads_go_on_where_rows_were_written)
def _() -> Patch:
    def anew(original: Any, self: Any, start: Any, end: Any) -> Any:
        return original(self, self.initialOffset(), end)

    return wrapped(ChangeStreamReader, "partitions", anew)


@bug("the first batch forgets that rows were there before", STREAM)
def _() -> Patch:
    def at_rest(original: Any, self: ViewInput, last: ViewPosition) -> ViewPosition:
        found: ViewPosition = replace(original(self, last), snapshot=None)
        return found

    return wrapped(ViewInput, "_batch_start", at_rest)


@bug("a view holds what is newest, and not what it reads", STREAM)
def _() -> Patch:
    return wrapped(View, "hold", lambda original, self, who, at, **how: self.newest() and {})


@bug("a refresh holds nothing", test_p6_a_refresh_goes_on_behind_expiries)
def _() -> Patch:
    return patch.object(View, "_held_at", lambda self, at: {})


@bug("a view does not see that a table was set back", STREAM)
def _() -> Patch:
    def unseen(original: Any, self: View, *where: Any) -> Iterator[MovedBy]:
        for each in original(self, *where):
            if self.log(each.moved.path).commit(each.moved.version).restored is None:
                yield each

    return wrapped(View, "_iter_table_epochs", unseen)


@bug("an error entry is the row of its key", STREAM)
def _() -> Patch:
    return with_what_is_gone()


@bug("keys are looked up by hashes without their prefix", REAL)
def _() -> Patch:
    def plain(original: Any, keys: Any, *, seed: int, prefix: int) -> Any:
        return original(keys, seed=seed)

    return wrapped(snapshot, "hash_keys", plain)


@bug("a step that the table has is added once more", KEPT)
def _() -> Patch:
    def again(original: Any, self: Move, recorded: str) -> Verdict:
        found: Verdict = original(self, recorded)
        return Verdict.APPLY if found is Verdict.SKIP else found

    return wrapped(Move, "compare_with", again)


def test_p7_an_epoch_costs_the_same() -> None:
    with TemporaryDirectory() as folder:
        catch_up.test_p7_an_epoch_costs_the_same_however_many_are_behind(Path(folder), "enriched")


@bug("each epoch of a batch is computed by itself", test_p7_an_epoch_costs_the_same)
def _() -> Patch:
    return patch.object(
        views, "combine_steps", lambda found: [*map(steps.single_step_range, found)]
    )


def test_p7_a_limited_batch_looks_at_its_own() -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        catch_up.test_p7_a_limited_batch_does_not_look_at_what_lies_behind_it(root, "enriched")


@bug("an index that leads is bridged from where it is", test_p7_a_limited_batch_looks_at_its_own)
def _() -> Patch:
    return patch.object(Index, "_as_of", lambda self, version, newest: newest)


def test_p4_a_repair_lets_a_query_go_on() -> None:
    with TemporaryDirectory() as folder:
        shares = failing_rows.Shares(Path(folder))
        failing_rows.test_a_query_that_was_stopped_goes_on_once_the_row_is_repaired(shares, {})


def test_p5_a_bad_row_is_not_shown() -> None:
    with TemporaryDirectory() as folder:
        shares = failing_rows.Shares(Path(folder))
        failing_rows.test_a_batch_that_leaves_a_bad_row_stops_and_names_it(shares)


def test_p2_one_sum_leaves_the_others_readable() -> None:
    with TemporaryDirectory() as folder:
        failing_rows.test_changes_of_other_groups_are_told_beside_one_that_does_not_fit(
            Path(folder)
        )


def test_p2_others_keep_their_values() -> None:
    with TemporaryDirectory() as folder:
        shares = failing_rows.Shares(Path(folder))
        failing_rows.test_many_bad_rows_are_found_among_others(shares)


@bug("a row that was repaired stops a view for ever", test_p4_a_repair_lets_a_query_go_on)
def _() -> Patch:
    def at_the_end(original: Any, formulas: Any, positions: Any) -> None:
        original(formulas, positions[:1])

    return wrapped(view, "require_values", at_the_end)


@bug("a formula without a value is NULL whatever the reader says", test_p5_a_bad_row_is_not_shown)
def _() -> Patch:
    return patch.object(view, "require_values", lambda *_: None)


@bug("a value that a formula has is that of another row", test_p2_others_keep_their_values)
def _() -> Patch:
    def backwards(original: Any, bound: Any, rows: Any) -> Any:
        values, has_none = original(bound, rows)
        return values[::-1], has_none[::-1]

    return wrapped(row_errors, "_by_halves", backwards)


@bug("a group whose sum does not fit hides the others", test_p2_one_sum_leaves_the_others_readable)
def _() -> Patch:
    def none_fits(column: Any, type_: Any) -> Any:
        try:
            return group_rows._ResultColumn(column.cast(type_))
        except pa.ArrowInvalid as error:
            raise DataError("a sum does not fit.") from error

    return patch.object(group_rows, "_cast_column", none_fits)


def test_p2_hot_rows_are_right() -> None:
    with TemporaryDirectory() as folder, patch.object(snapshot, "CHUNK_ROWS", 500):
        hot.test_a_refresh_of_such_a_row_is_right(Path(folder))


def test_p7_what_is_held_does_not_grow() -> None:
    with TemporaryDirectory() as folder, patch.object(snapshot, "CHUNK_ROWS", 2_000):
        root = Path(folder)
        hot.test_p7_what_is_held_does_not_grow_with_the_partners_of_a_changed_row(root, "inner", 0)


@bug("all partners of a row are held at once", test_p7_what_is_held_does_not_grow)
def _() -> Patch:
    def at_once(original: Any, *asked: Any) -> Any:
        yield pa.Table.from_batches(list(original(*asked))).combine_chunks().to_batches()[0]

    return wrapped(ScanRelation, "_iter_index_keys", at_once)


@bug("the partners of a row are those of the first piece", test_p2_hot_rows_are_right)
def _() -> Patch:
    def first(original: Any, *asked: Any) -> Any:
        return islice(original(*asked), 1)

    return wrapped(ScanRelation, "_iter_index_keys", first)


def test_p6_a_view_is_read_of_the_tables_that_are_there() -> None:
    with TemporaryDirectory() as folder:
        shop = view_tasks.some_shop(Path(folder))
        view_tasks.test_a_table_that_was_made_anew_in_the_same_place_is_read_itself(shop)


@bug(
    "a task that is kept reads the tables that it was bound to, whatever stands there now",
    test_p6_a_view_is_read_of_the_tables_that_are_there,
)
def _() -> Patch:
    return patch.object(View, "is_bound", lambda self: True)


def test_p6_each_view_has_a_task_of_its_own() -> None:
    with TemporaryDirectory() as folder:
        shop = view_tasks.some_shop(Path(folder))
        view_tasks.test_views_of_other_plans_have_rows_of_their_own(shop)


@bug("a task that is kept is lent whatever view is read", test_p6_each_view_has_a_task_of_its_own)
def _() -> Patch:
    return patch.object(views, "_ReadBinding", lambda plan, storage: "a view")
