"""Replay of dead-letter rows (`replay_dead_letters`): in order, each batch exactly once.

Each batch is committed with its original transaction and then removed, so a running query cannot
apply it twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_upsert.core.arrow_types import widens
from spark_upsert.core.names import joined_names
from spark_upsert.core.schema import TableSchema
from spark_upsert.envelopes.write_plan import default_late_rows
from spark_upsert.errors import (
    OptionError,
    OtherTableError,
    SchemaError,
    StorageError,
    UpsertFlowError,
    did_you_mean,
    setting,
)
from spark_upsert.options.routed import overridden
from spark_upsert.options.write import WriteOptions
from spark_upsert.routed.dead_letter import (
    NAMELESS,
    DeadLetterKind,
    DeadLetterRows,
    DeadLetterTable,
    as_dead_letter_error,
)
from spark_upsert.routed.group import GroupTable, Member
from spark_upsert.routed.park_staged import TABLE
from spark_upsert.routed.plan import plan_rows_of
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore
from spark_upsert.table.log.manifest import Manifest, TableVersion
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.schema_changes import require_free
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import Envelope, rehashed
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.write_set import WriteSet, truncated_at, with_truncate

PASSES_MAX = 1000
"""Maximum replay passes. A query adding rows meanwhile needs a few; more indicate a bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Replay result for one table."""

    folder: str
    name: str
    batches: int
    rows: int
    left: int
    """Dead-letter rows added meanwhile by the query."""


def replay_dead_letters(
    root: Store,
    names: Collection[str] = (),
    *,
    options: Mapping[str, str] | None = None,
    on_result: Callable[[ReplayResult], None] = lambda _: None,
) -> list[ReplayResult]:
    """Replay dead-letter rows, by default for all tables.

    Calls `on_result` after each table. Raises the first table's error after all tables were tried; a
    `StorageError` stops immediately.
    """
    table, done = DeadLetterTable(root), []
    first: UpsertFlowError | None = None
    for folder, name in select_tables(table, names).items():
        if folder == NAMELESS:
            continue
        try:
            done.append(_replay_one(root, table, folder, name, options or {}))
        except StorageError:
            raise
        except Exception as error:
            # Whatever it is, it is about this table, and what is parked for it stays.
            data_error = as_dead_letter_error(error) or error
            if not isinstance(data_error, UpsertFlowError):
                raise
            data_error.add_subject("table", name)
            first = first or data_error
            continue
        on_result(done[-1])
    if first is not None:
        raise first
    return done


def drop_dead_letters(
    root: Store, names: Collection[str] = (), *, nameless: bool = False
) -> list[ReplayResult]:
    """Delete dead-letter rows without applying them; rows added meanwhile stay."""
    table = DeadLetterTable(root)
    folders = select_tables(table, names) if names else {}
    folders |= {NAMELESS: ""} if nameless else {}
    done = []
    for folder, name in folders.items():
        batches = table.list_batches(folder)
        table.remove(batches)
        rows = sum(batch.rows for batch in batches)
        done.append(ReplayResult(folder=folder, name=name, batches=len(batches), rows=rows, left=0))
        GroupTable(root).update_member(_count_update(table, folder), folder)
    return done


def select_tables(table: DeadLetterTable, names: Collection[str]) -> dict[str, str]:
    """Return name by folder for tables selected by folder or name; all if none are named."""
    name_by_folder = {entry.folder: entry.name for entry in table.list_batches()}
    if not names:
        return name_by_folder
    selected = {
        folder: name for folder, name in name_by_folder.items() if {folder, name} & set(names)
    }
    missing = sorted(set(names) - {*selected, *selected.values()})
    if missing:
        raise OptionError(
            f"nothing is parked for '{missing[0]}' below '{table.root.url}'.",
            hint=did_you_mean(missing[0], name_by_folder.values())
            if name_by_folder
            else "nothing is parked at all.",
            table=missing[0],
        )
    return selected


def _replay_one(
    root: Store, table: DeadLetterTable, folder: str, name: str, overrides: Mapping[str, str]
) -> ReplayResult:
    batches = rows = 0
    for _ in range(PASSES_MAX):
        waiting = table.list_batches(folder)
        if not waiting:
            break
        table_refs = [_apply(root, table, batch_ref, overrides) for batch_ref in waiting]
        # Before it is forgotten: a reader of all tables at one batch learns of it from the group.
        left = sum(entry.rows for entry in table.list_batches(folder)) - sum(
            e.rows for e in waiting
        )
        GroupTable(root).update_member(
            _batch_update(waiting[-1], table_refs[-1], max(0, left)), folder
        )
        table.remove(waiting)
        batches, rows = batches + len(waiting), rows + sum(entry.rows for entry in waiting)
    left = sum(entry.rows for entry in table.list_batches(folder))
    return ReplayResult(folder=folder, name=name, batches=batches, rows=rows, left=left)


def _batch_update(
    dead_letters: DeadLetterRows, place: TableVersion, left: int
) -> Callable[[Member | None], Member]:
    def update(before: Member | None) -> Member:
        if before is not None and _is_at_or_after(before.place, place):
            return replace(before, parked=left)
        member = Member(
            folder=dead_letters.folder,
            name=dead_letters.name,
            values=tuple(value or "" for value in dead_letters.values),
            place=place,
            writer=dead_letters.query,
            batch=dead_letters.batch,
            rows=dead_letters.rows,
            parked=left,
            committed_ms=dead_letters.parked_ms,
        )
        if before is None:
            return member
        return replace(member, debt=before.debt, debt_since_ms=before.debt_since_ms)

    return update


def _is_at_or_after(one: TableVersion, other: TableVersion) -> bool:
    return one.table_id == other.table_id and one.version >= other.version


def _count_update(table: DeadLetterTable, folder: str) -> Callable[[Member | None], Member | None]:
    def update(before: Member | None) -> Member | None:
        return before and replace(
            before, parked=sum(entry.rows for entry in table.list_batches(folder))
        )

    return update


# -- one batch -------------------------------------------------------------------------------


def _apply(
    root: Store,
    dead_letter_table: DeadLetterTable,
    dead_letters: DeadLetterRows,
    overrides: Mapping[str, str],
) -> TableVersion:
    """Commit a dead-letter batch; return the version containing it, committed now or earlier."""
    table = Table(PrefixStore(root, dead_letters.folder))
    head = table.log.try_head()
    _require_same(root, dead_letters, head, table.store.url)
    if head is not None and head.has(dead_letters.transaction):
        return _find_version(table, dead_letters)
    write_options = overridden(dead_letters.options, {**overrides, "path": "/"})
    options = replace(WriteOptions.parse(write_options), path=table.store.url)
    base, envelope = _plan_batch(table, options, dead_letter_table, dead_letters)
    commands = (
        _conform(
            base.schema, batch if kind is DeadLetterKind.COMMANDS else _commands(envelope, batch)
        )
        for kind, batch in dead_letter_table.read(dead_letters)
    )
    late_rows = default_late_rows(options, LateRows.REJECT)
    staged = stage(Snapshot(table.store, base), commands, late_rows=late_rows)
    write_set = WriteSet(
        base=Snapshot(table.store, base),
        staged=(staged,),
        transactions=(dead_letters.transaction,),
        allow_unordered=options.allow_unordered,
        late_rows=late_rows,
    )
    commit = table.commit(write_set, admission=table.admission(options.full_wait_ms))
    if commit is None:
        return _find_version(table, dead_letters)
    return TableVersion(table_id=base.table_id, version=commit.version, token=commit.token)


def _require_same(
    root: Store, dead_letters: DeadLetterRows, head: Manifest | None, url: str
) -> None:
    """Raise if a folder's table is not the group's table."""
    member = GroupTable(root).at().members.get(dead_letters.folder)
    if member is None:
        return
    table_ref = member.place
    if head is None or head.table_id != table_ref.table_id or head.version < table_ref.version:
        actual = "no table" if head is None else str(head.version_ref)
        raise OtherTableError.at(
            url, f"the group's table '{dead_letters.name}'", str(table_ref), actual
        )


def _find_version(table: Table, dead_letters: DeadLetterRows) -> TableVersion:
    """Return the version containing a batch; the head if it is no longer in the log."""
    query_batch = (dead_letters.query, dead_letters.batch)
    with table.log.refresh() as look:
        head = look.head()
        for version in range(head.version, head.since - 1, -1):
            commit = look.commit(version)
            if any(
                (transaction.writer, transaction.number) == query_batch
                for transaction in commit.transactions
            ):
                return TableVersion(table_id=head.table_id, version=version, token=commit.token)
    return head.version_ref


def _plan_batch(
    table: Table,
    options: WriteOptions,
    dead_letter_table: DeadLetterTable,
    dead_letters: DeadLetterRows,
) -> tuple[Manifest, Envelope | None]:
    """Return the base version and the envelope; None as envelope if all chunks are commands."""
    schemas = {
        (kind, batch.schema.serialize().to_pybytes()): batch.schema
        for kind, batch in dead_letter_table.read(dead_letters)
    }
    incoming = [schema for (kind, _), schema in schemas.items() if kind is DeadLetterKind.ROWS]
    command_schemas = [
        schema for (kind, _), schema in schemas.items() if kind is DeadLetterKind.COMMANDS
    ]
    envelope = None
    if incoming:
        rows = (
            batch
            for kind, batch in dead_letter_table.read(dead_letters)
            if kind is DeadLetterKind.ROWS
        )
        table.log.try_head()
        plan = plan_rows_of(table, options, rows, incoming[0])
        base, envelope = plan.base, plan.envelope
    else:
        head = table.log.try_head()
        if head is None and not options.allow_non_empty_path:
            require_free(table.store)
        base = head or _unborn_table(command_schemas)
    for schema in command_schemas:
        base = _widen(table, base, _schema_of(schema), options.except_columns)
    return base, envelope


def _unborn_table(command_schemas: Sequence[pa.Schema]) -> Manifest:
    record = json.loads(command_schemas[0].metadata[TABLE])
    return Table.unborn(TableSchema.from_json(record["schema"]), record["properties"])


def _schema_of(schema: pa.Schema) -> TableSchema:
    return TableSchema.from_json(json.loads(schema.metadata[TABLE])["schema"])


def _widen(
    table: Table, base: Manifest, schema: TableSchema, except_columns: Collection[str]
) -> Manifest:
    """Return a version extended by the commands' columns, except those left out."""
    base_schema = base.schema
    is_alike = schema.keys == base_schema.keys and schema.engine == base_schema.engine
    if not (is_alike and schema.has_order_of(base_schema)):
        raise SchemaError(
            f"rows were parked as commands of a table with the keys {', '.join(schema.keys)}, and "
            f"the table at '{table.store.url}' has other keys, another order or other rules.",
            hint="give the table the rules that it had, or drop the rows ('upsertflow replay "
            "--drop').",
        )
    names = {name.lower() for name in except_columns} - {key.lower() for key in schema.keys}
    remaining = pa.schema([field for field in schema.columns if field.name.lower() not in names])
    try:
        wide = base_schema.accept(remaining, merge=True, orders=schema.order)
        wide = wide.with_unchanged(schema.unchanged, has_moves=schema.has_moves)
    except SchemaError as error:
        name = error.fields.get("left_out")
        if name is not None and name not in schema.keys:
            hint = setting("exceptColumnList", joined_names([*except_columns, name]))
            # Dead-letter rows pass no cast in a query, so the hint for a write does not apply here.
            raise SchemaError(
                error.message,
                hint=f"parked rows come in as they are, and no cast is before them: give {hint} "
                f"to bring them in without '{name}'. Rows to come need a column of another name "
                "at the source.",
                **error.fields,
            ) from error
        raise
    if wide == base_schema:
        return base
    return replace(base, schema=wide) if base.is_unborn else table.alter(wide, upon=base_schema)


def _commands(envelope: Envelope | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    assert envelope is not None
    return envelope.commands(batch)


def _conform(schema: TableSchema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Cast commands to the table's columns and recompute key hashes; keeps a truncate."""
    plain = batch.replace_schema_metadata(None)
    if plain.schema != schema.run:
        # What is left out may have another type; it is null, as what came without it.
        types = {field.name: field.type for field in schema.run}
        fits = [f.name for f in plain.schema if widens(f.type, types.get(f.name, f.type))]
        plain = plain.select(fits)
        part = Rows(schema, [BatchPart(plain)]).gathered(schema.run.names).parts[0]
        assert isinstance(part, BatchPart)
        plain = part.batch.cast(schema.run)
    return with_truncate(rehashed(schema, plain), truncated_at(batch))
