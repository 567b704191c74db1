"""Plant bugs and see the promises break: a test that cannot fail is worth nothing.

Each bug is a change of one rule, made in this process by a patch. For each, the named test
of `tests.promises` is run until it fails; a bug that survives is a hole in the tests.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from pyspark_upsertflow import python_input
from pyspark_upsertflow.python_input import PythonInput
from spark_upsert import feedback as operator
from spark_upsert import table
from spark_upsert.changelog import changes, render, stretches
from spark_upsert.changelog.modes import Deduplication
from spark_upsert.errors import UpsertFlowError
from spark_upsert.merge import assembly, orders, wyrand
from spark_upsert.merge.channel import Channel
from spark_upsert.merge.documents import Documents
from spark_upsert.merge.pressure import Pressure
from spark_upsert.merge.readers import Readers
from spark_upsert.merge.spill import SpillingStore
from spark_upsert.model import hashing, precedence
from spark_upsert.model.hash_range import HashRange
from spark_upsert.model.precedence import Precedence
from spark_upsert.model.schema import CHANGE_DIFF, DIFF
from spark_upsert.schedule import BANDS, DirtySet, Schedule, Service, Turn, priority, scheduler
from spark_upsert.schedule.bands import LOWEST
from spark_upsert.schedule.governor import Governor
from spark_upsert.source import exact, file_input, pace, table_input
from spark_upsert.source.file_position import Delivered
from spark_upsert.source.inputs import NamedInputs, Removed
from spark_upsert.source.offset import Offset
from spark_upsert.source.stream import Stream
from spark_upsert.source.table_input import TableInput
from spark_upsert.source.table_position import TablePosition
from spark_upsert.state import history, lookup, mechanism, resolve
from spark_upsert.state.caps import Caps
from spark_upsert.state.compaction import worker
from spark_upsert.state.counters import EMPTY, Counters
from spark_upsert.state.log import checkpoints, fold, read
from spark_upsert.state.log import log as log_module
from spark_upsert.state.log.codec import commit_to_json
from spark_upsert.state.log.entries import commit_path
from spark_upsert.state.log.log import Log
from spark_upsert.state.log.manifest import Commit, Draft, Kind, Manifest, Slice
from spark_upsert.state.log.read import LogReader
from spark_upsert.state.retention import PressureReport
from spark_upsert.state.retention import worker as retention
from spark_upsert.state.retention.policy import Unnamed
from spark_upsert.state.run import file as run
from spark_upsert.store import local
from spark_upsert.store.records import encode
from spark_upsert.table import Table
from spark_upsert.upsert import admission, commands, outcomes, stage, stash, write_set
from spark_upsert.upsert import together as group
from spark_upsert.upsert.admission import Admission
from spark_upsert.upsert.envelopes import changelog
from spark_upsert.upsert.envelopes.changelog import ChangelogForm
from spark_upsert.watchers import Watcher, Watchers
from spark_upsert_sink import writers
from tests.promises import test_file_promises as file_promises
from tests.promises import test_group_promises as group_promises
from tests.promises import test_merge_promises as merges
from tests.promises import test_order_promises as order_promises
from tests.promises import test_pressure_promises as pressure_promises
from tests.promises import test_promises as promises
from tests.promises import test_python_promises as python_promises
from tests.promises import test_schedule_promises as schedules
from tests.promises import test_watch_promises as watch_promises
from tests.support.disk import Loss
from tests.support.stores import MemoryStore, forget_runs_and_logs
from tests.support.workload import OPERATIONS

Patch = AbstractContextManager[Any]


@dataclass(frozen=True)
class Bug:
    """A change of one rule, and the test that must notice it."""

    name: str
    plant: Callable[[], Patch]
    caught_by: Callable[..., None]

    def __str__(self) -> str:
        return self.name


BUGS: list[Bug] = []


def bug(name: str, caught_by: Callable[..., None]) -> Callable[[Callable[[], Patch]], None]:
    """Add a bug to the list."""

    def add(plant: Callable[[], Patch]) -> None:
        BUGS.append(Bug(name, plant, caught_by))

    return add


def wrapped(owner: Any, name: str, around: Callable[..., Any]) -> Patch:
    """Replace a function by one that gets the original as its first argument."""
    original = getattr(owner, name)

    def replacement(*args: Any, **how: Any) -> Any:
        return around(original, *args, **how)

    return patch.object(owner, name, replacement)


@contextmanager
def together(*patches: Patch) -> Iterator[None]:
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


def applied_by(around: Callable[..., Manifest]) -> Patch:
    """Replace the rule by which a version follows on the one before it."""
    return together(wrapped(read, "apply", around), wrapped(log_module, "apply", around))


# -- durability ---------------------------------------------------------------------------


@bug(
    "a file is not synced before it is published",
    promises.test_p6_what_was_reported_survives_a_power_loss,
)
def _() -> Patch:
    def leave(original: Any, self: Any, kind: Any, error: Any, trace: Any) -> None:
        self._file.close()
        if error is not None:
            self._target.unlink(missing_ok=True)
        elif self._sync_parent:
            local.sync_folder(self._target.parent)

    return wrapped(local.LocalSink, "__exit__", leave)


@bug(
    "a folder is not synced behind a commit",
    promises.test_p6_what_was_reported_survives_a_power_loss,
)
def _() -> Patch:
    return patch.object(local, "sync_folder", lambda folder: None)


@bug(
    "a version that another left half-way is not synced",
    promises.test_p6_what_a_retry_or_a_reader_finds_survives_a_power_loss,
)
def _() -> Patch:
    return patch.object(Log, "_make_durable", lambda self, version: None)


@bug(
    "a folder that exists is taken to be durable",
    promises.test_p6_folders_of_a_killed_process_are_made_durable_by_the_next,
)
def _() -> Patch:
    def make(original: Any, self: Any, folder: Any) -> None:
        if not folder.is_dir():
            make(original, self, folder.parent)
            folder.mkdir(exist_ok=True)
            local.sync_folder(folder.parent)

    def sync(original: Any, self: Any, folder: Any) -> None:
        """Nothing: it exists."""

    store = local.LocalStore
    return together(wrapped(store, "_make_folder", make), wrapped(store, "_sync_once", sync))


@bug(
    "the rows of a timestamp are given up before its commit",
    promises.test_p1_a_source_that_retries_after_an_error_loses_nothing,
)
def _() -> Patch:
    def emit(original: Any, self: Any, ts: int) -> Any:
        try:
            return original(self, ts)
        except Exception:
            self._close_stash(ts)
            self._emitting = None
            raise

    return wrapped(operator.FeedbackUpsert, "_emit", emit)


# -- identity -------------------------------------------------------------------------------


@bug(
    "a commit is not looked for behind its put",
    promises.test_p1_what_is_put_where_the_table_was_is_not_reported,
)
def _() -> Patch:
    return wrapped(Log, "_is_in_log", lambda original, self, manifest: True)


@bug(
    "a commit is not looked for before its put",
    promises.test_p1_a_writer_that_dies_leaves_nothing_in_another_tables_log,
)
def _() -> Patch:
    return wrapped(LogReader, "has", lambda original, self, manifest: True)


@bug(
    "a stray commit is left in another table's log",
    promises.test_p1_what_is_put_where_the_table_was_is_not_reported,
)
def _() -> Patch:
    return wrapped(Log, "_take_back", lambda original, self, commit: None)


@bug(
    "an abort removes what a commit may yet name",
    promises.test_p1_a_put_that_lands_behind_the_abort_finds_its_files,
)
def _() -> Patch:
    def abort(original: Any, self: writers._Write, messages: list[Any]) -> None:
        self.table().discard(writers._staged(messages), writers._compacted(messages))

    return wrapped(writers._Write, "abort", abort)


@bug(
    "a vacuum removes what was left behind without a frontier",
    promises.test_p1_a_put_that_lands_behind_a_vacuum_creates_nothing,
)
def _() -> Patch:
    def before(original: Any, self: Unnamed, fence: Any) -> Any:
        return self.orphans

    def leave(original: Any, *args: Any) -> None:
        """Raise no frontier."""

    return together(wrapped(Unnamed, "before", before), wrapped(retention, "_raise_fence", leave))


@bug(
    "what a process remembers of a log is believed",
    promises.test_p1_what_a_process_remembers_is_not_what_there_is,
)
def _() -> Patch:
    def proven(original: Any, self: LogReader, base: Manifest | None) -> Manifest | None:
        if base is not None and base is self._recalled():
            return self._roll(base, None)
        return original(self, base)

    return wrapped(LogReader, "_proven", proven)


@bug(
    "a check believes what the process remembers",
    promises.test_p5_a_check_finds_damage_of_what_the_process_has_read,
)
def _() -> Patch:
    return wrapped(LogReader, "anew", lambda original, self: self)


@bug(
    "a query may leave batches out",
    promises.test_p1_a_query_goes_on_only_behind_its_earlier_batches,
)
def _() -> Patch:
    return wrapped(Manifest, "lacks", lambda original, self, transaction: False)


# -- the commit point ---------------------------------------------------------------------


@bug(
    "a commit replaces the version that another made", promises.test_p1_writers_that_race_all_get_in
)
def _() -> Patch:
    def put(original: Any, self: Any, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True

    def stale(original: Any, self: Any) -> Any:
        return original(self) if self._head is None else self._head

    return together(wrapped(MemoryStore, "put_if_absent", put), wrapped(Log, "try_head", stale))


@bug("the transaction is ignored", promises.test_p1_reported_commands_are_there_exactly_once)
def _() -> Patch:
    return patch.object(Manifest, "has", lambda self, transaction: False)


@bug(
    "the transaction is forgotten by the next version",
    promises.test_p1_reported_commands_are_there_exactly_once,
)
def _() -> Patch:
    def forget(original: Any, before: Any, commit: Commit) -> Manifest:
        after: Manifest = original(before, commit)
        kept = {each.writer: each.number for each in commit.transactions}
        return replace(after, transactions=kept)

    return applied_by(forget)


@bug(
    "of the transactions of a version only one counts",
    promises.test_p1_what_several_writers_put_into_one_version_is_there_once,
)
def _() -> Patch:
    def first(original: Any, before: Any, commit: Commit) -> Manifest:
        after: Manifest = original(before, replace(commit, transactions=commit.transactions[:1]))
        return after

    return applied_by(first)


@bug(
    "an error behind the commit is taken for a lost race",
    promises.test_p1_an_error_behind_the_commit_does_not_commit_twice,
)
def _() -> Patch:
    def put(original: Any, self: Any, commit: Commit) -> bool:
        try:
            return bool(
                self._store.put_if_absent(
                    commit_path(commit.version), encode(commit_to_json(commit))
                )
            )
        except OSError:
            return False

    return wrapped(Log, "_try_put", put)


@bug(
    "any version that is there is taken for our own", promises.test_p1_writers_that_race_all_get_in
)
def _() -> Patch:
    def put(original: Any, self: Any, commit: Commit) -> bool:
        original(self, commit)
        return True

    def stale(original: Any, self: Any) -> Any:
        return original(self) if self._head is None else self._head

    return together(wrapped(Log, "_try_put", put), wrapped(Log, "try_head", stale))


@bug(
    "an epoch of several tasks is committed in parts",
    promises.test_p3_an_epoch_of_several_tasks_is_one_version,
)
def _() -> Patch:
    def commit(original: Any, self: Table, whole: write_set.WriteSet) -> Commit | None:
        last = None
        for staged in whole.staged:
            last = original(self, replace(whole, staged=(staged,), transactions=()))
        return last

    return wrapped(Table, "commit", commit)


@bug(
    "the files of a repeated batch are removed although in use",
    promises.test_p2_a_table_that_takes_the_changes_of_another_is_that_table,
)
def _() -> Patch:
    def discard(original: Any, self: Table, staged: Any, *rest: Any, **how: Any) -> None:
        for part in self.log.head().slices[-1:]:
            self.store.delete(part.file.path)
        forget_runs_and_logs()

    return wrapped(Table, "discard", discard)


@bug("a checkpoint loses a run", promises.test_p2_folding_the_changelog_gives_every_snapshot)
def _() -> Patch:
    def to_json(original: Any, self: Manifest) -> dict[str, Any]:
        record: dict[str, Any] = original(self)
        return {**record, "slices": record["slices"][:-1]}

    return wrapped(checkpoints, "manifest_to_json", to_json)


@bug(
    "a merge that was planned before a restore is committed behind it",
    promises.test_p4_a_merge_from_before_a_restore_brings_no_key_back,
)
def _() -> Patch:
    def commits(original: Any, *args: Any, **how: Any) -> Iterator[Commit]:
        for commit in original(*args, **how):
            yield replace(commit, restored=None)

    return wrapped(Log, "commits", commits)


@bug(
    "a restore keeps the low-water mark of the present",
    promises.test_p4_a_restored_table_takes_what_the_old_one_would_have_taken,
)
def _() -> Patch:
    def restoration(original: Any, head: Manifest, old: Manifest) -> Draft | None:
        return original(head, replace(old, low_water=head.low_water))

    return wrapped(table, "restoration", restoration)


# -- who wins -----------------------------------------------------------------------------


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
    return patch.object(
        mechanism, "beats", lambda rows, newer, older, later: np.ones(len(newer), dtype=np.bool_)
    )


@bug("order keys of the past do not count", promises.test_p5_every_row_is_counted_under_its_reason)
def _() -> Patch:
    def classify(original: Any, *args: Any, **how: Any) -> Any:
        return original(*args, **{**how, "is_overwrite": True})

    return wrapped(stage, "classify", classify)


@bug(
    "the earlier of two tied rows wins",
    promises.test_p5_of_equal_order_keys_the_later_command_wins_and_ties_are_counted,
)
def _() -> Patch:
    def best(original: Any, *args: Any, **how: Any) -> Any:
        return original(*args, **{**how, "is_one_task": False})

    return wrapped(resolve, "best_of_groups", best)


@bug(
    "a tie with the table is taken for a duplicate",
    promises.test_p5_of_equal_order_keys_the_later_command_wins_and_ties_are_counted,
)
def _() -> Patch:
    return patch.object(
        mechanism, "equal_contents", lambda one, chosen, *_: np.ones(len(chosen), dtype=np.bool_)
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
    return patch.object(stretches, "_has_late", lambda commit: False)


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
    def seal(original: Any, self: Any) -> Iterator[pa.RecordBatch]:
        for batch in original(self):
            kept = batch.filter(pa.array(batch.column(DIFF).to_numpy() > 0))
            self._counted += Counters(absent=batch.num_rows - kept.num_rows)
            if kept.num_rows:
                yield kept

    return wrapped(stash.Stash, "seal", seal)


@bug(
    "what was spilled to disk is forgotten",
    promises.test_p1_what_does_not_fit_in_memory_is_not_lost,
)
def _() -> Patch:
    def spill(original: Any, self: Any, batch: Any) -> None:
        original(self, batch)
        self._spilled[1:] = []

    return wrapped(stash.Stash, "_spill", spill)


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

    return wrapped(worker, "_reduced", reduced)


@bug(
    "a merge drops deletes, and the mark is not raised",
    promises.test_p4_a_forgotten_delete_brings_no_key_back,
)
def _() -> Patch:
    def compacted(original: Any, *args: Any, **how: Any) -> Any:
        return replace(original(*args, **how), low_water=None)

    return wrapped(table, "compact_runs", compacted)


@bug(
    "late commands below the mark are applied",
    promises.test_p4_a_forgotten_delete_brings_no_key_back,
)
def _() -> Patch:
    def classify(original: Any, *args: Any, **how: Any) -> Any:
        return original(*args, **{**how, "low_water": None})

    return wrapped(stage, "classify", classify)


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
        wrapped(promises, "compact_runs", compacted), wrapped(table, "compact_runs", compacted)
    )


# -- what readers see ----------------------------------------------------------------------


@bug(
    "a commit that overwrites leaves the old runs",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def kept(original: Any, before: Any, commit: Commit) -> Manifest:
        after: Manifest = original(before, commit)
        if commit.kind is Kind.OVERWRITE:
            return replace(after, slices=(*before.slices, *after.slices))
        return after

    return applied_by(kept)


@bug(
    "a merge leaves the runs that it replaces cut in the wrong place",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def cut(original: Any, part: Slice, gone: Any) -> list[Slice]:
        return []

    def taken(original: Any, slices: Any, gone: Any) -> Any:
        return original(slices[1:], gone)

    return wrapped(fold, "_without", taken)


@bug("the last hash of a range is left out", promises.test_p2_however_the_hashes_are_cut)
def _() -> Patch:
    def rows_of(original: Any, self: HashRange, hashes: Any) -> tuple[int, int]:
        start, stop = original(HashRange(self.first, max(self.first, self.last)), hashes)
        return start, stop

    return wrapped(HashRange, "rows_of", rows_of)


@bug("both neighbours read the hash at their border", promises.test_p2_however_the_hashes_are_cut)
def _() -> Patch:
    def rows_of(original: Any, self: HashRange, hashes: Any) -> tuple[int, int]:
        result: tuple[int, int] = original(
            HashRange(self.first, min(self.end + 1, hashing.HASH_END)), hashes
        )
        return result

    return wrapped(HashRange, "rows_of", rows_of)


@bug(
    "a read shows every entry of a key", promises.test_p2_folding_the_changelog_gives_every_snapshot
)
def _() -> Patch:
    return patch.object(
        mechanism, "beaten_by_others", lambda rows, epochs: np.empty(0, dtype=np.int64)
    )


@bug(
    "the changelog shows commands that had no effect",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def effective(original: Any, rows: Any, chosen: Any, *rest: Any) -> Any:
        return np.ones(len(chosen), dtype=np.bool_)

    return wrapped(history, "_effective", effective)


@bug(
    "what stands behind an overwrite is compared along with it",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def grouped(original: Any, epochs: Any) -> Any:
        groups: list[Any] = []
        for cut, commits in original(epochs):
            if cut is stretches.Cut.BEHIND_OVERWRITE:
                groups[-1][1].extend(commits)
            else:
                groups.append((cut, commits))
        return groups

    return wrapped(stretches, "grouped", grouped)


@bug(
    "net changes retract the row before the last one",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def net(original: Any, found: Any, begins: Any) -> Any:
        lasts = np.roll(begins, -1)
        return replace(original(found, begins), old=found.old[lasts])

    return wrapped(changes, "_net", net)


@bug(
    "an unchanged value is shown as an update",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    return patch.object(
        render, "_changed", lambda rows, old, new: np.ones(len(old), dtype=np.bool_)
    )


@bug(
    "a time-travelling read gets the version before",
    promises.test_p2_folding_the_changelog_gives_every_snapshot,
)
def _() -> Patch:
    def at(original: Any, self: Log, version: int) -> Manifest:
        found: Manifest = original(self, max(0, version - 1))
        return found

    return wrapped(Log, "at", at)


@bug("blocks are not verified", promises.test_p5_a_damaged_run_is_an_error_and_not_a_smaller_table)
def _() -> Patch:
    return patch.object(run.Run, "_verify", lambda self, blocks: None)


@bug(
    "every block of a run is read for a look-up",
    promises.test_p7_a_small_upsert_costs_the_same_in_a_large_table,
)
def _() -> Patch:
    def verify(original: Any, self: Any, blocks: Any) -> None:
        original(self, np.arange(len(self._blocks)))

    return wrapped(run.Run, "_verify", verify)


# -- accounting ----------------------------------------------------------------------------


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


@bug("beaten rows are not counted", promises.test_p5_every_row_is_counted_under_its_reason)
def _() -> Patch:
    def uncounted(original: Any, *args: Any) -> tuple[Counters, Any]:
        lost, examples = original(*args)
        return EMPTY - Counters(rows=lost.superseded + lost.duplicates), examples

    return together(
        wrapped(stash, "count_losers", uncounted), wrapped(write_set, "count_losers", uncounted)
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


# -- streams --------------------------------------------------------------------------------


@bug(
    "the pieces of a snapshot overlap",
    promises.test_p2_a_stream_folds_to_the_table_however_it_is_cut_and_stopped,
)
def _() -> Patch:
    def wider(original: Any, manifest: Any, options: Any, due: HashRange) -> Any:
        return original(manifest, options, HashRange(due.first - due.first // 4, due.end))

    return wrapped(table_input, "rows_splits", wider)


@bug(
    "the pieces of a snapshot leave a gap",
    promises.test_p2_a_stream_folds_to_the_table_however_it_is_cut_and_stopped,
)
def _() -> Patch:
    def narrower(original: Any, manifest: Any, options: Any, due: HashRange) -> Any:
        return original(manifest, options, HashRange(due.first, due.end - due.width // 4))

    return wrapped(table_input, "rows_splits", narrower)


@bug(
    "a replay looks at the head",
    promises.test_p2_a_stream_folds_to_the_table_however_it_is_cut_and_stopped,
)
def _() -> Patch:
    def splits(original: Any, self: TableInput, start: Any, end: Any) -> Any:
        return original(self, start, self.head())

    return wrapped(TableInput, "splits", splits)


@bug(
    "the first batch of a replay begins where a new stream would",
    promises.test_p2_a_stream_folds_to_the_table_however_it_is_cut_and_stopped,
)
def _() -> Patch:
    def beginning(original: Any, self: TableInput, start: Any, last: Any) -> Any:
        if start is not None:
            return original(self, start, last)
        table = self._opened()
        return self._begin(table, table.log.head().upper)

    return wrapped(TableInput, "_beginning", beginning)


CHAINED = promises.test_p2_a_table_that_takes_the_changes_of_another_is_that_table


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
    return patch.object(changelog, "_PREIMAGE", changelog._DELETE)


@bug("a preimage in a change feed is a row", CHAINED)
def _() -> Patch:
    return together(
        patch.object(changelog, "_PREIMAGE", None), patch.object(changelog, "_RETRACTIONS", 1)
    )


@bug(
    "a limit cuts an epoch",
    promises.test_p3_an_epoch_is_whole_in_one_batch_of_a_stream,
)
def _() -> Patch:
    """The next batch begins with the epoch that the last one ended in."""

    def splits(original: Any, self: TableInput, start: Any, end: Any) -> Any:
        if start is not None:
            known = TablePosition.unpacked(start)
            start = replace(known, upper=max(1, known.upper - 1)).packed()
        return original(self, start, end)

    return wrapped(TableInput, "splits", splits)


@bug(
    "a batch takes an epoch more than its limits allow",
    promises.test_p3_an_epoch_is_whole_in_one_batch_of_a_stream,
)
def _() -> Patch:
    def fitting(original: Any, self: Any, piece: Any, behind: int, bounds: Any) -> int:
        was_open = self._spent[0] < min(99, bounds[0])
        fits: int = original(self, piece, behind, bounds)
        return max(fits, int(was_open))

    return wrapped(pace._Room, "fitting", fitting)


@bug(
    "the lease is taken behind the offset",
    promises.test_p6_a_stream_with_a_lease_goes_on_wherever_it_was_stopped,
)
def _() -> Patch:
    return patch.object(TableInput, "_hold", lambda self, table, position: None)


@bug(
    "the lease moves to where a batch ends while it is read",
    promises.test_p6_a_stream_with_a_lease_goes_on_wherever_it_was_stopped,
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
    promises.test_p6_a_checkpoint_of_an_earlier_release_is_gone_on_with,
)
def _() -> Patch:
    return patch.object(Offset, "_from_version_1", classmethod(lambda cls, record: cls()))


@bug(
    "changes that are expired are passed over",
    promises.test_p5_changes_that_are_expired_are_not_passed_over_in_silence,
)
def _() -> Patch:
    return wrapped(
        table_input,
        "readable_from",
        lambda original, newest, lower, **how: max(lower, newest.first_changes),
    )


@bug(
    "a stream does not ask whose table it is",
    promises.test_p1_a_stream_goes_on_only_in_the_table_that_it_knows,
)
def _() -> Patch:
    return together(
        wrapped(TableInput, "_newest", lambda original, self, table, position: table.log.head()),
        wrapped(Log, "require_descent", lambda original, self, *args, **how: None),
    )


@bug(
    "the end of a stream moves along with the table",
    promises.test_p7_a_stream_that_is_to_take_what_there_is_comes_to_its_end,
)
def _() -> Patch:
    return patch.object(Stream, "freeze", lambda self: None)


# -- merges ---------------------------------------------------------------------------------


@bug(
    "the cursor of a round robin stays where it was",
    merges.test_p4_an_exact_order_does_not_depend_on_how_it_is_cut,
)
def _() -> Patch:
    def stay(original: Any, order: orders.RoundRobin, counts: Any, rows: int) -> Any:
        return original(order, counts, rows)[0], order

    return wrapped(orders, "_round_robin", stay)


@bug(
    "a seeded order begins anew at each cut",
    merges.test_p4_an_exact_order_does_not_depend_on_how_it_is_cut,
)
def _() -> Patch:
    def lose(original: Any, order: orders.Seeded, counts: Any, rows: int) -> Any:
        return original(order, counts, rows)[0], order

    return wrapped(orders, "_seeded", lose)


@bug(
    "where one input is left nothing is drawn",
    merges.test_p4_an_exact_order_is_the_one_that_is_told_row_by_row,
)
def _() -> Patch:
    def spare(original: Any, state: int, bound: int, count: int) -> Any:
        drawn, behind = original(state, bound, count)
        return drawn, state if bound == 1 else behind

    return wrapped(orders, "draws", spare)


@bug(
    "an input that runs dry is drawn until the end of a block",
    merges.test_p4_an_exact_order_is_the_one_that_is_told_row_by_row,
)
def _() -> Patch:
    return patch.object(orders, "_until_one_is_dry", lambda drawn, given, left: len(drawn))


@bug(
    "a low number is not drawn again",
    merges.test_p4_draws_below_a_high_bound_are_even,
)
def _() -> Patch:
    def keep(original: Any, state: int, bound: int, count: int) -> Any:
        numbers, behind = wyrand.raw_numbers(state, count)
        return wyrand._product(numbers, np.uint64(bound))[0], behind

    return wrapped(wyrand, "draws", keep)


@bug(
    "rows that are arranged lie as their inputs do",
    merges.test_p1_rows_that_are_arranged_come_once_and_in_their_order,
)
def _() -> Patch:
    return patch.object(assembly, "_places", lambda picks: np.arange(len(picks)))


@bug(
    "a full channel takes more",
    merges.test_p7_what_waits_is_bounded_however_threads_run,
)
def _() -> Patch:
    return patch.object(Channel, "has_room", lambda self, item: True)


@bug(
    "who takes wakes no reader",
    merges.test_p1_all_rows_come_out_however_threads_run,
)
def _() -> Patch:
    def take(self: Readers, reader: Any) -> Any:
        item = reader.channel.take()
        if not reader.channel.is_empty:
            self._ready.append(reader)
        self._finish_if_drained(reader)
        return item

    return patch.object(Readers, "_take", take)


@bug(
    "an input that ends wakes nobody",
    merges.test_p1_all_rows_come_out_however_threads_run,
)
def _() -> Patch:
    def finish(self: Readers, reader: Any) -> None:
        if reader.channel.is_drained:
            self._finished.add(reader.name)
            del self._open[reader.name]
            self._unfinished -= 1

    return patch.object(Readers, "_finish_if_drained", finish)


@bug(
    "the next input is opened before the last one was taken",
    merges.test_p7_what_waits_is_bounded_however_threads_run,
)
def _() -> Patch:
    return patch.object(Readers, "_wait_until_drained", lambda self, reader: None)


@bug(
    "an input that is awaited is paused like any other",
    merges.test_p1_all_rows_come_out_however_threads_run,
)
def _() -> Patch:
    return patch.object(Pressure, "may_read", lambda self, *, is_awaited: not self.is_paused)


@bug(
    "an end does not wake those who wait for room",
    merges.test_p6_a_merge_that_fails_or_is_closed_leaves_no_thread,
)
def _() -> Patch:
    def end(self: Readers) -> None:
        self._is_closed = True
        self._something.notify_all()

    return patch.object(Readers, "_end", end)


@bug(
    "a batch that was spilled stays in memory as well",
    merges.test_p1_what_inputs_spill_comes_back,
)
def _() -> Patch:
    def spill_twice(original: Any, self: SpillingStore, needed: int) -> None:
        before = {name: list(kept.in_memory) for name, kept in self._kept.items()}
        original(self, needed)
        for name, batches in before.items():
            self._kept[name].in_memory.extendleft(batches[:1])

    return wrapped(SpillingStore, "_spill", spill_twice)


@bug(
    "a spill that failed leaves its file",
    merges.test_p6_a_spill_that_fails_loses_nothing_and_leaves_no_file,
)
def _() -> Patch:
    return patch.object(Path, "unlink", lambda self, missing_ok=False: None)


@bug(
    "a document is closed when one input has closed it",
    merges.test_p3_a_document_is_closed_once_and_when_all_inputs_have_closed_it,
)
def _() -> Patch:
    def closings(self: Any) -> Iterator[Any]:
        for document in self._documents.values():
            yield document.closings[0][1]

    return patch.object(Documents, "closings", closings)


# -- exact orders of a stream ---------------------------------------------------------------

ANY_CUT = order_promises.test_p4_a_stream_has_the_order_told_row_by_row_wherever_it_stops


def remembered(change: Callable[[exact.Standing], dict[str, Any]]) -> Patch:
    """Let what a checkpoint has of an exact order be read with a change."""

    def read_back(original: Any, record: Any) -> exact.Standing:
        found = original(record)
        return replace(found, **change(found))

    return wrapped(exact.Standing, "from_json", read_back)


@bug("the state of an order is lost where a batch ends", ANY_CUT)
def _() -> Patch:
    def lose(original: Any, order: Any, *of: Any) -> Any:
        return original(order, *of)[0], order

    return wrapped(exact, "spend", lose)


@bug("rows of an epoch that are delivered come again", ANY_CUT)
def _() -> Patch:
    return remembered(lambda found: {"skip": {}})


@bug("rows of an epoch that are delivered are counted again", ANY_CUT)
def _() -> Patch:
    def count(original: Any, self: exact._Front, most: int | None) -> int:
        rows: int = original(self, most)
        return rows + self._skip

    return wrapped(exact._Front, "count", count)


@bug("an input that has more is taken for dry", ANY_CUT)
def _() -> Patch:
    def cut_within(found: exact.Standing) -> dict[str, Any]:
        return {"ahead": {name: found.ahead[name] for name in found.skip}}

    return remembered(cut_within)


@bug("where all other inputs are dry no draw is counted", ANY_CUT)
def _() -> Patch:
    def spare(original: Any, order: Any, counts: Sequence[int], limit: Any) -> Any:
        given, behind = original(order, counts, limit)
        return given, order if np.count_nonzero(counts) == 1 else behind

    return wrapped(exact, "spend", spare)


@bug("the numbers of rows begin anew with each batch", ANY_CUT)
def _() -> Patch:
    return remembered(lambda found: {"rows": 0})


@bug(
    "an input is removed in silence",
    order_promises.test_p5_an_input_that_is_named_no_more_is_no_silent_loss,
)
def _() -> Patch:
    return patch.object(NamedInputs, "_require", lambda self, names: None)


@bug(
    "counted rows of an input that was removed are left out",
    order_promises.test_p5_rows_that_an_exact_order_has_counted_do_not_go_with_their_input,
)
def _() -> Patch:
    return patch.object(Removed, "steps", lambda self, start, end: iter(()))


# -- files of others ------------------------------------------------------------------------


@bug(
    "a new process takes what it finds behind the window for delivered",
    file_promises.test_p5_a_file_that_came_late_is_not_passed_over_in_silence,
)
def _() -> Patch:
    return patch.object(Delivered, "require_proven", lambda self, folder: None)


@bug(
    "files behind the window are forgotten",
    file_promises.test_p5_a_running_query_reads_late_files_and_each_once,
)
def _() -> Patch:
    def forget(original: Any, self: Any, files: Any, listed: Any) -> Any:
        return replace(original(self, files, listed), behind={})

    return wrapped(Delivered, "plus", forget)


@bug(
    "a replaced file is a new one",
    file_promises.test_p5_a_file_that_is_replaced_is_not_read_in_silence,
)
def _() -> Patch:
    def mix(original: Any, self: Any, listed: Any) -> Any:
        fresh, replaced = original(self, listed)
        return [*fresh, *replaced], []

    return wrapped(Delivered, "pending", mix)


@bug(
    "a file is read as it is, not as it was planned",
    file_promises.test_p5_a_file_that_is_written_to_behind_the_plan_is_not_read_in_silence,
)
def _() -> Patch:
    return patch.object(file_input._Files, "require_same", lambda self, file: None)


@bug(
    "a file that came late is taken for the one that is begun",
    file_promises.test_p4_a_file_that_is_begun_is_finished_first_whatever_comes,
)
def _() -> Patch:
    def forget(original: Any, *args: Any) -> Any:
        with patch.object(exact.Standing, "begun", lambda self, name: None):
            return original(*args)

    return wrapped(exact.ExactOrder, "_front", forget)


# -- Python sources of others ----------------------------------------------------------------


@bug(
    "a batch that is repeated ends where its source is by now",
    python_promises.test_p1_a_batch_that_is_repeated_has_the_rows_of_its_time,
)
def _() -> Patch:
    def ask_again(original: Any, self: PythonInput, start: Any, end: Any) -> Any:
        return original(self, start, self.backlog(start).end())

    return wrapped(PythonInput, "splits", ask_again)


@bug(
    "a source is told that a batch is done before its answer is read",
    python_promises.test_p1_a_source_that_forgets_what_it_holds_is_told_in_time,
)
def _() -> Patch:
    def at_once(original: Any, self: PythonInput, position: Any) -> None:
        original(self, position)
        self._tell_done()

    return wrapped(PythonInput, "commit", at_once)


@bug(
    "what a source answers once is all it has",
    python_promises.test_p4_concat_takes_all_of_a_source_before_the_next_one,
)
def _() -> Patch:
    def believe(original: Any, *args: Any) -> Any:
        return replace(original(*args), is_all=True)

    return wrapped(PythonInput, "backlog", believe)


@bug(
    "an offset may go back",
    python_promises.test_p5_a_source_whose_offset_goes_back_loses_nothing_in_silence,
)
def _() -> Patch:
    return patch.object(python_input, "shrunken", lambda before, after: None)


# -- appends that share a version ---------------------------------------------------------


@bug(
    "of appends that share a version the first wins",
    group_promises.test_p4_appends_that_share_a_version_are_as_one_after_the_other,
)
def _() -> Patch:
    def turned(original: Any, rows: Any, epochs: list[int]) -> Any:
        return original(rows, epochs[::-1])

    return wrapped(group, "epochs_by_part", turned)


@bug(
    "an append is judged as if none shared its version",
    group_promises.test_p4_appends_that_share_a_version_are_as_one_after_the_other,
)
def _() -> Patch:
    def alone(original: Any, self: Any, rows: Any) -> Any:
        contested, self._contested = self._contested, self._contested.slice(0, 0)
        try:
            return original(self, rows)
        finally:
            self._contested = contested

    return wrapped(group._Judge, "_outcomes", alone)


@bug(
    "a shared version has the transaction of its first append alone",
    group_promises.test_p1_an_append_that_shared_a_version_is_there_once_however_often_it_comes,
)
def _() -> Patch:
    def first(original: Any, *args: Any) -> Any:
        found = original(*args)
        return replace(found, transactions=found.transactions[:1])

    return wrapped(group, "_write_set", first)


@bug(
    "an append that is refused takes its company along",
    group_promises.test_p5_an_append_that_is_refused_is_told_and_its_company_is_not,
)
def _() -> Patch:
    def all_refused(original: Any, self: Any) -> None:
        original(self)
        [refused] = [each for each in self._verdicts if isinstance(each, Exception)]
        self._verdicts = [refused] * len(self._verdicts)

    return wrapped(group._Judge, "admit_each", all_refused)


@bug(
    "an error of a shared version is told to its leader alone",
    group_promises.test_p5_a_storage_error_is_told_to_each,
)
def _() -> Patch:
    def leader(original: Any, members: Any, error: Exception) -> Any:
        return {**dict.fromkeys(members), next(iter(members)): error}

    return wrapped(group, "_each_told", leader)


# -- who is served next -------------------------------------------------------------------


def left_over(rule: Callable[[Schedule, Schedule], Schedule]) -> Patch:
    """Replace what a service leaves, given what was before and what is left by the rules."""

    def served(original: Any, self: Schedule, *args: Any) -> Schedule:
        return rule(self, original(self, *args))

    return wrapped(Schedule, "served", served)


@bug(
    "a band gets its credit anew in each batch",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated_while_time_stands_still,
)
def _() -> Patch:
    return left_over(lambda _, behind: replace(behind, turn=Turn()))


@bug(
    "a band spends no credit",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated_while_time_stands_still,
)
def _() -> Patch:
    def unspent(_: Schedule, behind: Schedule) -> Schedule:
        return replace(behind, turn=replace(behind.turn, credit=BANDS[behind.turn.band].weight))

    return left_over(unspent)


@bug("all bands have one weight", schedules.test_p7_service_follows_the_weights)
def _() -> Patch:
    return patch.object(scheduler, "WEIGHTS", np.ones(len(BANDS), np.int64))


@bug("bands are drained from the highest", schedules.test_p7_service_follows_the_weights)
def _() -> Patch:
    return together(
        wrapped(scheduler, "_rounds", lambda _, bands, turn: -bands),
        patch.object(Service, "turn_behind", lambda self, count: Turn()),
    )


@bug(
    "a band is passed over by each round",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated_while_time_stands_still,
)
def _() -> Patch:
    def rounds(original: Any, bands: Any, turn: Any) -> Any:
        found = original(bands, turn)
        found[bands == LOWEST] += 10**6
        return found

    return wrapped(scheduler, "_rounds", rounds)


@bug(
    "who gets more begins to wait anew",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated,
)
def _() -> Patch:
    def marked(original: Any, self: Any, names: Any, now_ms: int) -> Any:
        return original(DirtySet(), names, now_ms)

    return wrapped(DirtySet, "marked", marked)


@bug(
    "who was served and has more keeps its place",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated_while_time_stands_still,
)
def _() -> Patch:
    def served(original: Any, self: Any, names: Any, left: Any, now_ms: int) -> Any:
        return original(self, set(names) - set(left), (), now_ms)

    return wrapped(DirtySet, "served", served)


@bug(
    "a wait counts for no more than a second",
    schedules.test_p7_who_is_deferred_is_served_when_it_is_old,
)
def _() -> Patch:
    return patch.object(priority, "WAITED_MAX_MS", 1_000)


@bug(
    "somebody waits since the future",
    schedules.test_p7_who_is_deferred_is_served_when_it_is_old,
)
def _() -> Patch:
    def with_later(original: Any, self: Any, gone: Any, names: Any, now_ms: int) -> Any:
        times = [since_ms for _, since_ms in self.items()]
        return original(self, gone, names, max([now_ms, *times]))

    return wrapped(DirtySet, "_with", with_later)


@bug(
    "the lowest band is deferred for ever",
    schedules.test_p7_who_is_released_is_served_while_time_stands_still,
)
def _() -> Patch:
    def service(original: Any, self: Any, *args: Any, **_: Any) -> Any:
        return original(self, *args, defers_lowest=True)

    return wrapped(Schedule, "service", service)


@bug(
    "who does not fit has had its turn",
    schedules.test_p7_what_is_larger_than_its_share_has_its_turn,
)
def _() -> Patch:
    def serve(original: Any, service: Any, ways: Any, limits: Any) -> Any:
        _, served = original(service, ways, limits)
        return len(service.names), served

    return wrapped(pace, "_serve", serve)


@bug(
    "who comes first takes all there is room for",
    schedules.test_p7_a_flood_keeps_no_small_input_waiting,
)
def _() -> Patch:
    return wrapped(pace._Room, "share", lambda _, self, weight, of_weights: self.most)


@bug(
    "who waits is not noted",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated,
)
def _() -> Patch:
    return wrapped(pace, "with_schedule", lambda _, state, schedule: dict(state))


@bug(
    "who has nothing any more is noted as waiting",
    schedules.test_p7_no_input_waits_for_longer_than_is_stated,
)
def _() -> Patch:
    def served(original: Any, self: Any, names: Any, left: Any, now_ms: int) -> Any:
        return original(self, (), left, now_ms)

    return wrapped(DirtySet, "served", served)


# -- watchers -----------------------------------------------------------------------------


@bug(
    "what the ring does not hold is passed over",
    watch_promises.test_p1_a_watcher_sees_each_epoch_once_and_in_order_however_slow_it_is,
)
def _() -> Patch:
    def from_the_ring(original: Any, self: Any) -> Any:
        while self._position < self._watchers.upper:
            if self._watchers.recent(self._position) is not None:
                return original(self)
            self._position += 1
        return None

    return wrapped(Watcher, "_step", from_the_ring)


@bug(
    "a version is announced before those that others committed below it are known",
    watch_promises.test_p1_a_watcher_sees_each_epoch_once_and_in_order_however_slow_it_is,
)
def _() -> Patch:
    def jump(original: Any, self: Any) -> Any:
        newest = max(self._watchers._ring, default=0)
        self._position = max(self._position, newest)
        return original(self)

    return wrapped(Watcher, "_step", jump)


@bug(
    "a watcher passes over what was expired and says nothing",
    watch_promises.test_p5_a_watcher_is_told_of_what_was_lost,
)
def _() -> Patch:
    def silent(original: Any, self: Any) -> None:
        self._position = self._watchers.look().first_changes

    return wrapped(Watcher, "_gap", silent)


@bug(
    "the changes of an epoch are those of the one before",
    watch_promises.test_p2_the_changes_that_a_watcher_sees_fold_to_the_table,
)
def _() -> Patch:
    def earlier(original: Any, self: Any, *args: Any, **how: Any) -> None:
        original(self, *args, **how)
        changes = self.changes
        self.changes = lambda lower, upper: changes(lower - 1, upper - 1)

    return wrapped(Watchers, "__init__", earlier)


# -- back-pressure --------------------------------------------------------------------------


@bug(
    "a cap lets one more in",
    pressure_promises.test_p1_caps_are_never_exceeded_and_nothing_is_lost,
)
def _() -> Patch:
    def count_less(original: Any, self: Caps, *, epochs: int, bytes: int) -> bool:
        admits: bool = original(self, epochs=epochs - 1, bytes=bytes)
        return admits

    return wrapped(Caps, "admits", count_less)


@bug(
    "caps are judged before a write is staged, and not at its commit",
    pressure_promises.test_p1_caps_are_never_exceeded_and_nothing_is_lost,
)
def _() -> Patch:
    def judge_once(original: Any, self: Any, head: Any, draft: Any = None) -> Any:
        return None if draft is not None else original(self, head)

    return wrapped(Admission, "refusal", judge_once)


@bug(
    "the consumer that is ahead counts",
    pressure_promises.test_p1_caps_are_never_exceeded_and_nothing_is_lost,
)
def _() -> Patch:
    def first(leases: Any, now_ms: int) -> Any:
        return max(leases, key=lambda lease: lease.version, default=None)

    return patch.object(admission, "slowest", first)


@bug(
    "what a refused write has staged stays",
    pressure_promises.test_p1_caps_are_never_exceeded_and_nothing_is_lost,
)
def _() -> Patch:
    return together(
        patch.object(table.Table, "discard", lambda *_: None),
        patch.object(group, "remove_runs", lambda *_: None),
    )


@bug(
    "room is asked for before the transaction is",
    pressure_promises.test_p1_what_was_committed_is_done_although_there_is_no_room,
)
def _() -> Patch:
    def judge_first(original: Any, self: Any, *args: Any, **how: Any) -> Any:
        self.admission(0).require(self.log.head())
        return original(self, *args, **how)

    return wrapped(table.Table, "append", judge_first)


@bug(
    "pressure that has expired is obeyed",
    pressure_promises.test_p1_a_consumer_that_died_holds_up_nobody_for_long,
)
def _() -> Patch:
    return patch.object(PressureReport, "is_live", lambda self, now_ms: True)


@bug(
    "a deferral is never released", pressure_promises.test_p7_a_deferral_ends_when_the_pressure_does
)
def _() -> Patch:
    def hold(original: Any, self: Governor, *args: Any) -> Governor:
        found: Governor = original(self, *args)
        return replace(found, is_deferring=self.is_deferring or found.is_deferring)

    return wrapped(Governor, "after", hold)


def runs_of(test: Callable[..., None]) -> Iterator[Callable[[], None]]:
    """Yield the test with each of its arguments."""
    arguments: dict[str, Sequence[Any]] = {
        "seed": range(8),
        "index": range(len(OPERATIONS)),
        "loss": list(Loss),
        "mode": [mode.value for mode in Deduplication],
        "other": [False, True],
    }
    names = list(inspect.signature(test).parameters)
    for values in itertools.product(*(arguments[name] for name in names)):
        yield partial(test, **dict(zip(names, values, strict=True)))


NOTICED = (AssertionError, UpsertFlowError, pytest.fail.Exception)
"""How a test says no. Anything else would be a mistake in the patch."""


@pytest.mark.parametrize("planted", BUGS, ids=str)
def test_a_planted_bug_is_caught(planted: Bug) -> None:
    with planted.plant():
        for attempt in runs_of(planted.caught_by):
            forget_runs_and_logs()
            try:
                attempt()
            except NOTICED:
                break
        else:
            pytest.fail(f"{planted.caught_by.__name__} does not notice")
    forget_runs_and_logs()


def test_there_are_enough_bugs() -> None:
    assert len(BUGS) >= 25
    assert len({planted.name for planted in BUGS}) == len(BUGS)


def test_every_promise_has_a_bug_that_breaks_it() -> None:
    broken = {planted.caught_by.__name__.split("_")[1] for planted in BUGS}
    assert broken == {"p1", "p2", "p3", "p4", "p5", "p6", "p7"}
