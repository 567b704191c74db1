"""Write set commits (`commit`): attempts after the newest version until one wins.

Usually nothing is written. A write set with newly late commands or a truncate is first *fitted* to
a version by further files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from spark_upsert.errors import ContentionError, TableNotFoundError, UpsertFlowError
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Draft, Kind, Manifest
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.state.reduce import Counters
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.write.guards import (
    Admission,
    is_due,
    is_new,
    is_next_move,
    require_no_gap,
    require_placed,
)
from spark_upsert.table.write.stage import stage_moves_across_tasks
from spark_upsert.table.write.ties import Examples, require_known, warn
from spark_upsert.table.write.write_set import (
    Scratch,
    SealedDraft,
    StagedRuns,
    TruncatedVersion,
    WriteSet,
    remove_runs,
    truncated,
)


def commit(log: Log, write_set: WriteSet, admission: Admission) -> Commit | None:
    """Make an epoch visible atomically, exactly once (`Table.commit`)."""
    require_placed(write_set)
    is_first = write_set.base.manifest.is_unborn
    store = write_set.base.store
    carried = _moves_across_tasks(log, write_set)
    write_set = replace(write_set, staged=(*write_set.staged, *carried))
    with Scratch(store) as scratch:
        if is_first:
            done = _commit_first(log, write_set, scratch)  # No consumer yet, so there is room.
        else:
            done = _commit_next(log, write_set, scratch, admission)
        used = frozenset() if done is None else done.commit.paths
        scratch.keep(used)
    if done is None:
        remove_runs(store, (file for staged_task in carried for file in staged_task.files))
        return None
    remove_runs(store, (file for file in write_set.files if file.path not in used))
    warn(done.commit, done.upon, done.examples)
    return done.commit


def _moves_across_tasks(log: Log, write_set: WriteSet) -> tuple[StagedRuns, ...]:
    """Return what moved rows take along from other tasks' rows, as one more task's runs."""
    if not any(staged_task.moved is not None for staged_task in write_set.staged):
        return ()
    base = write_set.base.manifest
    head = base if base.is_unborn else log.cached_head or log.head()
    carried = stage_moves_across_tasks(write_set, head)
    return () if carried is None else (carried,)


def _announce_unchanged(log: Log, write_set: WriteSet) -> None:
    """Add the columns that commands left unchanged to the table's schema.

    In a version of its own, before the first rows with marks: earlier releases refuse the table
    from then on.
    """

    def propose(head: Manifest) -> Draft | None:
        schema = write_set.marked(head.schema)
        if schema is head.schema:
            return None
        return Draft(kind=Kind.ALTER, schema=schema, live_rows=head.live_rows)

    log.append(propose)


def _with_marks(head: Manifest, write_set: WriteSet) -> Manifest:
    """Return a version with the columns that commands left unchanged in its schema."""
    schema = write_set.marked(head.schema)
    return head if schema is head.schema else replace(head, schema=schema)


class _CommitResult(NamedTuple):
    """A completed commit, with notices for the user about its rows."""

    commit: Commit
    upon: Manifest
    examples: Examples


def _commit_first(log: Log, write_set: WriteSet, scratch: Scratch) -> _CommitResult | None:
    unborn = _with_marks(write_set.base.manifest, write_set)
    write_set = replace(write_set, base=replace(write_set.base, manifest=unborn))
    url = write_set.base.store.url
    if unborn.schema.engine.multiplicity is not None:
        is_next_move(write_set, unborn)
    else:
        for transaction in write_set.transactions:
            require_no_gap(transaction, unborn, url)
    fitted = fit(write_set, unborn, scratch)
    sealed = fitted.seal(unborn, ())
    draft = replace(
        sealed.draft,
        kind=Kind.CREATE,
        schema=unborn.schema,
        properties=sealed.draft.properties or unborn.properties,
    )
    with _in_doubt(scratch):
        commit = log.create(draft, table_id=unborn.table_id)
    if commit is not None:
        return _CommitResult(commit, fitted.base_for(unborn), sealed.examples)
    if not is_new(write_set, log.head()):
        return None
    raise ContentionError(
        f"another writer made the table at '{url}' while this one was at work. "
        "Nothing was committed.",
        hint="write it again; a query that is restarted does.",
    )


def _commit_next(
    log: Log, write_set: WriteSet, scratch: Scratch, admission: Admission
) -> _CommitResult | None:
    at_once = _commit_at_once(log, write_set, scratch, admission)
    if at_once is not None:
        return at_once
    fitted: FittedWrites | None = None
    for head in _heads(log, write_set):
        if not is_due(log, write_set, head):
            return None
        newest, head = head, _with_marks(head, write_set)
        if fitted is None or not fitted.fits(head):
            scratch.keep(frozenset())
            fitted = fit(write_set, head, scratch)
        sealed = fitted.seal(head, log.commits(write_set.base.manifest.upper, head.upper))
        admission.require(head, sealed.draft)
        if head is not newest:
            _announce_unchanged(log, write_set)
            continue
        with _in_doubt(scratch):
            commit = log.try_append(head, sealed.draft)
        if commit is not None:
            return _CommitResult(commit, fitted.base_for(head), sealed.examples)
    raise AssertionError("the heads end with an error")


def _commit_at_once(
    log: Log, write_set: WriteSet, scratch: Scratch, admission: Admission
) -> _CommitResult | None:
    """Propose after the last seen version, which is usually current, without a check for newer
    ones.

    The put itself detects a newer version. It cannot detect another table at this location,
    so the version's existence is verified first. All other objections are left to the retry
    at the newest version.
    """
    head = log.cached_head
    if (
        head is None
        or log.is_contended
        or write_set.marked(head.schema) is not head.schema
        or write_set.truncated is not None
        or not write_set.is_lateness_decided_for(head)
    ):
        return None
    try:
        if not is_due(log, write_set, head):
            return None
        sealed = write_set.seal(head, log.commits(write_set.base.manifest.upper, head.upper))
        if not log.has(head) or admission.refusal(head, sealed.draft):
            return None
    except UpsertFlowError:
        return None
    with _in_doubt(scratch):
        commit = log.try_append(head, sealed.draft)
    return None if commit is None else _CommitResult(commit, head, sealed.examples)


def _heads(log: Log, write_set: WriteSet) -> Iterator[Manifest]:
    """Yield the newest version for each attempt; detect a deleted table by the bases."""
    try:
        yield from log.commit_attempts()
    except TableNotFoundError:
        for base in {staged_task.base for staged_task in write_set.staged}:
            log.require(base, "the epoch")
        raise


@contextmanager
def _in_doubt(scratch: Scratch) -> Iterator[None]:
    """Leave written files to a vacuum if a commit fails: it may have taken effect."""
    try:
        yield
    except Exception:
        scratch.leave()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedWrites:
    """A write set fitted to a version and to equivalent later ones."""

    write_set: WriteSet
    """Without the commands late at that version."""
    head: Manifest
    """The version for which it was fitted."""
    truncated: TruncatedVersion | None

    def fits(self, head: Manifest) -> bool:
        """Return whether it also fits after a later version."""
        if self.truncated is not None:
            return (self.head.slices, self.head.low_water) == (head.slices, head.low_water)
        return self.write_set.overwrite or head.forgot <= self.head.version

    def base_for(self, head: Manifest) -> Manifest:
        """Return the table version for the rows' outcomes: after the truncate, if any."""
        if self.truncated is None:
            return head
        return replace(self.truncated.after, version=head.version, schema=head.schema)

    def seal(self, head: Manifest, between: Iterable[Commit]) -> SealedDraft:
        """Return the proposal after a fitting version (`WriteSet.seal`)."""
        sealed = self.write_set.seal(self.base_for(head), between)
        if self.truncated is None:
            return sealed
        return sealed._replace(draft=self.truncated.with_rows(sealed.draft))


def fit(write_set: WriteSet, head: Manifest, scratch: Scratch) -> FittedWrites:
    """Fit a write set to a version; additional files are written durably."""
    cut, upon, mark = None, head, write_set.truncated
    if mark is not None:
        write_set = replace(write_set, late_rows=LateRows.REJECT)
        cut = truncated(Snapshot(write_set.base.store, head), mark, scratch)
        require_known(Counters(unknown=cut.unknown), {}, head.schema)
        upon = cut.after
    if write_set.late_rows is not LateRows.APPLY and not write_set.is_lateness_decided_for(upon):
        write_set = write_set.without_late(upon, scratch)
    return FittedWrites(write_set=write_set, head=head, truncated=cut)
