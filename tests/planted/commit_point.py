"""Bugs in the put that makes a version, and in what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from spark_upsert.store.records import encode
from spark_upsert.table import table
from spark_upsert.table.log import log as log_module
from spark_upsert.table.log.codec import LEAVES, commit_path, commit_to_json
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Draft, Manifest
from spark_upsert.table.table import Table
from spark_upsert.table.write import write_set
from tests.planted.bug import Patch, applied_by, bug, together, wrapped
from tests.promises import test_leaf_promises as leaf_promises
from tests.promises import test_promises as promises
from tests.promises import test_stream_promises as stream_promises
from tests.support.stores import MemoryStore, forget_runs_and_logs


@bug(
    "a commit replaces the version that another made", promises.test_p1_writers_that_race_all_get_in
)
def _() -> Patch:
    def put(original: Any, self: Any, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True

    def stale(original: Any, self: Any) -> Any:
        return original(self) if self._head is None else self._head

    return together(wrapped(MemoryStore, "put_if_absent", put), wrapped(Log, "_find_end", stale))


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
    def put(original: Any, self: Any, commit: Commit, recent: Any = ()) -> bool:
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
    def put(original: Any, self: Any, commit: Commit, recent: Any = ()) -> bool:
        original(self, commit, recent)
        return True

    def stale(original: Any, self: Any) -> Any:
        return original(self) if self._head is None else self._head

    return together(wrapped(Log, "_try_put", put), wrapped(Log, "_find_end", stale))


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
    stream_promises.test_p2_a_table_that_takes_the_changes_of_another_is_that_table,
)
def _() -> Patch:
    def discard(original: Any, self: Table, staged: Any, *rest: Any, **how: Any) -> None:
        for part in self.log.head().slices[-1:]:
            self.store.delete(part.file.path)
        forget_runs_and_logs()

    return wrapped(Table, "discard", discard)


@bug("a checkpoint loses a run", promises.test_p2_folding_the_changelog_gives_every_snapshot)
def _() -> Patch:
    def write(original: Any, store: Any, manifest: Manifest, *checked: Any, **how: Any) -> None:
        original(store, replace(manifest, slices=manifest.slices[:-1]), *checked, **how)

    return wrapped(log_module, "write_checkpoint", write)


@bug(
    "a checkpoint writes each leaf again",
    leaf_promises.test_p7_a_checkpoint_writes_only_the_touched_leaves_whoever_writes_it,
)
def _() -> Patch:
    return patch.object(log_module, "stored_leaves", lambda store, version: frozenset())


@bug(
    "a checkpoint lists leaves that were removed since this process read them",
    leaf_promises.test_p6_a_writer_reuses_no_leaf_that_others_removed,
)
def _() -> Patch:
    def write(original: Any, store: Any, manifest: Manifest, *checked: Any, **how: Any) -> None:
        files = frozenset(leaf.file for leaf in manifest.slice_list.leaves if leaf.file)
        original(store, manifest, *checked, **{**how, "reusable": files})

    return wrapped(log_module, "write_checkpoint", write)


@bug(
    "a vacuum removes the leaves of checkpoints",
    leaf_promises.test_p6_a_vacuum_retains_leaves_of_checkpoints_and_those_that_it_cuts,
)
def _() -> Patch:
    def unused(original: Any, store: Any, limit_s: float) -> list[str]:
        return [info.path for info in store.list(LEAVES) if info.modified_s <= limit_s]

    return wrapped(log_module, "_unused_leaves", unused)


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
    def restoration(original: Any, head: Manifest, old: Manifest, url: str) -> Draft | None:
        return original(head, replace(old, low_water=head.low_water), url)

    return wrapped(table, "restoration", restoration)
