"""Bugs in tables that keep views: who may write them, where they are, what readers see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from pyspark_upsertflow import views
from spark_upsert.envelopes import write_plan as plan
from spark_upsert.streams.inputs import table as table_input
from spark_upsert.table.log.manifest import Slice
from spark_upsert.table.write import guards, outcomes
from spark_upsert.table.write import write_set as write_set_module
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert.views import materialized
from spark_upsert.views.group_rows import ShownGroups
from spark_upsert.views.view import View
from tests.laws import test_view_tables as laws
from tests.planted.bug import Patch, bug, wrapped
from tests.unit import test_keeping as keepers
from tests.unit import test_null_groups as null_groups
from tests.unit.test_reads_of_kept_tables import test_a_restored_table_shows_the_changes_back

ROWS = laws.test_p2_a_table_that_keeps_rows_is_the_batch_query
GROUPS = laws.test_p2_a_table_that_keeps_groups_is_the_batch_query


def test_p5_a_query_that_begins_leaves_the_lease_of_another() -> None:
    with TemporaryDirectory() as folder:
        shop = keepers.KeptShop(Path(folder))
        keepers.test_a_query_that_begins_leaves_to_another_what_it_has_yet_to_read(shop)


def test_p2_what_is_set_back_is_shown() -> None:
    with TemporaryDirectory() as folder:
        test_a_restored_table_shows_the_changes_back(Path(folder))


def test_p2_a_full_join_has_no_key_twice() -> None:
    with TemporaryDirectory() as folder:
        sales = null_groups.Sales(Path(folder))
        null_groups.test_a_full_join_of_tables_with_the_group_null_is_refused(sales)


@bug(
    "a query that begins takes the lease of another one along",
    test_p5_a_query_that_begins_leaves_the_lease_of_another,
)
def _() -> Patch:
    return patch.object(View, "clamp_to_leases", lambda self, consumer, at: at)


def test_p2_the_group_null_is_kept() -> None:
    with TemporaryDirectory() as folder:
        sales = null_groups.Sales(Path(folder))
        null_groups.test_the_rows_of_a_view_are_kept_also_of_the_group_null(sales)


@bug("the row of the group NULL is refused where rows are kept", test_p2_the_group_null_is_kept)
def _() -> Patch:
    return patch.object(plan, "stores_rows", lambda properties: False)


@bug("two rows of the group NULL share a key in a full join", test_p2_a_full_join_has_no_key_twice)
def _() -> Patch:
    return patch.object(
        materialized.MaterializedBase,
        "__init__",
        _without_null(materialized.MaterializedBase.__init__),
    )


def _without_null(original: Any) -> Any:
    def made(self: Any, *told: Any) -> None:
        original(self, *told)
        self.may_lack_key = False

    return made


@bug("a table that keeps rows is set back under its query", ROWS)
def _() -> Patch:
    return patch.object(write_set_module, "stores_rows", lambda properties: False)


@bug("a query may begin upon rows of another one", ROWS)
def _() -> Patch:
    return patch.object(views, "_require_own_checkpoint", lambda *_: None)


@bug("of two queries that begin to keep rows at once both write", ROWS)
def _() -> Patch:
    return patch.object(guards, "_require_keeper", lambda *_: None)


@bug("a batch of kept rows that comes again is one more epoch", ROWS)
def _() -> Patch:
    def fresh(original: Any, write_set: WriteSet, head: Any) -> bool:
        return True

    return wrapped(guards, "is_new", fresh)


@bug("a view is kept on from a table that was put in the place of another", ROWS)
def _() -> Patch:
    return patch.object(View, "require_same_tables", lambda *_: None)


@bug("a kept table is where its oldest run was", GROUPS)
def _() -> Patch:
    def oldest_first(original: Any, slices: Iterable[Slice]) -> list[Slice]:
        found: list[Slice] = list(original(slices))
        return found[::-1]

    return wrapped(outcomes, "_newest_first", oldest_first)


@bug("a query with a new checkpoint begins anew upon a kept table", GROUPS)
def _() -> Patch:
    return patch.object(views, "_group_options", lambda kept: {})


@bug("readers of a kept table do not see that it was set back", test_p2_what_is_set_back_is_shown)
def _() -> Patch:
    def added(original: Any, self: Any, stretch: Any, *how: Any, **more: Any) -> Any:
        if stretch.is_comparison:
            stretch = replace(stretch, before=replace(stretch.before, slices=()))
        return original(self, stretch, *how, **more)

    return wrapped(ShownGroups, "changes", added)


@bug("the changes of a group are those of its newest entries alone", GROUPS)
def _() -> Patch:
    def alone(original: Any, self: Any, groups: Any, before: Any, after: Any) -> Any:
        return original(self, groups, before, replace(after, slices=after.slices[-1:]))

    return wrapped(ShownGroups, "_pairs", alone)


@bug("who follows a kept table and is behind what can be read goes on without a word", GROUPS)
def _() -> Patch:
    def silently(original: Any, newest: Any, lower: int, **how: Any) -> Any:
        return original(newest, lower, **{**how, "fail_on_data_loss": False})

    return wrapped(table_input, "readable_from", silently)
