"""Bugs in reads by the beginning of the key."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from spark_upsert.table.run.file import RunFile
from spark_upsert.table.state import lookup, snapshot
from spark_upsert.table.state.lookup import Prefixes
from spark_upsert.table.state.snapshot import Snapshot
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_prefix_promises as promises

FOUND = promises.test_p3_all_rows_that_begin_with_a_value_are_found_at_every_version


@bug("values that share a range of hashes are not told apart", FOUND)
def _() -> Patch:
    return patch.object(Prefixes, "filter", lambda self, rows: rows)


@bug("a range of hashes by prefix ends in its middle", FOUND)
def _() -> Patch:
    return patch.object(lookup, "_LOWER", lookup._LOWER >> lookup._LOWER.dtype.type(1))


@bug("of a read by prefix only the newest run is searched", FOUND)
def _() -> Patch:
    def newest(original: Any, self: Snapshot, wanted: Prefixes, names: Any) -> Any:
        return (parts[-1:] for parts in original(self, wanted, names))

    return wrapped(Snapshot, "_parts_having", newest)


@bug(
    "a common value is cut as if hashes were uniform",
    promises.test_p7_a_common_value_is_read_some_rows_at_a_time,
)
def _() -> Patch:
    return patch.object(
        snapshot, "cut_evenly", lambda hash_range, runs, count: hash_range.cut(count)
    )


@bug(
    "a first snapshot is cut as if hashes were uniform",
    promises.test_p7_a_stream_takes_a_common_value_some_rows_at_a_time,
)
def _() -> Patch:
    return patch.object(RunFile, "spread", lambda self: iter([(self.hash_range, self.rows)]))
