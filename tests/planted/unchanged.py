"""Bugs in values that commands leave unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_upsert.core.schema import (
    DIFF,
    ERROR,
    TOMBSTONE,
    VALUE_CARRIED,
    VALUE_DELETED,
    VALUE_RECARRIED,
    VALUE_RESET,
    VALUE_SET,
    VALUE_UNCHANGED,
    at_column,
    kept_column,
)
from spark_upsert.table.state import reduce, registers
from spark_upsert.table.state.reduce import LastWriteWins, RegisterWise
from spark_upsert.table.state.registers import Combination, MoveLimits
from spark_upsert.table.write import commands, moves, outcomes, stage, write_set
from spark_upsert.table.write.outcomes import Outcome
from spark_upsert.table.write.write_set import WriteSet
from tests.laws import test_unchanged_histories as laws
from tests.planted.bug import Patch, bug, together, wrapped
from tests.support.unchanged_cases import CASES, MERGES
from tests.support.unchanged_histories import fault_of, history_of
from tests.unit import test_unchanged_cases as cases


def test_p4_unchanged_values_in_each_case() -> None:
    """Without the cases that the table cannot do yet."""
    for case in CASES:
        if case.name not in cases.PENDING:
            cases.test_a_case(case)
            cases.test_compactions_change_no_case(case, MERGES["the two newest"])


def test_p4_unchanged_values_in_random_histories(seed: int) -> None:
    fault = fault_of(history_of(seed))
    assert fault is None, fault


def test_p4_unchanged_values_of_two_writers() -> None:
    cases.test_of_two_writers_on_one_version_the_later_commit_decides_what_is_unknown()


def test_p4_unchanged_values_of_moved_rows() -> None:
    laws.test_rows_that_move_never_have_a_wrong_value("by keys")


def test_p4_in_any_order() -> None:
    laws.test_rows_that_move_never_have_a_wrong_value("in any order")


@bug("a value has the order of its row", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def own(self: Combination, name: str, source: Any, own_order: Any) -> pa.Array:
        type_ = self.rows.schema.run_marks[at_column(name)].type
        return pa.nulls(len(source), type_)

    return patch.object(Combination, "_at", own)


@bug("the reset of a column has the order of its row", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def without_resets(
        original: Any, self: Combination, name: str, source: Any, own_order: Any
    ) -> pa.Array:
        at = original(self, name, source, own_order)
        is_reset = np.isin(self.registers[name].kinds[source], [VALUE_RESET, VALUE_DELETED])
        return pc.if_else(pa.array(is_reset), pa.scalar(None, at.type), at)

    return wrapped(Combination, "_at", without_resets)


@bug("a late put fills nothing", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def winner_alone(original: Any, compared: Any, *given: Any) -> Any:
        return compared

    def without_stale(original: Any, batch: Any, found: Any, *given: Any) -> Any:
        kinds = np.where(found.kinds == Outcome.STALE, Outcome.REJECTED, found.kinds)
        return original(batch, found._replace(kinds=kinds), *given)

    return together(
        wrapped(reduce, "_compared_by_register", winner_alone),
        wrapped(write_set, "accepted", without_stale),
        wrapped(stage, "accepted", without_stale),
    )


def _saying_nothing(diff: int) -> Patch:
    def without(original: Any, rows: Any, members: Any) -> Any:
        order, is_put, found = original(rows, members)
        [diffs] = rows.take([DIFF], members)
        for register in found.values():
            register.kinds[diffs.to_numpy() == diff] = VALUE_UNCHANGED
        return order, is_put, found

    return wrapped(registers, "_registers", without)


@bug("a deleted row lends its values", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return _saying_nothing(TOMBSTONE)


@bug("an error entry resets no column", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return _saying_nothing(ERROR)


@bug("a create is a put", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def as_put(original: Any, schema: Any, decoded: Any, diffs: Any) -> Any:
        return original(schema, replace(decoded, resets=None), diffs)

    return wrapped(commands, "_mark_kinds", as_put)


@bug("a null is an unchanged value", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def with_nulls(original: Any, schema: Any, decoded: Any, diffs: Any) -> Any:
        nulls = {
            name: np.asarray(decoded.columns[name].is_null().to_numpy(zero_copy_only=False))
            for name in schema.values
            if name in decoded.columns and decoded.columns[name].null_count
        }
        return original(schema, replace(decoded, unchanged=nulls), diffs)

    return wrapped(commands, "_mark_kinds", with_nulls)


@bug("the newest entry wins whole", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return patch.object(reduce, "are_open", lambda rows, chosen: np.zeros(len(chosen), np.bool_))


@bug("a look-up stops at the newest run", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return patch.object(RegisterWise, "gather", LastWriteWins.gather)


@bug("a scan shows the newest entry alone", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return patch.object(RegisterWise, "mark_winners", LastWriteWins.mark_winners)


@bug("a merge keeps the newest entry alone", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return patch.object(RegisterWise, "reduce", LastWriteWins.reduce)


@bug("changes show the newest entry alone", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return patch.object(RegisterWise, "history", LastWriteWins.history)


@bug("a repeated update is one more", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return patch.object(
        Combination, "_are_repeated", lambda self, name, one, other: np.zeros(len(one), np.bool_)
    )


@bug("commands of other columns are tied", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def always(one: Any, chosen: Any, *given: Any) -> Any:
        return np.ones(len(chosen), np.bool_)

    return patch.object(reduce, "contradict", always)


@bug("a row that moves leaves its values behind", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def without(original: Any, batch: pa.RecordBatch, schema: Any) -> Any:
        return original(batch, schema)[0], None

    return wrapped(stage, "without_moves", without)


@bug("a carried value wins over one that was sent", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    strengths = np.zeros(6, dtype=np.int8)
    strengths[[VALUE_SET, VALUE_CARRIED, VALUE_DELETED]] = 1, 2, 1
    return patch.object(registers, "_STRENGTHS", strengths)


@bug("a move takes values that are above it", test_p4_unchanged_values_of_moved_rows)
def _() -> Patch:
    def without_limits(original: Any, *given: Any, limits: Any = None, **how: Any) -> Any:
        return original(*given, **how)

    return wrapped(moves, "combine", without_limits)


@bug("a move takes a value that a later one may have replaced", test_p4_in_any_order)
def _() -> Patch:
    def as_if_all_are_there(original: Any, self: MoveLimits, *given: Any) -> Any:
        return original(replace(self, are_stored=np.zeros_like(self.are_stored)), *given)

    return wrapped(MoveLimits, "apply", as_if_all_are_there)


@bug("a task's older value holds", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def as_carried(*given: Any) -> Any:
        kinds = original(*given)
        return np.where(kinds == VALUE_RECARRIED, VALUE_CARRIED, kinds)

    original = moves._kinds_beside_tasks
    return patch.object(moves, "_kinds_beside_tasks", as_carried)


@bug("a move takes along the sent values of its order", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def orders_alone(moved: pa.Array) -> list[pa.Array]:
        *order, _ = moved.flatten()
        return [*order, registers.strengths_of(np.zeros(len(moved), np.int8))]

    return patch.object(registers, "orders_and_strengths", orders_alone)


@bug("a move is forgotten when its key is used again", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def nowhere(rows: Any, chosen: Any) -> Any:
        return np.zeros(len(chosen), np.bool_)

    return together(
        patch.object(registers, "have_moved", nowhere), patch.object(reduce, "have_moved", nowhere)
    )


@bug("a forgotten delete comes back as a value", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def nothing(original: Any, rows: Any, chosen: Any, *given: Any) -> Any:
        return np.zeros_like(original(rows, chosen, *given))

    return wrapped(outcomes, "_late_values", nothing)


@bug("a truncate spares the columns of later rows", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return patch.object(write_set, "_with_resets", lambda batch, mark, schema: batch)


@bug("a value that no command has set is no error", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    return patch.object(write_set, "require_known", lambda *given: None)


@bug("unknown values are counted when they are staged", test_p4_unchanged_values_of_two_writers)
def _() -> Patch:
    return patch.object(WriteSet, "_contested", lambda self, head, between: iter(()))


@bug("a quarantined row is shown", test_p4_unchanged_values_in_each_case)
def _() -> Patch:
    def shown(rows: Any, chosen: Any) -> pa.Array:
        return rows.take([DIFF], chosen)[0]

    return patch.object(registers, "shown_diffs", shown)


@bug("a stash on disk loses the marks", test_p4_unchanged_values_in_random_histories)
def _() -> Patch:
    def unmarked(original: Any, self: Any, batch: pa.RecordBatch) -> None:
        for index, name in enumerate(batch.schema.names):
            if name.startswith(kept_column("")):
                batch = batch.set_column(
                    index, batch.schema.field(index), pa.nulls(batch.num_rows, pa.int8())
                )
        original(self, batch)

    return wrapped(stage.Stash, "_spill", unmarked)
