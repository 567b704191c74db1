"""Staging of a routed write in a task (`stage_routed`): table after table, and some compactions.

A table already containing the batch is skipped, so a repeated batch needs no equal division.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Protocol

import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.core.threads import map_in_order
from spark_upsert.envelopes.write_plan import WritePlan, default_late_rows
from spark_upsert.errors import DataError, TableFullError, UpsertFlowError, about
from spark_upsert.options.write import WriteOptions
from spark_upsert.routed.dead_letter import (
    NAMELESS,
    DeadLetterMetadata,
    DeadLetterTable,
    as_dead_letter_error,
    earlier_rows_error,
    is_permanent_error,
)
from spark_upsert.routed.group import SourcePosition
from spark_upsert.routed.plan import RoutedPlan, plan_rows_of, require_room, table_below
from spark_upsert.routed.router import MEMORY_BYTES, Route, Router, Spool
from spark_upsert.store import Store
from spark_upsert.store.open import is_remote
from spark_upsert.table.compaction import CompactionResult, compact_runs
from spark_upsert.table.log.manifest import Manifest, Transaction
from spark_upsert.table.log.properties import Caps, OnFull
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import StagedRuns, remove_runs

_LOGGER = logging.getLogger(__name__)

TABLES_AT_ONCE = 32
"""Small tables staged in parallel by a task on remote storage."""

SMALL_BYTES = MEMORY_BYTES // TABLES_AT_ONCE
"""Size limit for parallel staging; a larger table is staged alone with the full memory."""

COMPACT_BYTES_MIN = 16 << 20
"""Compaction bytes allowed per task even if it received few rows."""

COMPACT_TABLES_MIN = 16
COMPACT_SHARE = 4
"""A task compacts at most one table per `COMPACT_SHARE` tables it received, or `COMPACT_TABLES_MIN`
if that is more. Equally filling tables are due in the same batch, which would take three times as
long as the others."""

COMPACT_FACTOR = 4
"""Compaction limit as a multiple of the task's incoming bytes; compaction is amortized work and
ends with the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """One task's part in a table's batch: durable, not yet visible."""

    route: Route
    rows: int
    """Rows received for the table."""
    staged: StagedRuns | None
    """Staged runs; None if the table has the batch already, or the rows became dead letters."""
    unborn: Manifest | None = None
    """Manifest for a table to be created, from this task's view."""
    dead_letter: DeadLetterMetadata | None = None
    """Dead-letter metadata if the rows become dead letters."""
    staged_dead_letters: StagedRuns | None = None
    """Staged dead-letter rows."""
    task_index: int = 0

    @property
    def folder(self) -> str:
        return self.route.folder or NAMELESS


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedStaged:
    """One task's parts for all tables: durable, not yet visible."""

    task_index: int
    group_version: int
    """Group table version when the batch was planned."""
    terms: str = ""
    """The batch's `RoutedPlan.terms`."""
    tables: tuple[StagedTable, ...] = ()
    compacted: tuple[tuple[str, CompactionResult], ...] = ()
    """Compactions, each with its table folder."""
    visited: tuple[str, ...] = ()
    """Folders visited for compaction."""
    source: SourcePosition | None = None
    """The batch's position in the database that the tables follow, in one of its tasks."""


def stage_routed(
    plan: RoutedPlan,
    root: Store,
    batches: Iterable[pa.RecordBatch],
    transaction: Transaction | None,
    task_index: int,
    *,
    threads: int | None = None,
) -> RoutedStaged:
    """Stage one task's rows and run its share in due compactions."""
    if plan.is_complete(transaction):
        for _ in batches:
            continue
        return RoutedStaged(
            task_index=task_index, group_version=plan.group_version, terms=plan.terms
        )
    with Spool(Router(plan.options.template, plan.incoming)) as spool:
        for batch in batches:
            spool.add(batch)
        counts = spool.seal()
        for route in counts:
            if route.problem is not None and not plan.options.parks_nameless:
                raise route.problem
        return stage_tables(
            plan,
            root,
            _SpooledRows(spool, plan.incoming),
            counts,
            transaction,
            task_index,
            threads=threads,
        )


class TableRows(Protocol):
    """Rows for many tables, cut by table."""

    @property
    def bytes(self) -> int:
        """Total bytes."""
        ...

    def rows(self, route: Route) -> Iterator[pa.RecordBatch]:
        """Yield a table's rows in arrival order."""
        ...

    def plan(
        self, route: Route, table: Table, options: WriteOptions, new_table_id: str
    ) -> WritePlan:
        """Plan the write of a table's rows."""
        ...


@dataclass(frozen=True, slots=True)
class _SpooledRows:
    """A spool's rows, all with the same columns."""

    spool: Spool
    incoming: pa.Schema

    @property
    def bytes(self) -> int:
        return self.spool.bytes

    def rows(self, route: Route) -> Iterator[pa.RecordBatch]:
        return self.spool.rows(route)

    def plan(
        self, route: Route, table: Table, options: WriteOptions, new_table_id: str
    ) -> WritePlan:
        rows = self.spool.rows(route)
        return plan_rows_of(table, options, rows, self.incoming, new_table_id=new_table_id)


def stage_tables(
    plan: RoutedPlan,
    root: Store,
    rows: TableRows,
    counts: dict[Route, int],
    transaction: Transaction | None,
    task_index: int,
    *,
    threads: int | None = None,
    spill_bytes: int | None = None,
) -> RoutedStaged:
    """Stage rows that are cut by table, and run the task's share in due compactions."""
    folders = {route.folder: route.name for route in counts if route.folder is not None}
    require_room(plan.options, root, plan.places, folders)
    staging = _Staging(plan, root, rows, transaction, task_index, spill_bytes)
    usual = TABLES_AT_ONCE if is_remote(plan.options.template.root) else 1
    tables = staging.all_of(counts, usual if threads is None else threads)
    upkeep = _Upkeep(plan, root, rows.bytes, len(counts))
    upkeep.compact_due(
        plan.compaction_folders[task_index] if task_index < len(plan.compaction_folders) else ()
    )
    return RoutedStaged(
        task_index=task_index,
        group_version=plan.group_version,
        terms=plan.terms,
        tables=tables,
        compacted=tuple(upkeep.compacted),
        visited=tuple(upkeep.visited),
    )


class _Staging:
    """Stages one task's tables."""

    def __init__(
        self,
        plan: RoutedPlan,
        root: Store,
        rows: TableRows,
        transaction: Transaction | None,
        task_index: int,
        spill_bytes: int | None,
    ) -> None:
        self._plan = plan
        self._root = root
        self._rows = rows
        self._spill_bytes = spill_bytes
        self._transaction = transaction
        self._task_index = task_index
        self._done: list[StagedTable] = []

    def all_of(self, counts: dict[Route, int], threads: int) -> tuple[StagedTable, ...]:
        """Stage all tables; on an error, remove everything staged."""
        small = SMALL_BYTES * sum(counts.values()) // max(1, self._rows.bytes)
        nameless = [route for route in counts if route.folder is None]
        large = [route for route, rows in counts.items() if route.folder and rows > small]
        others = [route for route, rows in counts.items() if route.folder and rows <= small]
        one = partial(self._stage_one, counts)
        try:
            lost = self._park_nameless(nameless, counts)
            alone = tuple(map(one, large))
            return (*lost, *alone, *map_in_order(one, others, min(threads, len(others))))
        except BaseException:
            discard_staged(self._root, self._done)
            raise

    def _park_nameless(
        self, routes: Sequence[Route], counts: Mapping[Route, int]
    ) -> tuple[StagedTable, ...]:
        """Stage all rows without a folder as one dead-letter entry."""
        if not routes:
            return ()
        first = routes[0]
        if len(routes) > 1:
            problem = first.problem
            assert problem is not None
            reason = problem.message_without_values
            text = f"{len(routes)} values name no table, the first because {reason}"
            problem = DataError(text, hint=problem.hint)
            first = Route((None,) * len(first.values), None, "", problem)
        rows = chain.from_iterable(map(self._rows.rows, routes))
        dead_letter = self._stage_dead_letters(
            first, sum(counts[route] for route in routes), first.problem, rows
        )
        staged = replace(dead_letter, task_index=self._task_index)
        self._done.append(staged)
        return (staged,)

    def _stage_one(self, counts: dict[Route, int], route: Route) -> StagedTable:
        with about("table", route.name):
            outcome = self._stage_or_park(route, counts[route])
            staged = replace(outcome, task_index=self._task_index)
            self._done.append(staged)
            return staged

    def _stage_or_park(self, route: Route, rows: int) -> StagedTable:
        """Stage a table's rows; as dead letters if it fails or already has dead-letter rows."""
        plan = self._plan
        assert route.folder is not None
        if route.folder in plan.dead_letter_folders:
            if self._has_batch(route.folder):
                return StagedTable(route=route, rows=rows, staged=None)
            if plan.overwrite or not plan.options.park:
                raise earlier_rows_error(route.name, self._root.url)
            return self._stage_dead_letters(route, rows, None)
        try:
            return self._stage_rows(route, rows)
        except Exception as error:
            dead_letter_error = (
                as_dead_letter_error(error) if plan.options.park and not plan.overwrite else None
            )
            if dead_letter_error is None:
                raise
            return self._stage_dead_letters(route, rows, dead_letter_error)

    def _has_batch(self, folder: str) -> bool:
        """Return whether a table with dead-letter rows has the batch; False for a damaged table.

        A later replay reports the damage.
        """
        try:
            head = table_below(self._root, folder).log.try_head()
        except UpsertFlowError as error:
            if not is_permanent_error(error):
                raise
            return False
        return head is not None and self._transaction is not None and head.has(self._transaction)

    def _stage_dead_letters(
        self,
        route: Route,
        rows: int,
        error: UpsertFlowError | None,
        batches: Iterable[pa.RecordBatch] | None = None,
    ) -> StagedTable:
        plan = self._plan
        metadata = DeadLetterMetadata(
            route=route,
            transaction=plan.batch_transaction(self._transaction),
            planned=plan.group_version,
            error=error,
            options=plan.options.given(route.name),
        )
        table = DeadLetterTable(self._root)
        table.ensure()
        batches = self._rows.rows(route) if batches is None else batches
        staged = table.stage(metadata, self._task_index, batches)
        return StagedTable(
            route=route, rows=rows, staged=None, dead_letter=metadata, staged_dead_letters=staged
        )

    def _stage_rows(self, route: Route, rows: int) -> StagedTable:
        assert route.folder is not None
        plan = self._plan
        table = table_below(self._root, route.folder)
        look = table.log.try_refresh(reported=plan.places.get(route.folder))
        head = None if look is None else look.head()
        plan.require_same(route.folder, route.name, head, table.store.url)
        if head is not None and self._transaction is not None and head.has(self._transaction):
            return StagedTable(route=route, rows=rows, staged=None)
        options = plan.options.of(route.name, route.folder)
        write = self._rows.plan(route, table, options, plan.new_table_id(route.folder))
        _require_room(table, options, write.base)
        staged = stage(
            Snapshot(table.store, write.base),
            map(write.envelope.commands, self._rows.rows(route)),
            overwrite=plan.overwrite,
            late_rows=default_late_rows(options, plan.late_rows),
            spill_bytes=self._spill_bytes,
        )
        unborn = write.base if write.base.is_unborn else None
        return StagedTable(route=route, rows=rows, staged=staged, unborn=unborn)


def _require_room(table: Table, options: WriteOptions, base: Manifest) -> None:
    """Raise if a table is full, unless the commit waits for room."""
    admission = table.admission(0, heeds_pressure=not options.disable_backpressure)
    refusal = admission.refusal(base)
    waits = isinstance(refusal, TableFullError) and Caps.of(base.properties).on_full is OnFull.WAIT
    if refusal is not None and not waits:
        raise refusal


def discard_staged(root: Store, tables: Iterable[StagedTable]) -> None:
    """Remove unused staged files, ignoring errors."""
    for table in tables:
        if table.staged is not None and table.route.folder is not None:
            remove_runs(table_below(root, table.route.folder).store, table.staged.files)
        if table.staged_dead_letters is not None:
            remove_runs(DeadLetterTable(root).table.store, table.staged_dead_letters.files)


class _Upkeep:
    """One task's share in due compactions, proportional to its rows."""

    def __init__(self, plan: RoutedPlan, root: Store, bytes_given: int, tables_given: int) -> None:
        self._plan = plan
        self._root = root
        self._bytes_left = max(COMPACT_BYTES_MIN, COMPACT_FACTOR * bytes_given)
        self._tables_max = max(COMPACT_TABLES_MIN, tables_given // COMPACT_SHARE)
        self.visited: list[str] = []
        """Folders visited, compacted or not."""
        self.compacted: list[tuple[str, CompactionResult]] = []

    def compact_due(self, due: Sequence[str]) -> None:
        """Compact tables in order up to the task limits."""
        for folder in due[: self._tables_max]:
            if self._bytes_left <= 0:
                return
            self.visited.append(folder)
            self._compact(folder)

    def _compact(self, folder: str) -> None:
        plan, table = self._plan, table_below(self._root, folder)
        try:
            head = None if folder in plan.dead_letter_folders else table.log.try_head()
            if head is None or head.table_id != plan.places[folder].table_id:
                return  # A task with rows for it reports this.
            for job in table.compaction_jobs(look=table.log.cached_snapshot()):
                if self._bytes_left <= 0:
                    return
                self._bytes_left -= job.bytes
                self.compacted.append((folder, compact_runs(table.store, head, job)))
        except UpsertFlowError as error:
            if not (plan.options.park and is_permanent_error(error)):
                raise
            # Nothing is lost: a task with rows for it, and any reader, meets the damage.
            fields = Fields(table=folder, code=error.code, reason=error.message)
            _LOGGER.warning("a table cannot be compacted, and is left as it is: %s", fields)
