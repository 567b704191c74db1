"""Bugs in writes into many tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from spark_upsert.core import path_template as template
from spark_upsert.options import routed as options
from spark_upsert.options.routed import TableOption
from spark_upsert.routed import commit, fence, group, router
from spark_upsert.routed import group as group_module
from spark_upsert.routed.fence import Fence
from spark_upsert.routed.plan import RoutedPlan
from spark_upsert.routed.router import Router, Spool
from spark_upsert.scheduler.scheduler import Schedule, Turn
from spark_upsert.store.protocol import new_token
from spark_upsert.table.write.write_set import WriteSet
from tests.laws import test_debts as debt_laws
from tests.laws import test_take_over as take_over_laws
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_routed_option_promises as option_promises
from tests.promises import test_routed_promises as promises
from tests.promises import test_routed_write_promises as write_promises

MEET = promises.test_p5_rows_of_other_values_never_meet_in_a_folder


@bug("a value that begins like a hidden folder is one", MEET)
def _() -> Patch:
    return patch.object(template, "_HIDDEN", ("\0",))


@bug("what stands between two values is not escaped in them", MEET)
def _() -> Patch:
    return patch.object(template, "_separator", lambda literal: "~")


@bug("a folder's name may have any length", MEET)
def _() -> Patch:
    return patch.object(template, "SEGMENT_BYTES_MAX", 4096)


TOLD = option_promises.test_p5_each_table_is_told_what_a_look_at_all_patterns_finds


@bug("a pattern of wildcards is believed before a name", TOLD)
def _() -> Patch:
    return patch.object(TableOption, "weight", property(lambda self: (False, -len(self.pattern))))


@bug("of two patterns that disagree one is taken", TOLD)
def _() -> Patch:
    return patch.object(options, "_strongest", lambda name, about: max(about, key=str))


LEAD = promises.test_p5_each_row_goes_where_its_own_values_lead


@bug("tables are told apart by the first of their columns", LEAD)
def _() -> Patch:
    def by_first(original: Any, self: Router, values: Any) -> Any:
        firsts = self.__dict__.setdefault("_firsts", {})
        return original(self, firsts.setdefault(values[:1], values))

    return wrapped(Router, "_route", by_first)


@bug("a null is taken for an empty text", LEAD)
def _() -> Patch:
    def filled(original: Any, template: Any, values: Any) -> Any:
        found = original(template, [value or "" for value in values])
        return replace(found, values=tuple(values))

    return wrapped(router, "route_of", filled)


EXACT = write_promises.test_p1_every_table_has_every_batch_once_and_the_group_names_its_version


@bug("a table does not remember the batch", EXACT)
def _() -> Patch:
    def forgetful(original: Any, self: Any, *args: Any) -> None:
        original(self, *args)
        self._transaction = None

    return wrapped(fence.Tables, "__init__", forgetful)


@bug("each task draws the identity of a new table", EXACT)
def _() -> Patch:
    return patch.object(RoutedPlan, "new_table_id", lambda self, folder: new_token())


@bug("of what tasks bring for a table the first is taken", EXACT)
def _() -> Patch:
    def first(original: Any, staged: Any) -> Any:
        shares = original(staged)
        for share in shares.values():
            del share.parts[1:]
        return shares

    return wrapped(commit, "group_by_table", first)


@bug("the group names the newest version of a table, whoever wrote it", EXACT)
def _() -> Patch:
    return patch.object(fence.Tables, "_find_version", lambda self, log: log.head().version_ref)


@bug(
    "a compacted table stands in the group at a version with other rows",
    write_promises.test_p1_a_table_that_the_batch_compacts_stands_in_the_group_with_its_own_rows,
)
def _() -> Patch:
    return patch.object(fence, "_newest_compacted", lambda log, place: log.head().version_ref)


@bug(
    "any query may write below a root",
    write_promises.test_p1_of_two_queries_on_one_root_the_second_changes_no_table,
)
def _() -> Patch:
    return patch.object(group, "refusal_of", lambda *args, **how: None)


@bug(
    "who lost the root writes on into tables of the new query",
    take_over_laws.test_p1_who_lost_the_root_writes_nothing_behind_the_new_query,
)
def _() -> Patch:
    return patch.object(Fence, "refusal", lambda self, head: None)


@bug(
    "who takes the root over says so only behind its first batch",
    take_over_laws.test_p1_who_lost_the_root_writes_nothing_behind_the_new_query,
)
def _() -> Patch:
    return patch.object(group.GroupTable, "claim", lambda self, *_: None)


@bug(
    "a batch asks whose the root is once, however many tables it has",
    take_over_laws.test_p1_a_batch_under_way_does_not_come_into_all_tables_once_the_root_is_taken,
)
def _() -> Patch:
    return patch.object(Fence, "begin", lambda self: self.lost)


@bug(
    "a spool forgets what it has on disk",
    write_promises.test_p1_rows_that_go_to_disk_come_back_in_their_order,
)
def _() -> Patch:
    return patch.object(Spool, "rows", lambda self, route: iter(self._kept.get(route.values, ())))


@bug(
    "all tasks are counted against one version",
    write_promises.test_p5_each_task_is_counted_against_the_version_that_it_saw,
)
def _() -> Patch:
    return patch.object(WriteSet, "_base_of", lambda self, staged: self.base)


@bug(
    "tables are compacted by age alone, whatever their priority",
    write_promises.test_p7_tables_with_a_higher_priority_are_compacted_first_and_the_others_too,
)
def _() -> Patch:
    return patch.object(fence, "priority_in", lambda properties: None)


@bug(
    "whose turn it is to be compacted is forgotten with each batch",
    debt_laws.test_p7_every_table_has_its_turn_in_time_while_all_owe_for_ever,
)
def _() -> Patch:
    def forgetful(original: Any, *args: Any) -> Schedule:
        return replace(original(*args), turn=Turn())

    return wrapped(group_module.CompactionQueue, "after", forgetful)


@bug(
    "who has been compacted waits on as if it had not",
    debt_laws.test_p7_every_table_has_its_turn_in_time_while_all_owe_for_ever,
)
def _() -> Patch:
    def unmoved(original: Any, self: Any, visited: Any, *args: Any) -> Schedule:
        return replace(original(self, visited, *args), dirty=self.schedule.dirty)

    return wrapped(group_module.CompactionQueue, "after", unmoved)
