"""Bugs in columns that change, in orders, and in what a delete forgets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from spark_upsert.core import casts
from spark_upsert.core import schema as schema_module
from spark_upsert.core.keys import equal_rows
from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import CorruptionError, SchemaError
from spark_upsert.table import keep_history, schema_changes
from spark_upsert.table import table as table_module
from spark_upsert.table.changelog import read as change_reads
from spark_upsert.table.log import properties
from spark_upsert.table.state import fold, resolve
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import GONE
from spark_upsert.views.view import View
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_schema_promises as promises
from tests.support.stores import MemoryStore

COLUMNS = pa.schema({"k": pa.int64(), "s": pa.string()})


def failing(act: Callable[[], object]) -> None:
    """Let an error that is none of ours be a failure."""
    try:
        act()
    except (KeyError, pa.ArrowException) as error:
        pytest.fail(f"{error!r}")


def test_p1_a_dropped_name_shows_no_old_value() -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Table.create(f"{folder}/t", COLUMNS, keys=["k"])
        table.upsert(pa.table({"k": [1], "s": ["old"]}))
        table.drop_columns("s")
        with pytest.raises(SchemaError, match="was dropped"):
            table.upsert(pa.table({"k": [2], "s": ["new"]}), merge_schema=True)
        assert table.snapshot().to_pylist() == [{"k": 1}]


@bug("a table forgets which columns it has given up", test_p1_a_dropped_name_shows_no_old_value)
def _() -> Patch:
    def none(_: Mapping[str, str]) -> frozenset[str]:
        return frozenset()

    return patch.object(schema_changes, "dropped_names", none)


def test_p2_an_older_version_is_read_in_its_own_columns() -> None:
    read = promises.READS["filter"]
    failing(lambda: promises.test_p2_an_older_version_is_read_in_its_own_columns(read))


def test_p2_an_older_version_has_no_value_that_only_a_wider_type_holds() -> None:
    table = promises.indexed(MemoryStore())
    promises.replaced(table)
    failing(lambda: table.rows_having("n", [2**41], version=3))


@bug(
    "values are looked up in the types of an older version",
    test_p2_an_older_version_has_no_value_that_only_a_wider_type_holds,
)
def _() -> Patch:
    return patch.object(TableSchema, "widened_to", lambda self, other: self)


@bug(
    "an index reads an older version in the newest columns",
    test_p2_an_older_version_is_read_in_its_own_columns,
)
def _() -> Patch:
    return patch.object(TableSchema, "widened_to", lambda self, other: other)


def test_p2_changes_are_of_one_schema() -> None:
    test = promises.test_p2_changes_are_of_one_schema_while_another_process_alters_the_table
    failing(lambda: test(promises.dropped))


@bug(
    "changes are in the columns that a table has when they are read",
    test_p2_changes_are_of_one_schema,
)
def _() -> Patch:
    def late(original: Any, self: Table, schema: Any, *args: Any, **how: Any) -> Any:
        yield from original(self, self.log.head().schema, *args, **how)

    return wrapped(Table, "_changes", late)


def test_p6_a_delete_by_keys_gets_through() -> None:
    test = promises.test_p6_a_delete_by_keys_gets_through_whatever_columns_come_and_go
    test(promises.dropped)


@bug("a delete by keys has all columns of its table", test_p6_a_delete_by_keys_gets_through)
def _() -> Patch:
    def filled(original: Any, snapshot: Any, keys: Any) -> pa.Table:
        rows = original(snapshot, keys)
        for own in snapshot.manifest.schema.columns:
            if own.name not in rows.column_names:
                rows = rows.append_column(own.name, pa.nulls(len(rows), own.type))
        return rows

    return wrapped(table_module, "deletes_of", filled)


def test_p6_rows_that_may_lack_columns_get_through() -> None:
    promises.test_p6_rows_that_may_lack_columns_get_through(promises.dropped)


@bug(
    "an alteration asks for a column that was dropped meanwhile",
    test_p6_rows_that_may_lack_columns_get_through,
)
def _() -> Patch:
    return patch.object(TableSchema, "rebased", lambda self, upon, newer: self)


def test_p5_a_kept_view_is_right_or_asks_for_another_plan() -> None:
    test = promises.test_p5_a_kept_view_is_right_or_asks_for_another_plan
    try:
        test(promises.wider)
        test(promises.replaced)
    except CorruptionError as error:
        pytest.fail(f"{error}")


@bug(
    "a view is read at a newer version than the one that it was bound to",
    test_p5_a_kept_view_is_right_or_asks_for_another_plan,
)
def _() -> Patch:
    return patch.object(View, "rebind_if_altered", lambda self: self)


def test_p2_a_kept_history_has_dropped_columns() -> None:
    promises.test_p2_a_kept_history_has_the_values_of_columns_that_were_dropped_since(None)


@bug("a kept history shows the newest columns alone", test_p2_a_kept_history_has_dropped_columns)
def _() -> Patch:
    return patch.object(keep_history, "_source_schema", lambda newest, spans, known: newest.columns)


@bug(
    "a kept history reads all versions in the columns of the first",
    promises.test_p2_a_kept_history_shows_no_value_of_a_column_behind_its_drop,
)
def _() -> Patch:
    def joined(original: Any, *args: Any) -> Any:
        spans = original(*args)
        return [replace(spans[0], upper=spans[-1].upper)]

    return wrapped(keep_history, "schemas_between", joined)


def test_p4_an_order_is_as_wide_as_its_column(other: bool) -> None:
    test = promises.test_p4_an_order_is_as_wide_as_the_column_that_it_is_of
    test(Engine.PARTIAL_UPDATE if other else Engine.DEDUPLICATE, is_stored=not other)


@bug("the order stays narrow when its column is widened", test_p4_an_order_is_as_wide_as_its_column)
def _() -> Patch:
    return patch.object(schema_module, "_widened_order", lambda order, *_: tuple(order))


@bug("a low-water mark is read in the types of today", test_p4_an_order_is_as_wide_as_its_column)
def _() -> Patch:
    return patch.object(properties, "_NARROWER", ())


def test_p4_a_delete_forgets_the_values_of_all_rows_before_it(other: bool) -> None:
    promises.test_p4_a_delete_forgets_the_values_of_all_rows_before_it(compacts=other)


@bug(
    "a delete is compared with the orders of columns",
    test_p4_a_delete_forgets_the_values_of_all_rows_before_it,
)
def _() -> Patch:
    def by_own(original: Any, self: Any, name: str) -> Any:
        values = original(self, name)
        return values._replace(row_at=values.at)

    return wrapped(fold._Groups, "_values_of", by_own)


@bug(
    "a late delete leaves nothing of a column with an order of its own",
    test_p4_a_delete_forgets_the_values_of_all_rows_before_it,
)
def _() -> Patch:
    def none(self: Any, name: str, *_: Any) -> pa.Array:
        return pa.nulls(len(self._firsts), self._schema.older_type(name))

    return patch.object(fold._Groups, "_older", none)


def test_p1_a_delete_that_finds_no_row_is_not_done_later() -> None:
    promises.test_p1_a_delete_that_finds_no_row_is_not_done_later("keys")


@bug(
    "a delete that finds no row records no transaction",
    test_p1_a_delete_that_finds_no_row_is_not_done_later,
)
def _() -> Patch:
    def append(original: Any, self: Table, rows: pa.Table, **how: Any) -> Any:
        is_empty = how.get("deletes") == GONE and not len(rows)
        return None if is_empty else original(self, rows, **how)

    return wrapped(Table, "upsert", append)


def test_p2_snapshot_changes_and_counters_agree_about_zeros(other: bool) -> None:
    zeros = promises.FLOATS["zeros of both signs"]
    test = promises.test_p2_snapshot_changes_and_counters_agree_about_floats
    test(*zeros, is_ordered=other)


@bug(
    "a zero of the other sign is no change",
    test_p2_snapshot_changes_and_counters_agree_about_zeros,
)
def _() -> Patch:
    equal = (patch.object(each, "identical_rows", equal_rows) for each in (change_reads, resolve))
    return together(*equal)


@bug(
    "a float key of the other sign is no change",
    promises.test_p2_a_float_key_of_the_other_sign_is_a_change_of_its_row,
)
def _() -> Patch:
    return patch.object(TableSchema, "contents", property(lambda self: self.values))


def test_p2_snapshot_and_changes_agree_about_nan() -> None:
    test = promises.test_p2_snapshot_changes_and_counters_agree_about_floats
    test(*promises.FLOATS["NaN of other bits"], is_ordered=False)


@bug("each NaN keeps its bits", test_p2_snapshot_and_changes_agree_about_nan)
def _() -> Patch:
    return patch.object(casts, "_with_one_nan", lambda numbers: numbers)
