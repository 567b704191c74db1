"""Bugs in what broken change events are, and in where they stand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.envelopes import debezium, debezium_records
from spark_upsert.envelopes import debezium as debezium_module
from spark_upsert.envelopes import debezium as events
from spark_upsert.envelopes.debezium import FlattenedReader
from spark_upsert.payloads import logical_types
from spark_upsert.payloads.placeholders import Placeholder
from spark_upsert.table.state import reduce
from spark_upsert.table.write import outcomes, stage, ties, write_set
from spark_upsert.table.write import stage as stage_module
from spark_upsert.table.write.update_rule import UpdateRule
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_event_promises as promises
from tests.unit import test_forgotten_deletes as forgotten


@bug(
    "a value that is bad takes the order of its event with it",
    promises.test_p5_a_good_event_clears_what_was_bad,
)
def _() -> Patch:
    def again(_: Any, self: Any, payloads: Any, events: Any, reasons: Any) -> debezium.Events:
        return debezium.Events(events, reasons, reasons.is_valid().to_numpy(zero_copy_only=False))

    return wrapped(debezium.EventDecoder, "_decode_again", again)


@bug(
    "an event without an order is older than all that its task has seen of its key",
    promises.test_p5_a_key_whose_newest_event_is_bad_is_listed,
)
def _() -> Patch:
    return patch.object(stage_module, "adopt_order_within_task", lambda commands, *_: commands)


@bug(
    "an event without an order is older than all that the table has of its key",
    promises.test_p5_a_key_whose_newest_event_is_bad_is_listed,
)
def _() -> Patch:
    return patch.object(stage, "adopt_order_from_table", lambda commands, *_: commands)


@bug(
    "a record without a value takes a row away",
    promises.test_p5_a_good_event_clears_what_was_bad,
)
def _() -> Patch:
    return patch.object(ties, "TOMBSTONE", 99)


@bug(
    "an error is tied with what it replaced",
    promises.test_p4_events_that_are_read_again_leave_no_trace,
)
def _() -> Patch:
    def none(*given: Any) -> Any:
        return np.zeros(len(given[1]), dtype=np.bool_)

    return patch.object(reduce, "have_reasons", none)


@bug(
    "an error without an order says that no delete was forgotten",
    promises.test_p5_what_has_no_order_says_nothing_of_forgotten_deletes,
)
def _() -> Patch:
    def all_of(_: Any, rows: Any, chosen: Any) -> Any:
        return np.ones(len(chosen), dtype=np.bool_)

    return wrapped(outcomes, "are_ordered", all_of)


def test_p5_what_has_no_order_is_counted_where_it_stands() -> None:
    table = forgotten.deleted()
    forgotten.test_a_delete_that_is_forgotten_by_then_is_not_newer(
        table, forgotten.ROW, "quarantined"
    )


@bug(
    "what has no order is counted by the delete that its plan met, forgotten since",
    test_p5_what_has_no_order_is_counted_where_it_stands,
)
def _() -> Patch:
    def all_of(rows: Any, chosen: Any) -> Any:
        return np.ones(len(chosen), dtype=np.bool_)

    return patch.object(write_set, "are_ordered", all_of)


@bug(
    "a placeholder in an array is a value",
    promises.test_p4_an_array_that_was_not_sent_is_never_a_value,
)
def _() -> Patch:
    def none(_: Any, column: Any) -> Any:
        return np.zeros(len(column), dtype=np.bool_)

    return patch.object(Placeholder, "_find_in_lists", none)


@bug(
    "a placeholder is looked for after conversion alone",
    promises.test_p4_a_value_that_was_not_sent_is_never_a_value,
)
def _() -> Patch:
    def none(*_: Any) -> Any:
        return np.zeros(0, dtype=np.int64)

    return patch.object(Placeholder, "rows_in_doubt", none)


@bug(
    "NULL is taken for silence",
    promises.test_p4_null_is_a_value_and_not_an_unchanged_one,
)
def _() -> Patch:
    def or_null(find: Any, self: Any, column: Any) -> Any:
        return find(self, column) | column.is_null().to_numpy(zero_copy_only=False)

    return wrapped(Placeholder, "find", or_null)


@bug(
    "a create is taken as a put",
    promises.test_p4_a_create_has_no_value_of_an_older_row,
)
def _() -> Patch:
    return patch.object(events, "_CREATES", ("r",))


@bug(
    "a null in the old row is the old value",
    promises.test_p4_a_null_in_the_old_row_is_no_value,
)
def _() -> Patch:
    def sent(before: Any, self: Any, payloads: Any) -> Any:
        rows = before(self, payloads)
        return pa.array([{name: v or "" for name, v in row.items()} for row in rows.to_pylist()])

    return wrapped(debezium_records._RecordReader, "_decode_before", sent)


@bug(
    "a field that is missing is a null",
    promises.test_p4_a_field_that_is_missing_is_no_null,
)
def _() -> Patch:
    return patch.object(debezium_records, "find_missing", lambda *_: {})


@bug(
    "a null that is listed leaves the value",
    promises.test_p4_a_null_that_is_listed_is_a_value,
)
def _() -> Patch:
    def or_null(unchanged: Any, self: Any, schema: Any, columns: Any, *more: Any) -> Any:
        rule = replace(self, ignored_nulls=frozenset(schema.values))
        return unchanged(rule, schema, columns, *more)

    return wrapped(UpdateRule, "unchanged", or_null)


@bug(
    "a move is carried though its records differ in order",
    promises.test_p4_what_is_sent_wins_over_what_a_move_takes_along,
)
def _() -> Patch:
    def always(self: Any, batch: Any, is_delete: Any) -> Any:
        return self.moved_keys.read(batch, is_delete)

    return patch.object(events.DebeziumEnvelope, "_moved_to", always)


@bug(
    "a key that was not sent is the placeholder",
    promises.test_p4_a_key_that_was_not_sent_is_the_old_one,
)
def _() -> Patch:
    def without_keys(find: Any, self: Any, columns: Any, removed: Any) -> Any:
        found = find(self, columns, removed)
        return {name: where for name, where in found.items() if name not in self.schema.keys}

    return wrapped(events.DebeziumEnvelope, "_unsent", without_keys)


@bug(
    "an unknown mark of a flattened event is a row",
    promises.test_p4_a_mark_of_a_flattened_event_deletes_and_nothing_else_does,
)
def _() -> Patch:
    return patch.object(FlattenedReader, "_unknown_marks", lambda *_: None)


@bug(
    "a mark of a flattened event deletes nothing",
    promises.test_p4_a_mark_of_a_flattened_event_deletes_and_nothing_else_does,
)
def _() -> Patch:
    return patch.object(debezium_module, "_DELETES", ("TRUE",))


@bug(
    "an epoch that is stale as a whole is only counted",
    promises.test_p5_rows_that_are_all_stale_are_reported,
)
def _() -> Patch:
    return patch.object(ties, "count_all_stale", lambda *_: 0)


@bug(
    "a decimal has the scale of its column, whatever its schema says",
    promises.test_p4_a_decimal_is_what_was_written_in_each_form,
)
def _() -> Patch:
    def declared(unscaled: Any, binary: Any, _: Any, type_: Any) -> Any:
        return unscaled(binary, type_.scale, type_)

    return wrapped(logical_types, "_unscaled", declared)
