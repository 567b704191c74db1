"""Bugs in what is counted of the rows, and in which rows are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.state.reduce import EMPTY, Counters
from spark_upsert.table.write import commands, outcomes, stage, write_set
from spark_upsert.table.write import stage as stage_module
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_event_promises as event_promises
from tests.promises import test_promises as promises


@bug(
    "a duplicate is counted as stale",
    promises.test_p5_of_equal_order_keys_the_later_command_wins_and_ties_are_counted,
)
def _() -> Patch:
    def count(original: Any, found: Any) -> Counters:
        kinds = found.kinds.copy()
        kinds[kinds == outcomes.Outcome.DUPLICATE] = outcomes.Outcome.STALE
        counters: Counters = original(found._replace(kinds=kinds))
        return counters

    return together(wrapped(stage, "count", count), wrapped(write_set, "count", count))


@bug(
    "what another writer did since is not looked at",
    promises.test_p5_every_row_is_counted_under_its_reason,
)
def _() -> Patch:
    def seal(original: Any, self: Any, head: Any, between: Any) -> Any:
        return original(self, head, ())

    return wrapped(write_set.WriteSet, "seal", seal)


@bug(
    "what another writer did is sought in what a compaction has left of it",
    promises.test_p5_every_row_is_counted_under_its_reason,
)
def _() -> Patch:
    def seal(original: Any, self: Any, head: Any, between: Any) -> Any:
        left = {part.file.path for part in head.slices}
        kept = [
            replace(commit, added=tuple(file for file in commit.added if file.path in left))
            for commit in between
        ]
        return original(self, head, kept)

    return wrapped(write_set.WriteSet, "seal", seal)


@bug(
    "what another writer did since is looked for in what is left of it",
    promises.test_p4_a_delete_that_is_forgotten_meanwhile_brings_no_key_back,
)
def _() -> Patch:
    def contested(original: Any, self: write_set.WriteSet, head: Manifest, between: Any) -> Any:
        newer = tuple(s for s in head.slices if s.epochs.upper > self.base.manifest.upper)
        left = [replace(c, added=(), compacted=newer) for c in between if c.is_epoch]
        return original(self, head, left)

    return wrapped(write_set.WriteSet, "_contested", contested)


@bug("a key in two tasks is counted twice", promises.test_p5_every_row_is_counted_under_its_reason)
def _() -> Patch:
    return patch.object(
        write_set, "shared_hashes", lambda own, others: np.zeros(len(own), dtype=np.bool_)
    )


@bug(
    "files of different tasks never overlap", promises.test_p5_every_row_is_counted_under_its_reason
)
def _() -> Patch:
    return patch.object(write_set, "overlaps", lambda ranges, others: iter(()))


@bug("beaten rows are not counted", promises.test_p5_every_row_is_counted_under_its_reason)
def _() -> Patch:
    def uncounted(original: Any, *args: Any) -> tuple[Counters, Any]:
        lost, examples = original(*args)
        return EMPTY - Counters(rows=lost.superseded + lost.duplicates), examples

    return together(
        wrapped(stage_module, "count_losers", uncounted),
        wrapped(write_set, "count_losers", uncounted),
    )


@bug(
    "rows that an overwrite leaves out are not counted",
    promises.test_p5_every_row_is_counted_under_its_reason,
)
def _() -> Patch:
    def sealed(original: Any, self: Any, *args: Any) -> Any:
        found = original(self, *args)
        retracted = found.draft.counters["retracted"]
        draft = replace(
            found.draft,
            counters={**found.draft.counters, "retracted": 0},
            live_rows=found.draft.live_rows + retracted,
        )
        return found._replace(draft=draft)

    return wrapped(write_set.WriteSet, "seal", sealed)


@bug("a row without a key is taken", promises.test_p5_a_row_without_a_key_is_refused)
def _() -> Patch:
    return patch.object(commands, "_all_null", lambda keys: np.zeros(len(keys[0]), dtype=np.bool_))


@bug(
    "two values that nothing orders are taken",
    promises.test_p5_two_values_that_nothing_orders_are_refused,
)
def _() -> Patch:
    return patch.object(write_set, "require_order", lambda rows, resolution: None)


@bug(
    "a row that is no command is not counted",
    event_promises.test_p5_every_row_in_is_counted_in_all_envelopes,
)
def _() -> Patch:
    return patch.object(stage_module, "skipped_in", lambda _: 0)
