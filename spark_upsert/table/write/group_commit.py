"""Group commit: several threads' appends as one epoch (docs/adr/0032).

Each append's counters and errors, and the table, equal those after a serial execution. `Appends`
collects them, `append_together` commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from spark_upsert.core.key_hash import HashRange, order_of
from spark_upsert.core.keys import Mask, Positions
from spark_upsert.core.schema import OnUnknown, TableSchema
from spark_upsert.core.threads import SharedCalls, copy_error_for_thread
from spark_upsert.errors import (
    BatchTooLargeError,
    ContentionError,
    DataError,
    TableFullError,
    UpsertFlowError,
)
from spark_upsert.scheduler.governor import commit_window_ms
from spark_upsert.store import Store
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Commit, Manifest, Transaction
from spark_upsert.table.log.properties import FULL_WAIT_MS, LateRows
from spark_upsert.table.run.remote import Access
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.lookup import find
from spark_upsert.table.state.observer import prepare
from spark_upsert.table.state.reduce import EMPTY, Counters, merge_function_for
from spark_upsert.table.state.resolve import epochs_by_part
from spark_upsert.table.state.snapshot import Snapshot, columns_to_find
from spark_upsert.table.write.commands import Envelope
from spark_upsert.table.write.form import envelope_of_rows
from spark_upsert.table.write.guards import Admission, Guard, is_due
from spark_upsert.table.write.outcomes import Outcomes, classify, count, outcomes_of
from spark_upsert.table.write.stage import Stash, stage, stage_sealed
from spark_upsert.table.write.ties import count_losers, examples_of
from spark_upsert.table.write.write_set import (
    Scratch,
    StagedRuns,
    WriteSet,
    remove_runs,
    shared_hashes,
)

BYTES_MAX = 8 << 20
"""Maximum command bytes in a shared version. A larger append gains nothing from sharing,
and would delay the others.
"""

MEMBERS_MAX = 1024
"""Maximum appends per version: this many transactions are still a small log object."""


class SeparateCommit(Enum):
    """The result for an append needing a separate commit; nothing of it was committed."""

    APART = "apart"


class Committing(Protocol):
    """Commits a write set if there is room for it (`Table.commit`)."""

    def __call__(self, epoch: WriteSet, *, admission: Admission) -> Commit | None: ...


APART: Final = SeparateCommit.APART

AppendResult: TypeAlias = Commit | SeparateCommit | Exception | None
"""An append's result: its commit; None if its transaction is already committed; `APART` if
it must commit separately; or its error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """One caller's append: commands in a stash, sealed by `sealed`."""

    schema: TableSchema
    """The schema for which the commands were made."""
    stash: Stash
    commands: pa.RecordBatch
    """One command per key, sorted by (hash, key)."""
    transaction: Transaction | None = None
    late_rows: LateRows = LateRows.FAIL

    @property
    def transactions(self) -> tuple[Transaction, ...]:
        return () if self.transaction is None else (self.transaction,)


def sealed(
    schema: TableSchema, stash: Stash, transaction: Transaction | None, late_rows: LateRows
) -> Append | None:
    """Seal one caller's commands; return None if they must be committed separately."""
    if schema.engine.multiplicity is not None or stash.schema != schema:
        return None  # A step of a view is a version of its own (`table.write.outcomes`).
    batches = list(stash.seal())
    if stash.truncated is not None or stash.has_arrivals or len(batches) > 1:
        return None  # Commands ordered by arrival are looked up in the table only.
    if stash.moved is not None:
        return None  # Moved rows take values from the table along (`table.write.moves`).
    commands = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=schema.run)
    if commands.nbytes > BYTES_MAX:
        return None
    return Append(
        schema=schema,
        stash=stash,
        commands=commands,
        transaction=transaction,
        late_rows=late_rows,
    )


def joins(members: Sequence[Append], other: Append) -> bool:
    """Return whether an append may share a version with preceding ones.

    A version records one number per writer: a writer's second append goes into the next version.
    Deletes by keys alone share only with each other: their orders make no ties.
    """
    writers = {member.transaction.writer for member in members if member.transaction is not None}
    return (
        len(members) < MEMBERS_MAX
        and (other.transaction is None or other.transaction.writer not in writers)
        and other.late_rows is members[0].late_rows
        and other.stash.is_by_keys is members[0].stash.is_by_keys
        and sum(member.commands.nbytes for member in members) + other.commands.nbytes <= BYTES_MAX
    )


def append_together(
    log: Log,
    snapshot: Snapshot,
    members: Sequence[Append],
    commit: Committing,
    *,
    admission: Admission,
    threads: int = 1,
) -> list[AppendResult]:
    """Commit appends as one version; return their results, in input order."""
    results: dict[int, AppendResult] = {}
    due: dict[int, Append] = {}
    for index, member in enumerate(members):
        try:
            if member.schema != snapshot.manifest.schema:
                results[index] = APART
            elif is_due(log, _write_set(snapshot, (), [member]), snapshot.manifest):
                due[index] = member
            else:
                results[index] = None
        except UpsertFlowError as error:
            results[index] = error
    if due and admission.refusal(snapshot.manifest) is not None:
        results |= dict.fromkeys(due, APART)
    elif due:
        results |= _commit_due(log, snapshot, due, partial(commit, admission=admission), threads)
    return [results[index] for index in range(len(members))]


def _write_set(
    snapshot: Snapshot, staged: tuple[StagedRuns, ...], members: Sequence[Append]
) -> WriteSet:
    return WriteSet(
        base=snapshot,
        staged=staged,
        transactions=tuple(t for member in members for t in member.transactions),
        late_rows=members[0].late_rows,
    )


def _commit_due(
    log: Log,
    snapshot: Snapshot,
    due: Mapping[int, Append],
    commit: Callable[[WriteSet], Commit | None],
    threads: int,
) -> dict[int, AppendResult]:
    """Commit the appends missing from the table."""
    try:
        batch = stage_together(snapshot, list(due.values()), threads=threads)
    except Exception as error:  # noqa: BLE001 - whatever it is, each caller raises it
        return _error_per_append(due, error)
    results: dict[int, AppendResult] = {}
    counted: dict[int, Counters] = {}
    for index, verdict in zip(due, batch.verdicts, strict=True):
        if isinstance(verdict, Counters):
            counted[index] = verdict
        else:
            results[index] = verdict
    if batch.staged is None:
        return results
    taken = {index: due[index] for index in counted}
    try:
        done = commit(_write_set(snapshot, (batch.staged,), list(taken.values())))
    except (TableFullError, BatchTooLargeError):  # It was not tried.
        remove_runs(snapshot.store, batch.staged.files)
        return results | dict.fromkeys(taken, APART)
    except Exception as error:  # noqa: BLE001 - whatever it is, each caller raises it
        if len(taken) > 1 and _concerns_some_appends(log, taken.values(), error):
            return results | dict.fromkeys(taken, APART)
        return results | _error_per_append(taken, error)
    if len(taken) == 1:
        return results | dict.fromkeys(taken, done)
    if done is None:  # Others were faster with the same transactions. Each finds out by itself.
        return results | dict.fromkeys(taken, APART)
    if done.version > snapshot.manifest.version + 1:
        counted = _recounted(log, snapshot.store, done, taken, counted)
    return results | {
        index: replace(done, counters=counted[index].to_json(), transactions=member.transactions)
        for index, member in taken.items()
    }


def _error_per_append(members: Mapping[int, Append], error: Exception) -> dict[int, AppendResult]:
    """Return the error for each append; the first gets the very object."""
    first, *others = members
    return {first: error, **{index: copy_error_for_thread(error) for index in others}}


def _concerns_some_appends(log: Log, members: Iterable[Append], error: Exception) -> bool:
    """Return whether only some of the appends caused a commit's rejection.

    If another writer committed in between, rows are decided again; that writer may also have
    committed only some of the transactions.
    """
    if isinstance(error, DataError):
        return True
    if not isinstance(error, ContentionError):
        return False
    transactions = [member.transaction for member in members if member.transaction is not None]
    head = log.cached_head
    known_count = sum(head is not None and head.has(transaction) for transaction in transactions)
    return 0 < known_count < len(transactions)


def _recounted(
    log: Log,
    store: Store,
    done: Commit,
    taken: Mapping[int, Append],
    counted: dict[int, Counters],
) -> dict[int, Counters]:
    """Return the appends' counters, including commits between their plan and their commit.

    The version is committed in any case: if the recount fails, the counters are those
    against the version used for the plan.
    """
    try:
        before = Snapshot(store, log.before(done.version))
        verdicts = _judged(before, list(taken.values())).verdicts
    except (OSError, UpsertFlowError):
        return counted
    again = dict(zip(taken, verdicts, strict=True))
    return {i: v if isinstance(v := again[i], Counters) else counted[i] for i in taken}


AppendVerdict: TypeAlias = Counters | SeparateCommit | DataError
"""An append's counters after the table and the preceding appends; or why it may not join."""


class GroupedAppends(NamedTuple):
    """Appends staged as one task of an epoch."""

    staged: StagedRuns | None
    """None if no append is admitted."""
    verdicts: list[AppendVerdict]


def stage_together(
    snapshot: Snapshot, members: Sequence[Append], *, threads: int = 1
) -> GroupedAppends:
    """Write the appends' remaining commands durably, and count each append's effect."""
    if len(members) == 1:
        return _staged_alone(snapshot, members[0], threads)
    judged = _judged(snapshot, members)
    if not any(isinstance(verdict, Counters) for verdict in judged.verdicts):
        return GroupedAppends(None, judged.verdicts)
    files = []
    prepared = prepare(snapshot.store, snapshot.manifest)
    if judged.commands.num_rows:
        with Scratch(snapshot.store, prepared) as scratch:
            files.append(scratch.write(judged.commands))
    staged = StagedRuns(
        base=snapshot.manifest.version_ref,
        files=tuple(files),
        counters=judged.counters,
        examples=judged.examples,
        is_by_keys=members[0].stash.is_by_keys,
        logs=frozenset().union(*(member.stash.logs for member in members)),
        ahead=None if prepared is None else prepared.result(),
    )
    return GroupedAppends(staged, judged.verdicts)


def _staged_alone(snapshot: Snapshot, member: Append, threads: int) -> GroupedAppends:
    try:
        staged = stage_sealed(snapshot, member.stash, late_rows=member.late_rows, threads=threads)
    except DataError as error:
        return GroupedAppends(None, [error])
    return GroupedAppends(staged, [staged.counters])


class _AppendResults(NamedTuple):
    """The appends' sequential effects and their remaining commands."""

    verdicts: list[AppendVerdict]
    commands: pa.RecordBatch
    """The admitted appends' commands: one per key, sorted by (hash, key)."""
    counters: Counters
    """The version's counters."""
    examples: Mapping[str, str]


def _judged(snapshot: Snapshot, members: Sequence[Append]) -> _AppendResults:
    """Decide each append against the table and the preceding appends.

    Usually no two appends share a key, and all may be committed: then one look-up in the table is
    enough. Otherwise they are decided one by one, to find the rejected ones.
    """
    at_once = _AppendDecider(snapshot, members)
    if at_once.admits_all():
        return at_once.results()
    one_by_one = _AppendDecider(snapshot, members)
    one_by_one.admit_each()
    return one_by_one.results()


class _AppendDecider:
    """The appends admitted so far.

    Rows whose keys occur in only one append are separate from those with *contested* keys, which
    are merged from append to append, as a compaction would.
    """

    def __init__(self, snapshot: Snapshot, members: Sequence[Append]) -> None:
        self._snapshot = snapshot
        self._members = members
        self._schema = snapshot.manifest.schema
        self._late_rows = members[0].late_rows
        self._is_by_keys = members[0].stash.is_by_keys
        self._verdicts: list[AppendVerdict] = []
        self._counters = EMPTY
        self._examples: dict[str, str] = {}
        self._alone = self._contested = pa.RecordBatch.from_pylist([], schema=self._schema.run)

    def admits_all(self) -> bool:
        """Decide all uncontested rows in one step; return whether all may be committed."""
        rows = Rows(self._schema, [BatchPart(member.commands) for member in self._members])
        contested = shared_hashes(rows.hashes, ())
        counted = self._admit_at_once(rows, np.flatnonzero(~contested))
        if counted is None:
            return False
        for member, alone, start in zip(self._members, counted, rows.starts, strict=False):
            is_contested = contested[start : start + member.commands.num_rows]
            verdict = self._admit(member, member.commands.filter(pa.array(is_contested)))
            if not isinstance(verdict, Counters):
                return False
            self._verdicts.append(verdict + alone)
        return True

    def admit_each(self) -> None:
        """Decide each append as a unit, and leave out the rejected ones."""
        for member in self._members:
            self._verdicts.append(self._admit(member, member.commands))

    def _admit_at_once(self, rows: Rows, chosen: Positions) -> list[Counters] | None:
        """Admit rows sharing no hash with others; return each append's counters."""
        chosen = chosen[order_of(rows.hashes[chosen])]
        try:
            outcomes = outcomes_of(
                self._snapshot,
                rows,
                chosen,
                overwrite=False,
                late_rows=self._late_rows,
                is_by_keys=self._is_by_keys,
            )
            examples = examples_of(rows, chosen, outcomes, self._late_rows)
        except DataError:
            return None
        if _needs_own_commit(outcomes, self._schema):
            return None
        self._alone = _batch(rows, chosen)
        self._counters += count(outcomes)
        self._examples |= examples
        owners = rows.part_of(chosen)
        return [count(_of(outcomes, owners == index)) for index in range(len(rows.parts))]

    def _admit(self, member: Append, commands: pa.RecordBatch) -> AppendVerdict:
        """Admit an append's commands after those already admitted; or return why they may not join.

        Late rows must commit separately: they must not be merged with others before they are left
        out. So must rows that can be applied but not merged, such as sums overflowing without those
        in the table.
        """
        rows = Rows(self._schema, [BatchPart(commands)])
        everything = np.arange(len(rows))
        try:
            outcomes = self._outcomes(rows)
            self._examples |= examples_of(rows, everything, outcomes, self._late_rows)
        except DataError as error:
            return error
        if _needs_own_commit(outcomes, self._schema):
            return APART
        both = Rows(self._schema, [BatchPart(self._contested), *rows.parts])
        try:
            reduced = merge_function_for(self._schema).reduce(
                both, epochs=epochs_by_part(both, [0, 1])
            )
            lost, examples = count_losers(both, reduced)
        except DataError:
            return APART
        self._contested = reduced.batch()
        self._counters += member.stash.counters + lost
        self._examples |= {**member.stash.examples, **examples}
        return member.stash.counters + count(outcomes)

    def _outcomes(self, rows: Rows) -> Outcomes:
        """Return the commands' effects on the table and on previously admitted commands."""
        manifest, everything = self._snapshot.manifest, np.arange(len(rows))
        if len(rows):
            spanned = HashRange.spanning(rows.hashes[0], rows.hashes[-1])
            names = columns_to_find(self._schema, ())
            state = self._snapshot.parts(spanned, Access(columns=names, probes=rows.hashes))
        else:
            state = []
        before = (BatchPart(self._contested), manifest.upper)
        keys = rows.take(self._schema.identity, everything)
        stored_rows = find(self._schema, [*state, before], rows.hashes, keys)
        return classify(
            rows,
            everything,
            stored_rows,
            low_water=manifest.low_water,
            late_rows=self._late_rows,
            is_by_keys=self._is_by_keys,
        )

    def results(self) -> _AppendResults:
        """Return the results for all appends."""
        rows = Rows(self._schema, [BatchPart(self._contested)])
        everything = np.arange(len(rows))
        try:
            outcomes = outcomes_of(
                self._snapshot,
                rows,
                everything,
                overwrite=False,
                late_rows=self._late_rows,
                is_by_keys=self._is_by_keys,
            )
            examples = examples_of(rows, everything, outcomes, self._late_rows)
        except DataError:
            return self._commit_all_separately()
        if _needs_own_commit(outcomes, self._schema):
            return self._commit_all_separately()
        both = Rows(self._schema, [BatchPart(self._alone), *rows.parts])
        return _AppendResults(
            self._verdicts,
            _batch(both, order_of(both.hashes)),
            self._counters + count(outcomes),
            {**self._examples, **examples},
        )

    def _commit_all_separately(self) -> _AppendResults:
        """Let each append commit alone: together they would mean something else than in turn."""
        verdicts: list[AppendVerdict] = [
            APART if isinstance(verdict, Counters) else verdict for verdict in self._verdicts
        ]
        return _AppendResults(verdicts, self._alone, EMPTY, {})


def _of(outcomes: Outcomes, mask: Mask) -> Outcomes:
    kinds, *masks = outcomes
    return Outcomes(kinds[mask], *(other[mask] for other in masks))


def _needs_own_commit(outcomes: Outcomes, schema: TableSchema) -> bool:
    """Return whether an append has late rows, or rows for which the write fails."""
    return bool(outcomes.are_late.any()) or (
        schema.on_unknown is OnUnknown.FAIL
        and bool((outcomes.become_unknown | outcomes.are_strayed).any())
    )


def _batch(rows: Rows, chosen: Positions) -> pa.RecordBatch:
    names = rows.schema.run.names
    return pa.RecordBatch.from_arrays(rows.take(names, chosen), schema=rows.schema.run)


class WritableTable(Protocol):
    """The part of a table needed by its writers (`Table`)."""

    log: Log
    store: Store
    threads: int

    def admission(
        self,
        full_wait_ms: int = FULL_WAIT_MS,
        *,
        heeds_pressure: bool = True,
        guard: Guard | None = None,
    ) -> Admission:
        """Return the admission check for room."""
        ...

    def commit(self, epoch: WriteSet, *, admission: Admission | None = None) -> Commit | None:
        """Make an epoch visible."""
        ...

    def discard(self, staged: Iterable[StagedRuns]) -> None:
        """Remove staged files for which no commit was tried."""
        ...


class Appends:
    """The appends of the threads sharing a table object; parameters of `append` as there.

    Parameters
    ----------
    table : WritableTable
    pressure : callable
        Returns from 0 to 1 how much there is to do (`commit_window_ms`).
    """

    def __init__(self, table: WritableTable, pressure: Callable[[], float]) -> None:
        self._table = table
        self._pressure = pressure
        self.calls = SharedCalls(self._round, joins=joins, window_s=self.window_s)

    def window_s(self) -> float:
        """Return how long waiting appends wait for more."""
        return commit_window_ms(self._pressure()) / 1000

    def append(
        self,
        rows: pa.Table,
        *,
        deletes: str | None,
        envelope: Envelope | None,
        transaction: Transaction | None,
        overwrite: bool,
        late_rows: LateRows,
        full_wait_ms: int,
        heeds_pressure: bool,
        may_lack: bool,
        unchanged: Mapping[str, str],
    ) -> Commit | None:
        """Apply rows as one epoch (`Table.upsert`)."""
        result: AppendResult = APART
        commands_at = partial(
            commands_of,
            rows=rows,
            deletes=deletes,
            envelope=envelope,
            may_lack=may_lack,
            unchanged=unchanged,
        )
        if not overwrite and late_rows is not LateRows.APPLY and rows.nbytes <= BYTES_MAX:
            result = self._shared(commands_at, transaction, late_rows)
        if isinstance(result, Exception):
            raise result
        if result is not APART:
            return result
        table = self._table
        head = table.log.head()
        admission = table.admission(full_wait_ms, heeds_pressure=heeds_pressure)
        if transaction is None or not head.has(transaction):
            head = admission.require(head)
        snapshot = Snapshot(table.store, head)
        staged = stage(
            snapshot,
            commands_at(head),
            overwrite=overwrite,
            late_rows=late_rows,
            threads=table.threads,
        )
        epoch = WriteSet(
            base=snapshot,
            staged=(staged,),
            transactions=() if transaction is None else (transaction,),
            overwrite=overwrite,
            late_rows=late_rows,
        )
        try:
            return table.commit(epoch, admission=admission)
        except (TableFullError, BatchTooLargeError):
            table.discard(epoch.staged)  # It was not tried.
            raise

    def _shared(
        self,
        commands_at: Callable[[Manifest], Iterator[pa.RecordBatch]],
        transaction: Transaction | None,
        late_rows: LateRows,
    ) -> AppendResult:
        """Append rows together with those from other threads, if there are any."""
        # An older version will do: whether its columns are those of the newest is seen then.
        head = self._table.log.cached_snapshot().head()
        with Stash(head.schema) as stash:
            try:
                for batch in commands_at(head):
                    stash.add(batch)
                call = sealed(head.schema, stash, transaction, late_rows)
            except UpsertFlowError:
                return APART  # Perhaps valid at the newest version.
            return APART if call is None else self.calls.call(call)

    def _round(self, calls: Sequence[Append]) -> list[AppendResult]:
        """Commit several threads' appends as one version."""
        table = self._table
        snapshot = Snapshot(table.store, table.log.head())
        # An append waiting for room does so separately.
        admission = table.admission(full_wait_ms=0)
        return append_together(
            table.log, snapshot, calls, table.commit, admission=admission, threads=table.threads
        )


def commands_of(
    head: Manifest,
    rows: pa.Table,
    deletes: str | None = None,
    envelope: Envelope | None = None,
    *,
    may_lack: bool = False,
    unchanged: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """Yield the commands for rows, by a table version's schema."""
    if envelope is None:
        envelope = envelope_of_rows(
            head.schema, rows.schema, deletes=deletes, may_lack=may_lack, unchanged=unchanged
        )
    yield from map(envelope.commands, rows.to_batches())
