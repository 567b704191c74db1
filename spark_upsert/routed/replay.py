"""Unpark: apply what is parked to its table, in order, each batch exactly once.

A parked batch becomes a version of its table with the transaction that it would have had there,
and only then it is forgotten. So a crash in between repeats nothing, and neither does an attempt of
the query that was slow: the table has the transaction, or it has not. A query may run meanwhile: as
long as anything is parked for a table, what comes is parked behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_upsert.core.names import joined_names
from spark_upsert.core.schema import TableSchema, widens
from spark_upsert.envelopes.write_plan import usual_late_rows
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
    DeadLetterRows,
    ParkedKind,
    ParkedTable,
    as_parkable,
)
from spark_upsert.routed.group import GroupTable, Member
from spark_upsert.routed.park_staged import TABLE
from spark_upsert.routed.plan import plan_rows_of
from spark_upsert.store import Store
from spark_upsert.store.open import StoreBelow
from spark_upsert.table.creation import require_free
from spark_upsert.table.log.manifest import Manifest, TableVersion
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.run.rows import BatchPart, Rows
from spark_upsert.table.state.snapshot import Snapshot
from spark_upsert.table.table import Table
from spark_upsert.table.write.commands import Envelope, rehashed
from spark_upsert.table.write.stage import stage
from spark_upsert.table.write.truncate import truncated_at, with_truncate
from spark_upsert.table.write.write_set import WriteSet

PASSES_MAX = 1000
"""A query that parks while its rows are applied is behind after a few; more are a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The fate of the parked rows of one table."""

    folder: str
    name: str
    batches: int
    rows: int
    left: int
    """Rows that are parked still: the query has parked them meanwhile."""


def unpark(
    root: Store,
    names: Collection[str] = (),
    *,
    given: Mapping[str, str] | None = None,
    told: Callable[[ReplayResult], None] = lambda _: None,
) -> list[ReplayResult]:
    """Apply what is parked.

    Parameters
    ----------
    root : Store
    names : collection of str
        Of tables, as they are called or by their folders; none: all.
    given : mapping of str to str, optional
        Options of the write that hold instead of those that the rows came with, such as
        ``mergeSchema``; an empty text takes one back.
    told : callable, optional
        Hears of each table when it is done.

    Returns
    -------
    list of Unparked
        By folder. Rows without a table are left.

    Raises
    ------
    OptionError
        Nothing is parked for a name.
    UpsertFlowError
        A table cannot take its rows yet; it says which. The others were tried all the same, unless
        it is the storage that fails.
    """
    table, done = ParkedTable(root), []
    first: UpsertFlowError | None = None
    for folder, name in chosen(table, names).items():
        if folder == NAMELESS:
            continue
        try:
            done.append(_unpark_one(root, table, folder, name, given or {}))
        except StorageError:
            raise
        except Exception as error:
            # Whatever it is, it is about this table, and what is parked for it stays.
            own = as_parkable(error) or error
            if not isinstance(own, UpsertFlowError):
                raise
            own.say_about("table", name)
            first = first or own
            continue
        told(done[-1])
    if first is not None:
        raise first
    return done


def drop(root: Store, names: Collection[str] = (), *, nameless: bool = False) -> list[ReplayResult]:
    """Forget what is parked, without applying it; what others park meanwhile stays.

    Parameters
    ----------
    names : collection of str
        As of `unpark`; but none are none here.
    nameless : bool
        Whether rows without a table are meant, too.
    """
    table = ParkedTable(root)
    folders = chosen(table, names) if names else {}
    folders |= {NAMELESS: ""} if nameless else {}
    done = []
    for folder, name in folders.items():
        batches = table.parked(folder)
        table.remove(batches)
        rows = sum(each.rows for each in batches)
        done.append(ReplayResult(folder=folder, name=name, batches=len(batches), rows=rows, left=0))
        GroupTable(root).note(_with_parked(table, folder), folder)
    return done


def chosen(table: ParkedTable, names: Collection[str]) -> dict[str, str]:
    """Return the folders and names of the tables that some names mean.

    Raises
    ------
    OptionError
        Nothing is parked for a name.
    """
    known = {each.folder: each.name for each in table.parked()}
    if not names:
        return known
    found = {folder: name for folder, name in known.items() if {folder, name} & set(names)}
    missing = sorted(set(names) - {*found, *found.values()})
    if missing:
        raise OptionError(
            f"nothing is parked for '{missing[0]}' below '{table.root.url}'.",
            hint=did_you_mean(missing[0], known.values()) if known else "nothing is parked at all.",
            table=missing[0],
        )
    return found


def _unpark_one(
    root: Store, table: ParkedTable, folder: str, name: str, given: Mapping[str, str]
) -> ReplayResult:
    batches = rows = 0
    for _ in range(PASSES_MAX):
        waiting = table.parked(folder)
        if not waiting:
            break
        places = [_apply(root, table, each, given) for each in waiting]
        # Before it is forgotten: a reader of all tables at one batch learns of it from the group.
        left = sum(each.rows for each in table.parked(folder)) - sum(e.rows for e in waiting)
        GroupTable(root).note(_with_batch(waiting[-1], places[-1], max(0, left)), folder)
        table.remove(waiting)
        batches, rows = batches + len(waiting), rows + sum(each.rows for each in waiting)
    left = sum(each.rows for each in table.parked(folder))
    return ReplayResult(folder=folder, name=name, batches=batches, rows=rows, left=left)


def _with_batch(
    parked: DeadLetterRows, place: TableVersion, left: int
) -> Callable[[Member | None], Member]:
    def told(before: Member | None) -> Member:
        if before is not None and _is_ahead(before.place, place):
            return replace(before, parked=left)
        found = Member(
            folder=parked.folder,
            name=parked.name,
            values=tuple(value or "" for value in parked.values),
            place=place,
            writer=parked.query,
            batch=parked.batch,
            rows=parked.rows,
            parked=left,
            committed_ms=parked.parked_ms,
        )
        if before is None:
            return found
        return replace(found, debt=before.debt, debt_since_ms=before.debt_since_ms)

    return told


def _is_ahead(one: TableVersion, other: TableVersion) -> bool:
    return one.table_id == other.table_id and one.version >= other.version


def _with_parked(table: ParkedTable, folder: str) -> Callable[[Member | None], Member | None]:
    def told(before: Member | None) -> Member | None:
        return before and replace(before, parked=sum(each.rows for each in table.parked(folder)))

    return told


# -- one batch -------------------------------------------------------------------------------


def _apply(
    root: Store, parked_table: ParkedTable, parked: DeadLetterRows, given: Mapping[str, str]
) -> TableVersion:
    """Return the version of a table that has a parked batch, made by this call or before."""
    table = Table(StoreBelow(root, parked.folder))
    head = table.log.try_head()
    _require_same(root, parked, head, table.store.url)
    if head is not None and head.has(parked.transaction):
        return _place_of(table, parked)
    told = overridden(parked.options, {**given, "path": "/"})
    options = replace(WriteOptions.parse(told), path=table.store.url)
    base, envelope = _planned(table, options, parked_table, parked)
    commands = (
        _conformed(
            base.schema, batch if kind is ParkedKind.COMMANDS else _commands(envelope, batch)
        )
        for kind, batch in parked_table.read(parked)
    )
    late_rows = usual_late_rows(options, LateRows.REJECT)
    staged = stage(Snapshot(table.store, base), commands, late_rows=late_rows)
    write_set = WriteSet(
        base=Snapshot(table.store, base),
        staged=(staged,),
        transactions=(parked.transaction,),
        allow_unordered=options.allow_unordered,
        late_rows=late_rows,
    )
    commit = table.commit(write_set, admission=table.admission(options.full_wait_ms))
    if commit is None:
        return _place_of(table, parked)
    return TableVersion(table_id=base.table_id, version=commit.version, token=commit.token)


def _require_same(root: Store, parked: DeadLetterRows, head: Manifest | None, url: str) -> None:
    """Refuse a table that is not the one of the group."""
    member = GroupTable(root).at().members.get(parked.folder)
    if member is None:
        return
    place = member.place
    if head is None or head.table_id != place.table_id or head.version < place.version:
        found = "no table" if head is None else str(head.place)
        raise OtherTableError.at(url, f"the group's table '{parked.name}'", str(place), found)


def _place_of(table: Table, parked: DeadLetterRows) -> TableVersion:
    """Return the version that has a batch; the newest, if the log does not tell any more."""
    own = (parked.query, parked.batch)
    with table.log.look() as look:
        head = look.head()
        for version in range(head.version, head.since - 1, -1):
            commit = look.commit(version)
            if any((each.writer, each.number) == own for each in commit.transactions):
                return TableVersion(table_id=head.table_id, version=version, token=commit.token)
    return head.place


def _planned(
    table: Table, options: WriteOptions, parked_table: ParkedTable, parked: DeadLetterRows
) -> tuple[Manifest, Envelope | None]:
    """Return the version upon which a batch is staged, and what its rows mean."""
    schemas = {
        (kind, batch.schema.serialize().to_pybytes()): batch.schema
        for kind, batch in parked_table.read(parked)
    }
    incoming = [schema for (kind, _), schema in schemas.items() if kind is ParkedKind.ROWS]
    made_for = [schema for (kind, _), schema in schemas.items() if kind is ParkedKind.COMMANDS]
    envelope = None
    if incoming:
        rows = (batch for kind, batch in parked_table.read(parked) if kind is ParkedKind.ROWS)
        table.log.try_head()
        plan = plan_rows_of(table, options, rows, incoming[0])
        base, envelope = plan.base, plan.envelope
    else:
        head = table.log.try_head()
        if head is None and not options.allow_non_empty_path:
            require_free(table.store)
        base = head or _unborn(made_for)
    for schema in made_for:
        base = _widened(table, base, _schema_of(schema), options.except_columns)
    return base, envelope


def _unborn(made_for: Sequence[pa.Schema]) -> Manifest:
    record = json.loads(made_for[0].metadata[TABLE])
    return Table.unborn(TableSchema.from_json(record["schema"]), record["properties"])


def _schema_of(schema: pa.Schema) -> TableSchema:
    return TableSchema.from_json(json.loads(schema.metadata[TABLE])["schema"])


def _widened(
    table: Table, base: Manifest, schema: TableSchema, left_out: Collection[str]
) -> Manifest:
    """Return a version with the columns of commands that were made for the table, but for some."""
    own = base.schema
    is_alike = schema.keys == own.keys and schema.engine == own.engine
    if not (is_alike and schema.has_order_of(own)):
        raise SchemaError(
            f"rows were parked as commands of a table with the keys {', '.join(schema.keys)}, and "
            f"the table at '{table.store.url}' has other keys, another order or other rules.",
            hint="give the table the rules that it had, or drop the rows ('upsertflow unpark "
            "--drop').",
        )
    names = {name.lower() for name in left_out} - {key.lower() for key in schema.keys}
    kept = pa.schema([field for field in schema.columns if field.name.lower() not in names])
    try:
        wide = own.accept(kept, merge=True, orders=schema.order)
    except SchemaError as error:
        name = error.fields.get("left_out")
        if name is not None and name not in schema.keys:
            given = setting("exceptColumnList", joined_names([*left_out, name]))
            # Parked rows pass no cast of a query, so that the hint of a write leads nowhere here.
            raise SchemaError(
                error.message,
                hint=f"parked rows come in as they are, and no cast is before them: give {given} "
                f"to bring them in without '{name}'. Rows to come need a column of another name "
                "at the source.",
                **error.fields,
            ) from error
        raise
    if wide == own:
        return base
    return replace(base, schema=wide) if base.is_unborn else table.alter(wide, upon=own)


def _commands(envelope: Envelope | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    assert envelope is not None
    return envelope.commands(batch)


def _conformed(schema: TableSchema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return commands in the columns of a table, and by its hashes; a truncate stays among them."""
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
