"""Bugs in what is parked, and in how it is applied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from spark_upsert.payloads import connect as connect_json
from spark_upsert.routed import commit, dead_letter, replay, stage
from spark_upsert.routed.dead_letter import DeadLetterTable
from spark_upsert.routed.park_staged import DeadLetterWriter
from spark_upsert.routed.plan import RoutedPlan
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_parking_promises as promises
from tests.unit import test_parked_truncates as truncates
from tests.unit import test_parking as parking
from tests.unit import test_unpark_hints as hints

MIXED = promises.test_p1_a_table_that_fails_in_one_task_gets_the_rows_of_all
ORDER = promises.test_p1_rows_do_not_come_before_those_that_are_parked
REPEATED = promises.test_p1_a_batch_that_is_parked_and_repeated_counts_once
DYING = promises.test_p1_what_is_applied_when_it_dies_is_applied_once


@bug("parked rows are applied without the transaction that they had", DYING)
def _() -> Patch:
    def without(original: Any, **given: Any) -> Any:
        return original(**{**given, "transactions": ()})

    return wrapped(replay, "WriteSet", without)


@bug("parked rows are forgotten before they are applied", DYING)
def _() -> Patch:
    def forgotten(original: Any, root: Any, table: Any, parked: Any, given: Any) -> Any:
        read = [*table.read(parked)]
        table.remove([parked])
        kept = DeadLetterTable(table.root)
        kept.__dict__["read"] = lambda _: iter(read)
        return original(root, kept, parked, given)

    return wrapped(replay, "_apply", forgotten)


@bug("a batch that is repeated is parked again", REPEATED)
def _() -> Patch:
    return wrapped(DeadLetterTable, "_has", lambda original, self, folder, transaction: False)


@bug("of a table that fails in one task the rows of others are lost", MIXED)
def _() -> Patch:
    return wrapped(
        DeadLetterWriter,
        "_stage_piece",
        lambda original, self, part, metadata: part.staged_dead_letters,
    )


@bug("rows are written although others before them are parked", ORDER)
def _() -> Patch:
    def at_once(original: Any, self: Any, route: Any, rows: int) -> Any:
        self._plan = replace(self._plan, dead_letter_folders=frozenset())
        return original(self, route, rows)

    return wrapped(stage._Staging, "_stage_or_park", at_once)


@bug("parked batches are applied from the last to the first", ORDER)
def _() -> Patch:
    def turned(original: Any, row: Any) -> Any:
        planned, query, batch = original(row)
        return -planned, query, batch

    return wrapped(dead_letter, "_batch_order", turned)


@bug("a batch is parked in the tasks that fail, and written from the others", MIXED)
def _() -> Patch:
    def half(original: Any, staged: Any) -> Any:
        shares = original(staged)
        for share in shares.values():
            if any(part.staged is not None for part in share.parts):
                share.parts = [part for part in share.parts if part.staged_dead_letters is None]
        return shares

    return wrapped(commit, "group_by_table", half)


@bug(
    "a truncate among parked rows is forgotten",
    truncates.test_p1_a_truncate_behind_parked_rows_is_applied_with_them,
)
def _() -> Patch:
    return wrapped(replay, "with_truncate", lambda original, commands, mark: commands)


@bug(
    "an option that fits no table parks them all",
    parking.test_p5_an_option_that_is_made_wrong_stops_a_write_that_went_well,
)
def _() -> Patch:
    return patch.object(commit, "find_write_error", lambda *told: None)


@bug(
    "options that fitted once are believed when they are changed",
    parking.test_p5_an_option_that_is_made_wrong_stops_a_write_that_went_well,
)
def _() -> Patch:
    return patch.object(RoutedPlan, "terms", "the same")


@bug(
    "what unpark declares is looked for beside the payload",
    hints.test_p1_what_unpark_declares_is_read_out_of_messages_with_a_schema,
)
def _() -> Patch:
    return patch.object(connect_json, "has_wrapped", lambda payloads: False)


@bug(
    "of several values that name no table the first alone is kept",
    parking.test_p5_several_values_that_name_no_table_are_kept_together,
)
def _() -> Patch:
    def first(original: Any, self: Any, routes: Any, counts: Any) -> Any:
        return original(self, routes[:1], counts)

    return wrapped(stage._Staging, "_park_nameless", first)
