"""Bugs in what broken change events are, and in where they stand."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np

from spark_upsert.envelopes.debezium import reading
from spark_upsert.table.entries import mechanism
from spark_upsert.table.write import arrivals, outcomes, stage, stash, write_set
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_event_promises as promises
from tests.unit import test_forgotten_deletes as forgotten


@bug(
    "a value that is bad takes the order of its event with it",
    promises.test_p5_a_good_event_clears_what_was_bad,
)
def _() -> Patch:
    def again(_: Any, self: Any, payloads: Any, events: Any, reasons: Any) -> reading.Events:
        return reading.Events(events, reasons, reasons.is_valid().to_numpy(zero_copy_only=False))

    return wrapped(reading.EventDecoder, "_again", again)


@bug(
    "an event without an order is older than all that its task has seen of its key",
    promises.test_p5_a_key_whose_newest_event_is_bad_is_listed,
)
def _() -> Patch:
    return patch.object(stash, "in_task", lambda commands, *_: commands)


@bug(
    "an event without an order is older than all that the table has of its key",
    promises.test_p5_a_key_whose_newest_event_is_bad_is_listed,
)
def _() -> Patch:
    return patch.object(stage, "in_table", lambda commands, *_: commands)


@bug(
    "a record without a value takes a row away",
    promises.test_p5_a_good_event_clears_what_was_bad,
)
def _() -> Patch:
    return patch.object(arrivals, "TOMBSTONE", 99)


@bug(
    "an error is tied with what it replaced",
    promises.test_p4_events_that_are_read_again_leave_no_trace,
)
def _() -> Patch:
    def none(*given: Any) -> Any:
        return np.zeros(len(given[1]), dtype=np.bool_)

    return patch.object(mechanism, "have_reasons", none)


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
