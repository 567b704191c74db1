"""Bugs in which of two commands of a key wins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from spark_upsert.core import precedence
from spark_upsert.core.precedence import Precedence
from spark_upsert.core.schema import DIFF
from spark_upsert.table import maintenance
from spark_upsert.table.changelog import changes
from spark_upsert.table.compaction import worker
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.state import lookup, reduce, resolve
from spark_upsert.table.state.reduce import ABSENT, Counters, EntryMatches
from spark_upsert.table.write import outcomes, stage, write_set
from tests.planted.bug import Patch, applied_by, bug, together, wrapped
from tests.promises import test_promises as promises


@bug(
    "the smaller order key wins", promises.test_p4_batches_arrival_retries_and_writers_do_not_matter
)
def _() -> Patch:
    def inverted(self: Precedence) -> Any:
        return tuple((by, not greater_wins) for by, greater_wins in criteria(self))

    criteria = vars(Precedence)["criteria"].fget
    return patch.object(Precedence, "criteria", property(inverted))


@bug(
    "of equal order keys the earlier entry wins, whoever asks",
    promises.test_p5_of_equal_order_keys_the_later_command_wins_and_ties_are_counted,
)
def _() -> Patch:
    return patch.object(Precedence, "later_wins_ties", property(lambda self: False))


@bug(
    "a look-up takes the later of two epochs, whatever the order",
    promises.test_p5_every_row_is_counted_under_its_reason,
)
def _() -> Patch:
    def latest(found: Any, rows: Any, epochs: Any, hits: Any, count: int) -> EntryMatches:
        at = np.full(count, ABSENT, dtype=np.int64)
        for hit in hits:
            at[hit.probes] = hit.rows
        return EntryMatches(rows, at)

    return patch.object(reduce.LastWriteWins, "gather", latest)


@bug("order keys of the past do not count", promises.test_p5_every_row_is_counted_under_its_reason)
def _() -> Patch:
    def classify(original: Any, *args: Any, **how: Any) -> Any:
        return original(*args, **{**how, "is_overwrite": True})

    return wrapped(outcomes, "classify", classify)


@bug(
    "the earlier of two tied rows wins",
    promises.test_p5_of_equal_order_keys_the_later_command_wins_and_ties_are_counted,
)
def _() -> Patch:
    def best(original: Any, *args: Any, **how: Any) -> Any:
        return original(*args, **{**how, "is_one_task": False})

    return wrapped(resolve, "pick_winners", best)


@bug(
    "a tie with the table is taken for a duplicate",
    promises.test_p5_of_equal_order_keys_the_later_command_wins_and_ties_are_counted,
)
def _() -> Patch:
    return patch.object(
        reduce, "equal_contents", lambda one, chosen, *_: np.ones(len(chosen), dtype=np.bool_)
    )


@bug(
    "tied rows of two tasks are decided by their place",
    promises.test_p4_a_retry_decides_a_tie_the_same,
)
def _() -> Patch:
    return patch.object(precedence, "_keep_greatest_contents", lambda *_: None)


@bug(
    "changes behind late rows are computed against deletes that are forgotten",
    promises.test_p2_late_rows_that_are_applied_stand_in_the_changelog,
)
def _() -> Patch:
    return patch.object(changes, "_has_late", lambda commit: False)


@bug(
    "keys are not compared when hashes are equal",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def same(original: Any, rows: Any, members: Any, group: Any) -> Any:
        result = np.zeros(len(members), dtype=np.bool_)
        result[1:] = group[1:] == group[:-1]
        return result

    return wrapped(resolve, "_same_key_as_before", same)


@bug(
    "a look-up takes the first key of a hash",
    promises.test_p5_every_row_is_counted_under_its_reason,
)
def _() -> Patch:
    return patch.object(
        lookup, "equal_rows", lambda left, right: np.ones(len(left[0]), dtype=np.bool_)
    )


@bug(
    "a look-up does not go on behind the first key of a hash",
    promises.test_p5_every_row_is_counted_under_its_reason,
)
def _() -> Patch:
    def search(original: Any, rows: Any, index: Any, part: Any, hashes: Any, keys: Any) -> Any:
        found, at = original(rows, index, part, hashes, keys)
        own = part.unverified_hashes
        first = np.searchsorted(own, own[at]) == at
        return found[first], at[first]

    return wrapped(lookup, "_search", search)


@bug(
    "deletes are dropped inside an epoch",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def seal(original: Any, self: Any, carried: Any) -> Iterator[pa.RecordBatch]:
        for batch in original(self, carried):
            kept = batch.filter(pa.array(batch.column(DIFF).to_numpy() > 0))
            self._counted += Counters(absent=batch.num_rows - kept.num_rows)
            if kept.num_rows:
                yield kept

    return wrapped(stage.Stash, "seal", seal)


@bug(
    "what was spilled to disk is forgotten",
    promises.test_p1_what_does_not_fit_in_memory_is_not_lost,
)
def _() -> Patch:
    def spill(original: Any, self: Any, batch: Any) -> None:
        original(self, batch)
        self._spilled[1:] = []

    return wrapped(stage.Stash, "_spill", spill)


@bug(
    "a merge keeps the first entry of a key instead of its winner",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def reduced(original: Any, *args: Any) -> Any:
        found, slices = original(*args)
        winners = found.at.copy()
        if len(found.losers):
            place = np.flatnonzero(winners == found.beaten_by[0])
            winners[place] = found.losers[0]
        return found._replace(at=winners), slices

    return wrapped(worker, "_reduce_range", reduced)


@bug(
    "a merge drops deletes, and the mark is not raised",
    promises.test_p4_a_forgotten_delete_brings_no_key_back,
)
def _() -> Patch:
    def compacted(original: Any, *args: Any, **how: Any) -> Any:
        return replace(original(*args, **how), low_water=None)

    return wrapped(maintenance, "compact_runs", compacted)


@bug(
    "late commands below the mark are applied",
    promises.test_p4_a_forgotten_delete_brings_no_key_back,
)
def _() -> Patch:
    def classify(original: Any, *args: Any, **how: Any) -> Any:
        return original(*args, **{**how, "low_water": None})

    return wrapped(outcomes, "classify", classify)


@bug(
    "late commands are judged again only if the mark moved",
    promises.test_p4_a_delete_forgotten_below_the_mark_brings_no_key_back,
)
def _() -> Patch:
    def applied(original: Any, before: Any, commit: Any) -> Manifest:
        after: Manifest = original(before, commit)
        moved = before is not None and after.low_water != before.low_water
        return after if before is None or moved else replace(after, forgot=before.forgot)

    return applied_by(applied)


@bug(
    "late commands are not judged again at the commit",
    promises.test_p4_a_delete_that_is_forgotten_meanwhile_brings_no_key_back,
)
def _() -> Patch:
    return patch.object(
        write_set.WriteSet, "_without_late", lambda self, newest, staged, scratch: staged
    )


@bug(
    "a file of deletes that newer runs hold is written again and again",
    promises.test_p7_a_delete_that_cannot_be_forgotten_is_not_written_again_for_ever,
)
def _() -> Patch:
    def compacted(original: Any, *args: Any, **how: Any) -> Any:
        made = original(*args, **how)
        return replace(made, added=tuple(replace(part, is_held=False) for part in made.added))

    return together(
        wrapped(promises, "compact_runs", compacted),
        wrapped(maintenance, "compact_runs", compacted),
    )
