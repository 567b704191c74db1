"""Bugs in indexes: what they hold, which version they say they show, and what is between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.plan import expressions
from spark_upsert.plan.sql import Call
from spark_upsert.table import scan
from spark_upsert.table.index import build
from spark_upsert.table.index import build as build_module
from spark_upsert.table.index import index as rows
from spark_upsert.table.index.index import Index
from spark_upsert.table.log.properties import covered_version
from spark_upsert.table.state.snapshot import Snapshot
from tests.planted.bug import Patch, bug, wrapped
from tests.promises import test_index_promises as promises

FOUND = promises.test_p3_an_index_finds_the_rows_of_every_version
HELD = promises.test_p2_an_index_holds_the_keys_of_the_version_that_it_shows


@bug("rows are found by the index alone, without a bridge", FOUND)
def _() -> Patch:
    return patch.object(rows, "keys_between", lambda index, shows, at: rows._no_keys(at.schema))


@bug("the bridge of an index that leads is left out", FOUND)
def _() -> Patch:
    def only_behind(original: Any, index: Any, shows: int, at: Any) -> Any:
        return original(index, shows if shows < at.version else at.version, at)

    return wrapped(rows, "keys_between", only_behind)


@bug("the bridge passes over an overwrite", FOUND)
def _() -> Patch:
    return patch.object(rows, "Kind", SimpleNamespace(OVERWRITE=None))


@bug("what the index proposes is not looked up", FOUND)
def _() -> Patch:
    def all_of(batches: Any, values: Any, **how: Any) -> Any:
        return np.ones(len(batches[0]), dtype=np.bool_)

    return patch.object(rows, "is_among", all_of)


@bug("old entries of rows that moved stay in the index", HELD)
def _() -> Patch:
    def puts(original: Any, schema: Any, changes: pa.RecordBatch) -> Any:
        commands = original(schema, changes)
        return commands.filter(pa.compute.greater(commands.column("__diff"), 0))

    return wrapped(build, "_index_commands", puts)


@bug("an index says that it shows the head, wherever a step has ended", HELD)
def _() -> Patch:
    def write(original: Any, index: Index, own: Any, commands: Any, place: Any, **how: Any) -> Any:
        return original(index, own, commands, index.table_log.head().version_ref, **how)

    return wrapped(build, "_commit_entries", write)


@bug("an index whose past is expired goes on as if nothing had been between", FOUND)
def _() -> Patch:
    def usable(self: Index, own: Any) -> Any:
        place = covered_version(own)
        since = self.table_log.head().since
        if place is None or place.version >= since:
            return place
        return self.table_log.version_ref(since)

    return patch.object(Index, "usable", usable)


@bug(
    "indexes are not brought up to date behind a commit",
    promises.test_p7_an_index_is_up_to_date_behind_each_commit,
)
def _() -> Patch:
    return patch.object(build_module.Indexes, "follow", lambda self, commit: None)


CHOSEN = promises.test_p3_a_condition_finds_the_rows_of_every_version


@bug("rows that the pins leave are not judged by the condition", CHOSEN)
def _() -> Patch:
    return patch.object(scan.RowFilter, "filter", lambda self, rows: rows)


@bug("an OR pins what its left side pins", CHOSEN)
def _() -> Patch:
    return patch.object(expressions, "pins_for_or", lambda left, right: left)


@bug("what stands behind NOT is pinned", CHOSEN)
def _() -> Patch:
    def through(original: Any, tree: Any, schema: pa.Schema) -> Any:
        is_not = isinstance(tree, Call) and tree.name == "NOT"
        return original(tree.arguments[0] if is_not else tree, schema)

    return wrapped(expressions, "_pins", through)


@bug(
    "rows of keys come in the order of the hashes",
    promises.test_p3_keys_find_their_rows_at_every_version,
)
def _() -> Patch:
    def unordered(original: Any, self: Snapshot, *args: Any) -> Any:
        found = original(self, *args)
        return found._replace(at=np.sort(found.at))

    return wrapped(Snapshot, "look_up", unordered)
