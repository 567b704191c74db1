"""Bugs in streams over a table: pieces, limits, replays, leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from spark_upsert.core import source_positions
from spark_upsert.core.key_hash import HashRange
from spark_upsert.core.schema import CHANGE_DIFF
from spark_upsert.envelopes import changelog
from spark_upsert.envelopes import debezium as debezium_events
from spark_upsert.envelopes.changelog import ChangelogEnvelope, ChangelogForm
from spark_upsert.streams.inputs import table as table_input
from spark_upsert.streams.inputs.table import TableInput, TablePosition
from spark_upsert.streams.offsets.offset import Offset
from spark_upsert.streams.planner import rate_limit
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.table.log.log import Log
from spark_upsert.table.write import write_set
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_event_promises as event_promises
from tests.promises import test_stream_promises as stream_promises


@bug(
    "the pieces of a snapshot overlap",
    stream_promises.test_p2_a_stream_folds_to_the_table_however_it_is_cut_and_stopped,
)
def _() -> Patch:
    def wider(original: Any, manifest: Any, options: Any, due: HashRange) -> Any:
        return original(manifest, options, HashRange(due.first - due.first // 4, due.end))

    return wrapped(table_input, "rows_splits", wider)


@bug(
    "the pieces of a snapshot leave a gap",
    stream_promises.test_p2_a_stream_folds_to_the_table_however_it_is_cut_and_stopped,
)
def _() -> Patch:
    def narrower(original: Any, manifest: Any, options: Any, due: HashRange) -> Any:
        return original(manifest, options, HashRange(due.first, due.end - due.width // 4))

    return wrapped(table_input, "rows_splits", narrower)


@bug(
    "a replay looks at the head",
    stream_promises.test_p2_a_stream_folds_to_the_table_however_it_is_cut_and_stopped,
)
def _() -> Patch:
    def splits(original: Any, self: TableInput, start: Any, end: Any) -> Any:
        return original(self, start, self.head())

    return wrapped(TableInput, "splits", splits)


@bug(
    "the first batch of a replay begins where a new stream would",
    stream_promises.test_p2_a_stream_folds_to_the_table_however_it_is_cut_and_stopped,
)
def _() -> Patch:
    def beginning(original: Any, self: TableInput, start: Any, last: Any) -> Any:
        if start is not None:
            return original(self, start, last)
        table = self._opened()
        return self._starting_position(table.log.refresh(), table.log.head().upper)

    return wrapped(TableInput, "_batch_start", beginning)


IN_ORDER = event_promises.test_p4_each_documented_order_gives_the_rows_of_the_database
TWO_LOGS = event_promises.test_p4_rows_of_two_logs_that_do_not_compare_are_refused
CHAINED = stream_promises.test_p2_a_table_that_takes_the_changes_of_another_is_that_table


@bug("a delete takes away what its own version put", CHAINED)
def _() -> Patch:
    def by_version(original: Any, self: ChangelogForm, named: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in original(self, named) if name != CHANGE_DIFF)

    return wrapped(ChangelogForm, "ordered_by", by_version)


@bug("versions do not order changes", CHAINED)
def _() -> Patch:
    return patch.object(ChangelogForm, "ordered_by", lambda self, named: (CHANGE_DIFF,))


@bug("a delete in a change feed is passed over", CHAINED)
def _() -> Patch:
    return patch.object(
        ChangelogEnvelope, "_replaced", lambda self, batch, kinds: kinds < changelog._RETRACTIONS
    )


@bug(
    "an update of a change feed that changes the key leaves the old row",
    event_promises.test_p2_a_copy_with_another_key_is_its_source,
)
def _() -> Patch:
    return patch.object(
        ChangelogEnvelope, "_replaced", lambda self, batch, kinds: kinds == changelog._PREIMAGE
    )


@bug("binlog names are compared as text", IN_ORDER)
def _() -> Patch:
    return patch.object(source_positions, "_file_key", lambda text, names: text)


@bug("the number of a binlog orders files of all base names", TWO_LOGS)
def _() -> Patch:
    def file_key(original: Any, text: str, names: Sequence[str]) -> str | None:
        return original(f"mysql-bin.{text.rpartition('.')[2]}", ())

    return wrapped(source_positions, "_file_key", file_key)


@bug("the first epoch of a table may have logs that do not compare", TWO_LOGS)
def _() -> Patch:
    return patch.object(write_set, "with_logs", lambda properties, logs: None)


@bug("a row of a snapshot without a position is refused", IN_ORDER)
def _() -> Patch:
    return patch.object(debezium_events, "_READ", "none")


@bug("a preimage in a change feed is a row", CHAINED)
def _() -> Patch:
    return together(
        patch.object(changelog, "_PREIMAGE", None), patch.object(changelog, "_RETRACTIONS", 1)
    )


@bug(
    "a limit cuts an epoch",
    stream_promises.test_p3_an_epoch_is_whole_in_one_batch_of_a_stream,
)
def _() -> Patch:
    """The next batch begins with the epoch that the last one ended in."""

    def splits(original: Any, self: TableInput, start: Any, end: Any) -> Any:
        if start is not None:
            known = TablePosition.from_position(start)
            start = replace(known, upper=max(1, known.upper - 1)).to_position()
        return original(self, start, end)

    return wrapped(TableInput, "splits", splits)


@bug(
    "a batch takes an epoch more than its limits allow",
    stream_promises.test_p3_an_epoch_is_whole_in_one_batch_of_a_stream,
)
def _() -> Patch:
    def fitting(original: Any, self: Any, piece: Any, behind: int, bounds: Any) -> int:
        was_open = self._spent[0] < min(99, bounds[0])
        fits: int = original(self, piece, behind, bounds)
        return max(fits, int(was_open))

    return wrapped(rate_limit._Room, "fitting", fitting)


@bug(
    "the lease is taken behind the offset",
    stream_promises.test_p6_a_stream_with_a_lease_goes_on_wherever_it_was_stopped,
)
def _() -> Patch:
    return patch.object(TableInput, "_hold", lambda self, table, position: None)


@bug(
    "the lease moves to where a batch ends while it is read",
    stream_promises.test_p6_a_stream_with_a_lease_goes_on_wherever_it_was_stopped,
)
def _() -> Patch:
    ends: dict[int, Any] = {}

    def backlog(original: Any, self: TableInput, position: Any, head: Any) -> Any:
        found = original(self, position, head)
        ends[id(self)] = found.end()
        return found

    def commit(original: Any, self: TableInput, position: Any) -> None:
        original(self, ends.get(id(self), position))

    return together(wrapped(TableInput, "backlog", backlog), wrapped(TableInput, "commit", commit))


@bug(
    "version 1 is read as from the beginning",
    stream_promises.test_p6_a_checkpoint_of_an_earlier_release_is_gone_on_with,
)
def _() -> Patch:
    return patch.object(Offset, "_from_version_1", classmethod(lambda cls, record: cls()))


@bug(
    "changes that are expired are passed over",
    stream_promises.test_p5_changes_that_are_expired_are_not_passed_over_in_silence,
)
def _() -> Patch:
    return wrapped(
        table_input,
        "readable_from",
        lambda original, newest, lower, **how: max(lower, newest.first_changes),
    )


@bug(
    "a stream does not ask whose table it is",
    stream_promises.test_p1_a_stream_goes_on_only_in_the_table_that_it_knows,
)
def _() -> Patch:
    return together(
        wrapped(TableInput, "_newest", lambda original, self, look, position: look.head()),
        wrapped(Log, "require_descent", lambda original, self, *args, **how: None),
    )


@bug(
    "the end of a stream moves along with the table",
    stream_promises.test_p7_a_stream_that_is_to_take_what_there_is_comes_to_its_end,
)
def _() -> Patch:
    return patch.object(Stream, "freeze", lambda self: None)
