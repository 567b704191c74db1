"""One epoch from its commands to its commit: `stage` in the tasks, `seal` on the driver.

A task stages: it stashes its commands, writes them as one run (in files of disjoint hash
ranges) and counts what they do to the table as of the version that the epoch was planned
on. Nothing is visible yet.

The driver seals. The tasks' counts add up exactly, except for keys that stand in more than
one task, or that another writer changed since. Those keys, and only those, are judged again
against the newest version. So a commit costs a look at the hashes of its own runs, and a
lost race costs the rows that both writers touched.

What others changed is what their commits added, not what the newest version still holds: of a
delete that a compaction has forgotten since, nothing is left there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.model.arrays import Mask, Positions
from spark_upsert.model.hash_range import ALL_HASHES, HashRange
from spark_upsert.model.schema import Scope
from spark_upsert.parallel import in_order, useful_threads
from spark_upsert.state.counters import EMPTY, Counters
from spark_upsert.state.fold import folded_rows
from spark_upsert.state.log.log import new_token
from spark_upsert.state.log.manifest import Commit, Kind, Manifest, Place, Transaction
from spark_upsert.state.resolve import epochs_by_part, resolve
from spark_upsert.state.run.file import RUNS, RunFile, Span, write_run
from spark_upsert.state.run.rows import BatchPart, Rows, RunPart
from spark_upsert.state.snapshot import Snapshot
from spark_upsert.state.tombstones import LateRows, higher_mark
from spark_upsert.upsert.ambiguity import Examples, count_losers, examples_of, require_order
from spark_upsert.upsert.outcomes import Outcome, Outcomes, classify, count
from spark_upsert.upsert.stash import Stash

SEAL_ROWS = 1 << 20
"""Hashes that the seal compares at once: 8 MiB per task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What one task has made durable, not yet visible."""

    base: Place
    """The version against which the commands were counted."""
    files: tuple[RunFile, ...] = ()
    counters: Counters = EMPTY
    examples: Examples = field(default_factory=dict)
    """Keys of rows that a person should know about (`ambiguity`)."""
    truncated: str | None = None
    """The mark of the youngest truncate that came among the commands (`truncate`)."""

    @property
    def base_version(self) -> int:
        return self.base.version


def stage(
    snapshot: Snapshot,
    commands: Iterable[pa.RecordBatch],
    *,
    overwrite: bool = False,
    late_rows: LateRows = LateRows.REJECT,
    threads: int = 1,
) -> Staged:
    """Write the commands of one task durably and count their effects.

    Parameters
    ----------
    snapshot : Snapshot
        The table when the epoch was planned.
    commands : iterable of pyarrow.RecordBatch
        Columns as `TableSchema.run`, any order.
    overwrite : bool
        Whether the epoch replaces the contents: then order keys of the past do not count.
    late_rows : LateRows
        What becomes of rows so old that their deletes may be forgotten.
    threads : int
        How many pieces of the keys are looked up at once.

    Raises
    ------
    DataError
        Rows are tied, or late, and the policy for them is that the write fails.
    """
    with Stash(snapshot.manifest.schema) as stash:
        for batch in commands:
            stash.add(batch)
        return stage_sealed(
            snapshot, stash, overwrite=overwrite, late_rows=late_rows, threads=threads
        )


def stage_sealed(
    snapshot: Snapshot,
    stash: Stash,
    *,
    overwrite: bool = False,
    late_rows: LateRows = LateRows.REJECT,
    threads: int = 1,
) -> Staged:
    """Seal a stash, write what wins durably and count its effects (`stage`).

    After an error it may be repeated, on any snapshot.
    """
    files: list[RunFile] = []
    counters = EMPTY
    examples: dict[str, str] = {}
    try:
        for batch in stash.seal():
            rows = Rows(snapshot.manifest.schema, [BatchPart(batch)])
            outcomes_of = partial(
                _outcomes_of, snapshot, rows, overwrite=overwrite, late_rows=late_rows
            )
            useful = useful_threads(len(rows), threads)
            everything = np.arange(len(rows))
            pieces = np.array_split(everything, useful)
            outcomes = Outcomes.joined(in_order(outcomes_of, pieces, useful))
            counters += count(outcomes)
            examples |= examples_of(rows, everything, outcomes, late_rows)
            batch = _accepted(batch, outcomes)
            if batch.num_rows:
                files.append(write_run(snapshot.store, f"data/{new_token()}.arrow", batch))
    except Exception:
        for file in files:  # Nobody knows of them yet. What cannot be removed, a vacuum will.
            with suppress(Exception):
                snapshot.store.delete(file.path)
        raise
    return Staged(
        base=snapshot.manifest.place,
        files=tuple(files),
        counters=counters + stash.counters,
        examples={**examples, **stash.examples},
        truncated=stash.truncated,
    )


def _outcomes_of(
    snapshot: Snapshot,
    rows: Rows,
    chosen: Positions,
    *,
    overwrite: bool,
    late_rows: LateRows,
) -> Outcomes:
    """Return what commands, one per key and sorted by hash, do to a snapshot."""
    # The table may have gained columns since.
    manifest = replace(snapshot.manifest, schema=rows.schema)
    found = Snapshot(snapshot.store, manifest).find(
        rows.hashes[chosen], rows.take(rows.schema.identity, chosen)
    )
    scope = Scope.ARRIVAL if overwrite else rows.schema.scope
    return classify(
        rows,
        chosen,
        found,
        scope,
        low_water=snapshot.manifest.low_water,
        late_rows=late_rows,
        is_overwrite=overwrite,
    )


def _accepted(batch: pa.RecordBatch, outcomes: Outcomes) -> pa.RecordBatch:
    """Return the commands that are not rejected: those are counted, and never stored."""
    accepted = outcomes.kinds != Outcome.REJECTED
    return batch if bool(accepted.all()) else batch.filter(pa.array(accepted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """An epoch that all tasks have staged, ready to be sealed at any version."""

    base: Snapshot
    staged: tuple[Staged, ...]
    """In the order of the tasks."""
    transaction: Transaction | None
    overwrite: bool = False
    allow_unordered: bool = False
    late_rows: LateRows = LateRows.REJECT

    @property
    def truncated(self) -> str | None:
        """The mark of the youngest truncate that came in the epoch."""
        schema, youngest = self.base.manifest.schema, None
        for part in self.staged:
            youngest = higher_mark(youngest, part.truncated, schema)
        return youngest

    def seal(self, head: Manifest, between: Iterable[Commit]) -> Sealed:
        """Return the commit that makes the epoch visible right behind ``head``.

        Parameters
        ----------
        head : Manifest
        between : iterable of Commit
            The versions behind the base up to ``head``. Read only if something was staged.

        Raises
        ------
        DataError
            Without order keys, two tasks hold different values of one key. Or rows are tied,
            or late, and the policy for them is that the write fails.
        """
        newest = Snapshot(self.base.store, head)
        if self._has_forgotten(head) and self.late_rows is not LateRows.APPLY:
            staged = tuple(self._without_late(newest, part) for part in self.staged)
            return replace(self, staged=staged)._seal(newest, between)
        return self._seal(newest, between)

    def _has_forgotten(self, head: Manifest) -> bool:
        """Return whether deletes have been forgotten since the commands were judged."""
        return head.forgot > self.base.manifest.version and not self.overwrite

    def _seal(self, newest: Snapshot, between: Iterable[Commit]) -> Sealed:
        head = newest.manifest
        counters = sum((part.counters for part in self.staged), EMPTY)
        examples = {k: v for part in self.staged for k, v in part.examples.items()}
        for rows, chosen in self._contested(head, between):
            correction, found = self._recount(newest, rows, chosen)
            counters += correction
            examples |= found
        if self.overwrite:
            counters += Counters(retracted=head.live_rows - counters.result_count)
        assert counters.is_balanced, counters
        commit = Commit(
            version=head.version + 1,
            kind=Kind.OVERWRITE if self.overwrite else Kind.APPEND,
            timestamp_ms=0,
            token="",
            transaction=self.transaction,
            added=tuple(file for part in self.staged for file in part.files),
            counters=counters.to_json(),
            live_rows=head.live_rows + counters.live_delta,
        )
        return Sealed(commit, examples)

    def _contested(
        self, head: Manifest, between: Iterable[Commit]
    ) -> Iterator[tuple[Rows, npt.NDArray[np.int64]]]:
        """Yield the commands whose counts do not simply add up, range by range of the hash."""
        writing = [part for part in self.staged if part.files]
        if not writing:
            return
        epochs = [commit for commit in between if commit.is_epoch]
        slices = tuple(part for commit in epochs for part in commit.slices())
        # Where the past was replaced, or late rows are applied, it may be any key.
        is_all = any(commit.kind is Kind.OVERWRITE for commit in epochs) or (
            self._has_forgotten(head) and self.late_rows is LateRows.APPLY
        )
        if len(writing) == 1 and not slices and not is_all:
            return
        newer = Snapshot(self.base.store, replace(head, slices=slices))
        total = sum(file.rows for part in writing for file in part.files)
        for hash_range in ALL_HASHES.cut(1 + total // SEAL_ROWS):
            rows = self._rows(head, writing, hash_range)
            if is_all:
                chosen = np.arange(len(rows))
            else:
                others = [part.hashes for part, _ in newer.parts(hash_range)]
                chosen = np.flatnonzero(_shared(rows.hashes, others))
            if len(chosen):
                yield rows, chosen

    def _rows(self, head: Manifest, staged: Sequence[Staged], hash_range: HashRange) -> Rows:
        """Return the staged commands with hashes in a range, in the order of the tasks."""
        spans = [
            Span.within(RUNS.open(self.base.store, file), hash_range)
            for part in staged
            for file in part.files
            if file.hash_range.overlaps(hash_range)
        ]
        return Rows(head.schema, [RunPart(span) for span in spans])

    def _recount(
        self, newest: Snapshot, rows: Rows, chosen: Positions
    ) -> tuple[Counters, Examples]:
        """Return by how much the tasks' counts are wrong for contested commands."""
        counted = EMPTY
        owners = rows.part_of(chosen)
        for owner in np.unique(owners):
            counted += count(self._outcomes_of(self.base, rows, chosen[owners == owner]))
        if rows.schema.engine.folds:
            folded = folded_rows(rows, chosen, epochs_by_part(rows, [0] * len(rows.parts)))
            everything = np.arange(len(folded))
            outcomes = self._outcomes_of(newest, folded, everything)
            merged = Counters(superseded=len(chosen) - len(folded))
            examples = examples_of(folded, everything, outcomes, self.late_rows)
            return count(outcomes) + merged - counted, examples
        resolution = resolve(rows, chosen=chosen)
        if not self.allow_unordered:
            require_order(rows, resolution)
        lost, examples = count_losers(rows, resolution)
        outcomes = self._outcomes_of(newest, rows, resolution.winners)
        others = examples_of(rows, resolution.winners, outcomes, self.late_rows)
        return count(outcomes) + lost - counted, {**examples, **others}

    def _outcomes_of(self, snapshot: Snapshot, rows: Rows, chosen: Positions) -> Outcomes:
        return _outcomes_of(
            snapshot, rows, chosen, overwrite=self.overwrite, late_rows=self.late_rows
        )

    def _without_late(self, newest: Snapshot, staged: Staged) -> Staged:
        """Take out commands that are late since a compaction forgot deletes.

        Rare: it did so while the epoch was under way. The runs that hold such commands are
        written again without them.
        """
        schema = newest.manifest.schema
        files, counters, examples = [], staged.counters, dict(staged.examples)
        for file in staged.files:
            run = RUNS.open(newest.store, file)
            rows = Rows(schema, [RunPart(Span.within(run))])
            everything = np.arange(len(rows))
            outcomes = self._outcomes_of(newest, rows, everything)
            late = np.flatnonzero(outcomes.kinds == Outcome.REJECTED)
            if not len(late):
                files.append(file)
                continue
            examples |= examples_of(rows, everything, outcomes, self.late_rows)
            # The table did know some of these keys when the task counted them.
            was = count(self._outcomes_of(self.base, rows, late))
            counters += Counters(rejected=len(late)) - was
            batch = rows.gathered(schema.run.names).parts[0]
            assert isinstance(batch, BatchPart)
            kept = _accepted(batch.batch.cast(schema.run), outcomes)
            if kept.num_rows:
                files.append(write_run(newest.store, f"data/{new_token()}.arrow", kept))
        return replace(staged, files=tuple(files), counters=counters, examples=examples)


class Sealed(NamedTuple):
    """What a seal gives."""

    commit: Commit
    examples: Examples
    """Keys of rows that a person should know about (`ambiguity`)."""


def _shared(own: npt.NDArray[np.uint64], others: Sequence[npt.NDArray[np.uint64]]) -> Mask:
    """Return which hashes stand twice among their own, or among the others."""
    order = np.argsort(own)
    ordered = own[order]
    same = ordered[1:] == ordered[:-1]
    shared = np.zeros(len(own), dtype=np.bool_)
    shared[order[1:][same]] = True
    shared[order[:-1][same]] = True
    for other in others:
        places = np.minimum(np.searchsorted(other, own), len(other) - 1)
        shared |= other[places] == own
    return shared
