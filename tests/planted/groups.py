"""Bugs in grouped views: what rows contribute, what a kept table takes, what its merges leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.core import merge_engines
from spark_upsert.core.keys import fixed_words
from spark_upsert.core.merge_engines import GROUP_PART, PART, Engine, Rule
from spark_upsert.core.schema import TableSchema
from spark_upsert.streams.reads import splits
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.state import check, fold, sums
from spark_upsert.table.write import commit, guards, outcomes
from spark_upsert.table.write.outcomes import Move, Verdict
from spark_upsert.table.write.write_set import WriteSet
from spark_upsert.views import group_rows, grouping
from spark_upsert.views import group_rows as shown
from spark_upsert.views import grouping as grouping_module
from spark_upsert.views.view import View
from tests.laws import test_groups as laws
from tests.laws import test_sums as sums_laws
from tests.planted.bug import Patch, bug, together, wrapped
from tests.support.view_cases import between
from tests.unit import test_group_cases as cases
from tests.unit import test_keeping as keeping
from tests.unit import test_kept_rows as kept_rows
from tests.unit import test_kept_tables as kept_tables
from tests.unit import test_reads_of_kept_tables as reads


def test_p2_the_cases_of_groups() -> None:
    for case in between(29, 41):
        cases.test_a_case_of_groups(case)


def test_p2_what_is_stored_of_rows() -> None:
    laws.test_a_bound_that_no_state_passes_may_be_passed_between()
    kept_tables.test_zeros_of_either_sign_and_all_nans_are_stored_as_one()


def test_p2_reads_show_whole_groups() -> None:
    with TemporaryDirectory() as folder:
        reads.test_a_batch_read_shows_the_groups_of_each_version("one group", "5", Path(folder))


def test_p3_merges_of_contributions_change_nothing() -> None:
    kept_tables.test_an_entry_of_zeros_goes_from_any_runs_and_a_count_of_zero_beside_sums_stays()
    kept_tables.test_the_marker_stays_when_nothing_else_does()


def test_p2_a_check_judges_counts() -> None:
    with TemporaryDirectory() as folder:
        kept_tables.test_a_check_finds_an_entry_of_no_rows((1, -1, 0, 0), Path(folder))


def test_p2_the_log_gates_contributions() -> None:
    kept_tables.test_who_knows_no_contributions_refuses_their_table()


def test_p4_rows_are_kept_by_one_query() -> None:
    with TemporaryDirectory() as folder:
        kept_rows.test_another_query_is_refused_also_if_both_begin_at_once(Path(folder))


def test_p4_steps_are_taken_once() -> None:
    kept_tables.test_a_step_that_comes_again_is_skipped_and_one_that_is_ahead_refused()
    kept_tables.test_a_step_that_another_takes_behind_the_staging_is_skipped()


def test_p2_sums_beyond_38_digits_come_back() -> None:
    laws.test_a_sum_beyond_38_digits_is_null_until_it_fits_again()


def test_p2_sums_never_wrap() -> None:
    for type_ in (pa.int64(), pa.uint64(), pa.decimal128(38, 0)):
        sums_laws.test_an_overflow_is_an_error_within_a_batch_and_across_epochs(type_)


@bug("a step contributes its new rows alone", test_p2_the_cases_of_groups)
def _() -> Patch:
    def new_alone(original: Any, own: Any, columns: Any, signs: Any) -> Any:
        return original(own, columns, np.maximum(signs, 0))

    return wrapped(grouping_module, "_entries", new_alone)


@bug("a count of values counts rows", test_p2_the_cases_of_groups)
def _() -> Patch:
    def of_rows(where: Any, signs: Any) -> Any:
        return pa.array(signs)

    return patch.object(grouping_module, "_signed_counts", of_rows)


@bug("group keys and values keep the sign of a zero", test_p2_what_is_stored_of_rows)
def _() -> Patch:
    return patch.object(grouping_module, "canonical", lambda column: column)


@bug("NaN is not above all", test_p2_the_cases_of_groups)
def _() -> Patch:
    def below(original: Any, column: pa.Array) -> Any:
        words = original(column)
        if not pa.types.is_floating(column.type):
            return words
        nan = np.isnan(np.asarray(column))
        return [np.where(nan, np.uint64(0), word) for word in words]

    return wrapped(group_rows, "ordered_words", below)


@bug("a value that no row has any more is still the smallest", test_p2_the_cases_of_groups)
def _() -> Patch:
    def for_ever(original: Any, own: Any, rows: Any) -> Any:
        found = original(own, rows)
        index = found.schema.get_field_index(own.multiplicity)
        counts = np.asarray(found.column(index))
        parts = np.asarray(found.column("_part"))
        raised = np.where((parts > 0) & (counts < 0), 0, counts)
        return found.set_column(index, found.schema.field(index), pa.array(raised))

    return wrapped(grouping_module, "fold_entries", for_ever)


@bug("infinities are added to the sum as the greatest number", test_p2_the_cases_of_groups)
def _() -> Patch:
    def none(column: pa.Array) -> Any:
        return tuple(pa.array(np.zeros(len(column), dtype=np.bool_)) for _ in range(3))

    return patch.object(grouping_module, "_special_values", none)


@bug("a sum of int64 is kept as int64", test_p2_what_is_stored_of_rows)
def _() -> Patch:
    def narrow(original: Any, column: str, type_: pa.DataType, scale: int | None) -> Any:
        stored, shown = original(column, type_, scale)
        return (pa.int64(), shown) if type_ == pa.int64() else (stored, shown)

    return together(
        wrapped(grouping, "sum_types", narrow), wrapped(grouping_module, "sum_types", narrow)
    )


@bug("an entry of zeros is a row", test_p3_merges_of_contributions_change_nothing)
def _() -> Patch:
    def never(schema: Any, columns: Mapping[str, pa.Array]) -> Any:
        return np.zeros(len(columns[schema.engine.multiplicity]), dtype=np.bool_)

    return patch.object(fold, "vanished", never)


@bug(
    "a count of zero vanishes, whatever its sums",
    test_p3_merges_of_contributions_change_nothing,
)
def _() -> Patch:
    def by_count(original: Any, schema: Any, columns: Mapping[str, pa.Array]) -> Any:
        others = {name: column for name, column in columns.items() if name in schema.values}
        for name in others:
            if schema.engine.rule(name) is Rule.SUM and name != schema.engine.multiplicity:
                others[name] = pa.nulls(len(others[name]), others[name].type)
        return original(schema, others)

    return wrapped(fold, "vanished", by_count)


@bug("the marker vanishes like any entry of zeros", test_p3_merges_of_contributions_change_nothing)
def _() -> Patch:
    def sums_alone(original: Any, schema: Any, columns: Mapping[str, pa.Array]) -> Any:
        others = {
            name: column
            if schema.engine.rule(name) is Rule.SUM
            else pa.nulls(len(column), column.type)
            for name, column in columns.items()
        }
        return original(schema, others)

    return wrapped(fold, "vanished", sums_alone)


def _judged(verdict: Callable[[Move, str], Verdict]) -> Patch:
    return patch.object(Move, "compare_with", verdict)


def test_p4_a_view_is_kept_from_its_own_tables() -> None:
    go_on = keeping.test_a_view_is_not_kept_on_from_a_table_that_was_replaced
    for by in keeping.GO_ON:
        with TemporaryDirectory() as folder:
            go_on(keeping.KeptShop(Path(folder)), keeping.set_back, 3, by)
        with TemporaryDirectory() as folder:
            keeping.test_a_view_is_not_kept_on_with_another_table_at_a_fixed_version(
                Path(folder), by
            )


@bug("a kept table goes on from any tables", test_p4_a_view_is_kept_from_its_own_tables)
def _() -> Patch:
    return patch.object(View, "require_materialized_from", lambda view, position: None)


@bug("tables at fixed versions are not told apart", test_p4_a_view_is_kept_from_its_own_tables)
def _() -> Patch:
    return patch.object(View, "pinned_versions", lambda view: {})


@bug("a step that comes again counts again", test_p4_steps_are_taken_once)
def _() -> Patch:
    return _judged(lambda move, recorded: Verdict.APPLY)


@bug("a step that is ahead is applied", test_p4_steps_are_taken_once)
def _() -> Patch:
    judged = Move.compare_with
    return _judged(
        lambda move, recorded: (
            Verdict.APPLY if judged(move, recorded) is Verdict.REFUSE else judged(move, recorded)
        )
    )


@bug(
    "which step is next is asked of the version that was planned on",
    test_p4_steps_are_taken_once,
)
def _() -> Patch:
    def early(original: Any, write_set: WriteSet, head: Manifest) -> bool:
        return bool(original(write_set, write_set.base.manifest))

    return together(wrapped(guards, "is_next_move", early), wrapped(commit, "is_next_move", early))


@bug("a check takes any count for rows", test_p2_a_check_judges_counts)
def _() -> Patch:
    def none(schema: Any, columns: Mapping[str, pa.Array]) -> Any:
        return np.zeros(len(next(iter(columns.values()))), dtype=np.bool_)

    return patch.object(check, "impossible", none)


@bug("who knows no contributions reads their table", test_p2_the_log_gates_contributions)
def _() -> Patch:
    return patch.object(merge_engines, "CONTRIBUTIONS", Engine.AGGREGATION.value)


@bug("any query writes into rows that another one keeps", test_p4_rows_are_kept_by_one_query)
def _() -> Patch:
    return patch.object(guards, "stores_rows", lambda properties: False)


@bug("groups without a change of their own are not shown anew", test_p2_the_cases_of_groups)
def _() -> Patch:
    """A smallest value that changes leaves the count and the sums of its group as they were."""

    def of_groups_alone(original: Any, self: Any, *args: Any) -> Any:
        found = original(self, *args)
        return found.filter(pa.array(np.asarray(found.column(PART)) == GROUP_PART))

    return wrapped(shown.ShownGroups, "_touched_groups", of_groups_alone)


@bug("pieces of a read cut groups", test_p2_reads_show_whole_groups)
def _() -> Patch:
    def cut(original: Any, own: Any, hash_range: Any) -> Any:
        return hash_range

    return wrapped(splits, "align_to_groups", cut)


@bug("sums of 64 bits are taken to fit whatever the values", test_p2_sums_never_wrap)
def _() -> Patch:
    def low(column: Any, valid: Any) -> Any:
        found = fixed_words(column)[-1].view(np.int64)
        return found if valid is None else found * valid

    return patch.object(sums, "_as_int64", low)


@bug("a sum beyond 38 digits loses what is beyond 64 bits", test_p2_sums_beyond_38_digits_come_back)
def _() -> Patch:
    return patch.object(group_rows, "join_decimals", lambda low, _: low)


@bug(
    "what counts a table's rows does not see its marker",
    test_p3_merges_of_contributions_change_nothing,
)
def _() -> Patch:
    def of_sums_alone(original: Any, schema: TableSchema) -> TableSchema:
        found: TableSchema = original(schema)
        summed = [f for f in found.columns if found.engine.rule(f.name) is Rule.SUM]
        keys = [found.columns.field(key) for key in found.keys]
        return replace(found, columns=pa.schema([*keys, *summed]))

    return wrapped(outcomes, "without_sums", of_sums_alone)
