"""Dead letters from staged work, for a table failing in one task or at its commit.

Other tasks' staged rows are read back as commands, so all rows of the batch for the table are
parked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import ContentionError, UpsertFlowError
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.routed.dead_letter import DeadLetterKind, DeadLetterMetadata, DeadLetterTable
from spark_upsert.routed.stage import StagedTable
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.log.manifest import Manifest, Transaction
from spark_upsert.table.run.file import RUNS, Span
from spark_upsert.table.run.rows import BatchPart, Rows, RunPart
from spark_upsert.table.table import Table
from spark_upsert.table.write.write_set import StagedRuns, remove_runs, with_truncate

_LOGGER = logging.getLogger(__name__)

TABLE = b"upsertflow.table"
"""Arrow metadata key for commands: the target table's schema and properties."""


class DeadLetterWriter:
    """Sends the rows for failing tables in one batch to the dead-letter table.

    Parameters
    ----------
    root : Store
    options : RoutedOptions
    transaction : Transaction or None
        The batch's transaction.
    planned : int
        Group version when the batch was planned.
    """

    def __init__(
        self,
        root: Store,
        options: RoutedOptions,
        transaction: Transaction | None,
        planned: int,
    ) -> None:
        self._root = root
        self._options = options
        self._transaction = transaction
        self._planned = planned
        self._table = DeadLetterTable(root)

    def write(
        self,
        tables: Mapping[str, Sequence[StagedTable]],
        errors: Mapping[str, UpsertFlowError] | None = None,
    ) -> None:
        """Write all rows for some tables to the dead-letter table and log why.

        Errors by folder are for tables whose commit was tried; without them staging failed.
        """
        staged: dict[str, list[StagedRuns]] = {}
        batch = self._transaction
        for folder, parts in tables.items():
            metadata = self._dead_letter_metadata(parts, (errors or {}).get(folder))
            batch = metadata.transaction
            pieces = (self._stage_piece(part, metadata) for part in parts)
            staged[folder] = [piece for piece in pieces if piece is not None]
        if batch is None or not staged:
            return
        self._table.commit(staged, batch)
        for parts in tables.values():
            self._discard_staged(parts, was_tried=errors is not None)
            self._log_dead_letters(
                parts, self._dead_letter_metadata(parts, (errors or {}).get(parts[0].folder))
            )

    def _dead_letter_metadata(
        self, parts: Sequence[StagedTable], error: UpsertFlowError | None
    ) -> DeadLetterMetadata:
        route = parts[0].route
        dead_letters = [part.dead_letter for part in parts if part.dead_letter is not None]
        failed = [dead_letter for dead_letter in dead_letters if dead_letter.error is not None]
        if dead_letters:
            return (failed or dead_letters)[0]
        transaction = self._transaction
        if transaction is None:
            raise error or AssertionError("nothing failed")
        return DeadLetterMetadata(
            route=route,
            transaction=transaction,
            planned=self._planned,
            error=error,
            options=self._options.given(route.name),
        )

    def _stage_piece(self, part: StagedTable, metadata: DeadLetterMetadata) -> StagedRuns | None:
        """Return a task's dead-letter rows; None if the table has the batch."""
        if self._transaction is not None and not _is_same_batch(
            metadata.transaction, self._transaction
        ):
            raise metadata.error or AssertionError("a task that knows no batch parks none")
        if part.staged_dead_letters is not None:
            return part.staged_dead_letters
        if part.staged is None:
            return None
        _refuse_view_steps(part.staged, part.route.name)
        table = Table(PrefixStore(self._root, part.folder))
        base = part.unborn or table.log.at(part.staged.base_version)
        self._table.ensure()
        commands = _iter_commands(table, part.staged, base)
        return self._table.stage(metadata, part.task_index, commands, kind=DeadLetterKind.COMMANDS)

    def _discard_staged(self, parts: Sequence[StagedTable], *, was_tried: bool) -> None:
        """Remove staged files; after a tried commit only a vacuum may delete them."""
        if not was_tried:
            store = PrefixStore(self._root, parts[0].folder)
            files = (file for part in parts if part.staged for file in part.staged.files)
            remove_runs(store, files)

    def _log_dead_letters(self, parts: Sequence[StagedTable], metadata: DeadLetterMetadata) -> None:
        error = metadata.error
        if error is None:
            return  # It was told when the first of them was parked.
        fields = Fields(
            table=metadata.route.name,
            rows=sum(part.rows for part in parts),
            batch=metadata.transaction.number,
            code=error.code,
            reason=error.message_without_values,
            hint="mend it, and run 'upsertflow replay'; until then its rows are parked",
        )
        _LOGGER.warning("a table cannot take its rows, and they are parked: %s", fields)


def _is_same_batch(one: Transaction, other: Transaction) -> bool:
    return (one.writer, one.number) == (other.writer, other.number)


def _iter_commands(table: Table, staged: StagedRuns, base: Manifest) -> Iterator[pa.RecordBatch]:
    """Yield a task's staged commands with the target table in their metadata."""
    schema = base.schema.with_unchanged(staged.unchanged, has_moves=staged.has_moves)
    record = {"schema": schema.to_json(), "properties": dict(base.properties)}
    headers = {TABLE: json.dumps(record).encode()}
    for batch in _iter_batches(table, staged, schema):
        yield with_truncate(batch.replace_schema_metadata(headers), staged.truncated)


def _iter_batches(
    table: Table, staged: StagedRuns, schema: TableSchema
) -> Iterator[pa.RecordBatch]:
    """Yield staged commands; a truncate without rows yields an empty batch."""
    if not staged.files:
        yield pa.RecordBatch.from_pylist([], schema=schema.run)
    for file in staged.files:
        rows = Rows(schema, [RunPart(Span.within(RUNS.open(table.store, file)))])
        part = rows.gathered(schema.run.names).parts[0]
        assert isinstance(part, BatchPart)
        yield part.batch.cast(schema.run)


def _refuse_view_steps(staged: StagedRuns, name: str) -> None:
    """Raise for a view step: its changes are atomic and do not follow batch order."""
    if staged.move is not None:
        raise ContentionError(
            f"the table '{name}' keeps a view and fails in some tasks of the batch: its step "
            "cannot be parked. Nothing of it was committed.",
            hint="mend the table, and restart the query.",
        )
