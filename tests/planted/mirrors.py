"""Bugs in mirrors: wrong bits, wrong rows, a wrong order of versions."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from spark_upsert.core.schema import DIFF, is_live
from spark_upsert.delta import (
    change_feed,
    checkpoints,
    deletion_vectors,
    parquet_files,
    prepared_files,
    publish,
)
from spark_upsert.delta import publish as plan
from spark_upsert.delta.deletion_vectors import Vector
from spark_upsert.table.changelog.read import Deduplication
from spark_upsert.table.log.manifest import Kind
from spark_upsert.table.run.rows import RunPart
from spark_upsert.table.state.prepared import PreparedFiles
from tests.planted.bug import Patch, bug, together, wrapped
from tests.promises import test_mirror_promises as promises

SHOWN = promises.test_p2_a_mirror_shows_the_rows_of_each_version_that_it_showed
PREPARED = promises.test_p2_a_mirror_that_its_writers_prepare_shows_the_rows_of_each_version
OVERWRITTEN = promises.test_p2_what_a_task_saw_before_an_overwrite_is_nothing_to_the_mirror
ONCE = promises.test_p1_a_mirror_shows_each_version_once


@bug("the newest run wins in a mirror, whatever the order keys say", SHOWN)
def _() -> Patch:
    def newest(original: Any, store: Any, manifest: Any, chunk: Any, vectors: Any) -> None:
        original(store, manifest, chunk, vectors)
        vector = vectors.get(chunk.run.file.path)
        if vector is not None and not manifest.schema.engine.folds:
            fresh = Vector(vector.rows)
            dead_at_birth = ~is_live(chunk.run.slice([DIFF], 0, vector.rows)[0])
            fresh.mark(np.flatnonzero(dead_at_birth))
            vectors[chunk.run.file.path] = fresh

    return together(
        wrapped(deletion_vectors, "_mark_by_keys", newest), patch.object(plan, "_SETTLED_FROM", 0)
    )


@bug("an old entry stays alive beside the new one of its key", SHOWN)
def _() -> Patch:
    def only_own(original: Any, store: Any, manifest: Any, known: Any, new: Any) -> Any:
        return {**original(store, manifest, known, new), **known}

    return wrapped(plan, "vectors_after_changes", only_own)


@bug("a checksum sums up the files of the version before", SHOWN)
def _() -> Patch:
    def before(original: Any, state: Any) -> Any:
        removed = {each["path"]: each for each in state.removed}
        return original(replace(state, live={**removed, **state.live}))

    return wrapped(checkpoints, "checksum_fields", before)


@bug("rows that were cut away stay in the mirror", SHOWN)
def _() -> Patch:
    return patch.object(
        deletion_vectors, "_mark_outside_live_ranges", lambda store, manifest, vectors: None
    )


@bug("the bits of a vector stand in the other order within a byte", SHOWN)
def _() -> Patch:
    def encoded(original: Any, self: Vector) -> bytes:
        other = Vector(self.rows)
        positions = self.positions()
        turned = positions ^ 1
        other.mark(turned[turned < self.rows])
        return bytes(original(other))

    return wrapped(Vector, "encode", encoded)


@bug("a run of dead rows is one row short", SHOWN)
def _() -> Patch:
    def short(original: Any, self: Vector, start: int, stop: int) -> None:
        original(self, start, max(start, stop - 1))

    return wrapped(Vector, "mark_range", short)


@bug("whether a folded row lives is asked of the newest entry alone", SHOWN)
def _() -> Patch:
    def settled(original: Any, schema: Any, lined: Any) -> Any:
        found = original(schema, lined)
        if schema.engine.folds and len(lined.rows):
            found |= ~is_live(deletion_vectors._diffs(lined.rows))
        return found

    return together(
        wrapped(deletion_vectors, "_find_deleted", settled),
        patch.object(plan, "_SETTLED_FROM", 1 << 40),
    )


@bug("the twin of a folding table has the entries as they came", SHOWN)
def _() -> Patch:
    def rows(table: Any, head: Any, file: Any, vector: Any) -> Any:
        return parquet_files._entries(table, file, head.schema)

    return patch.object(publish, "row_reader", rows)


@bug("twins of before a restore are kept where entries are folded", SHOWN)
def _() -> Patch:
    def keeping(original: Any, store: Any, head: Any, commits: Any, *rest: Any) -> Any:
        calm = [commit for commit in commits if commit.kind is not Kind.OVERWRITE]
        return original(store, head, calm, *rest)

    return wrapped(publish, "plan", keeping)


@bug("a wider type leaves old twins as they are", SHOWN)
def _() -> Patch:
    return patch.object(publish, "changes_types", lambda before, after: False)


@bug("floats have bounds, which know of no NaN", SHOWN)
def _() -> Patch:
    return patch.object(parquet_files, "bounded_columns", lambda columns: columns.names)


@bug("bounds of long texts are cut", SHOWN)
def _() -> Patch:
    def cut(original: Any, type_: Any, low: Any, high: Any) -> Any:
        if isinstance(high, str):
            return low[: parquet_files.TEXT_MAX], high[: parquet_files.TEXT_MAX]
        return original(type_, low, high)

    return wrapped(parquet_files, "_bounds", cut)


@bug("a file whose vector changed is added without being removed", SHOWN)
def _() -> Patch:
    def file_actions(original: Any, self: Any, planned: Any, written: Any, **how: Any) -> Any:
        revectored = {add["path"] for add, _ in planned.revectored}
        return [
            each
            for each in original(self, planned, written, **how)
            if each.get("remove", {}).get("path") not in revectored
        ]

    return wrapped(publish.Mirror, "_file_actions", file_actions)


@bug("a mirror that is up to date is published again", ONCE)
def _() -> Patch:
    def header(original: Any, columns: Any, before: Any, **how: Any) -> Any:
        return {**original(columns, before, **how), "name": str(how["now_ms"])}

    def shown(original: Any, self: Any, state: Any, head: Any, **how: Any) -> Any:
        found = original(self, state, head, **how)
        return None if found is None else found - 1

    return together(
        wrapped(publish, "build_metadata", header),
        wrapped(publish.Mirror, "_shown_before", shown),
    )


@bug("times of a mirror are those of its versions, whatever stood before", ONCE)
def _() -> Patch:
    def back(original: Any, *args: Any, time_ms: int, **how: Any) -> Any:
        return original(*args, time_ms=time_ms // 10**9, **how)

    return wrapped(publish, "commit_info", back)


@bug("the feed of several versions is that of the last one", SHOWN)
def _() -> Patch:
    def last(original: Any, log: Any, table: Any, target: Any, before: int, head: Any) -> Any:
        return original(log, table, target, max(before, head.version - 1), head)

    return wrapped(publish, "write_feed", last)


@bug("a commit without changes says that its files changed data", SHOWN)
def _() -> Patch:
    def changed(original: Any, *args: Any) -> Any:
        found = original(*args)
        return found if found is None else found._replace(has_changes=True)

    return wrapped(publish, "write_feed", changed)


@bug("a feed has the changes of each epoch, those that were undone among them", SHOWN)
def _() -> Patch:
    return patch.object(
        change_feed, "Deduplication", SimpleNamespace(NET_CHANGES=Deduplication.NONE)
    )


@bug("a writer names the row beside the one that it replaces", PREPARED)
def _() -> Patch:
    def beside(original: Any, self: Any, positions: Any) -> Any:
        return np.maximum(original(self, positions), 1) - 1

    return wrapped(RunPart, "in_run", beside)


@bug("a late row beats the row that it is late for", PREPARED)
def _() -> Patch:
    return patch.object(
        prepared_files.MirrorPreparation,
        "_find_losing",
        lambda self, kinds: np.zeros(len(kinds), bool),
    )


@bug("deaths are taken for all that there is", PREPARED)
def _() -> Patch:
    def trusting(original: Any, store: Any, manifest: Any, *rest: Any) -> Any:
        class Any_:
            def __eq__(self, other: object) -> bool:
                return True

        return original(store, SimpleNamespace(slices=manifest.slices, live_rows=Any_()), *rest)

    return wrapped(plan, "vectors_after_superseding", trusting)


@bug("deaths of before an overwrite are counted behind it", OVERWRITTEN)
def _() -> Patch:
    return patch.object(PreparedFiles, "without_deaths", lambda self: self)


@bug("a twin of older columns is named", PREPARED)
def _() -> Patch:
    def any_columns(original: Any, self: Any, place: str, columns: Any) -> Any:
        found: dict[str, Any] = {}
        for _, each in self._preparations:
            found |= original(self, place, each.columns)
        return found

    return wrapped(prepared_files.PreparationCache, "twins", any_columns)


@bug("a twin has the values of deleted rows where they live", PREPARED)
def _() -> Patch:
    def shifted(batch: Any, columns: Any) -> Any:
        rows = parquet_files.batch_reader(batch, columns)
        return lambda start, stop: parquet_files._without(
            rows(start, stop), np.roll(is_live(batch.column(DIFF)), 1)[start:stop]
        )

    return patch.object(prepared_files, "batch_reader", shifted)


@bug("a feed over an expired past tells of rows that are as they were", SHOWN)
def _() -> Patch:
    def all_differ(original: Any, left: Any, right: Any) -> Any:
        return np.zeros(len(original(left, right)), dtype=np.bool_)

    return wrapped(change_feed, "identical_rows", all_differ)


@bug("a feed over an expired past lacks the rows of twins that are gone", SHOWN)
def _() -> Patch:
    def without(original: Any, target: Any, schema: Any, gone: Any, come: Any) -> Any:
        return original(target, schema, [], come)

    return wrapped(change_feed, "compare_rows", without)
