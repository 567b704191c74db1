"""The driver's plan of a routed write (`plan_routed`), from the group; tasks plan their tables."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_upsert.core.merge_engines import Engine
from spark_upsert.core.schema import ErrorPolicy, TableSchema
from spark_upsert.core.threads import map_in_order
from spark_upsert.envelopes.inferred_schema import infer_options
from spark_upsert.envelopes.write_plan import WritePlan, plan_table_write
from spark_upsert.errors import OptionError, OtherTableError, SchemaError, setting
from spark_upsert.options.routed import RoutedOptions
from spark_upsert.options.write import WriteOptions
from spark_upsert.routed.dead_letter import NAMELESS, DeadLetterTable
from spark_upsert.routed.group import CompactionQueue, GroupTable, TableGroup
from spark_upsert.routed.router import Router
from spark_upsert.store import Store
from spark_upsert.store.open import PrefixStore, open_store
from spark_upsert.store.protocol import new_token
from spark_upsert.table.log.manifest import Manifest, TableVersion, Transaction
from spark_upsert.table.log.properties import LateRows
from spark_upsert.table.schema_changes import require_free
from spark_upsert.table.table import Table

_CHECKS_AT_ONCE = 16
"""Tables outside the group checked in parallel."""


@dataclass(frozen=True, kw_only=True)
class RoutedPlan:
    """A planned write into the tables below a root. Pickled to tasks."""

    options: RoutedOptions = field(repr=False)
    incoming: pa.Schema
    """Columns in the incoming rows."""
    overwrite: bool = False
    late_rows: LateRows = LateRows.REJECT
    """Late-row policy if no option sets it."""
    token: str
    """Attempt token: all its tasks create the same new table."""
    places: Mapping[str, TableVersion]
    """Group tables' versions after the last complete batch, by folder."""
    group_version: int = -1
    """Group table version, -1 if it does not exist; orders the batches."""
    dead_letter_folders: frozenset[str] = frozenset()
    """Folders with dead-letter rows; new rows are appended there."""
    newest_complete: Transaction | None = None
    """Newest complete batch; None if there is none, or if it has no number."""
    compaction_folders: tuple[Sequence[str], ...] = ()
    """Each task's folders with due compactions, by task index."""

    @property
    def terms(self) -> str:
        """Digest over options and columns shared by all tables: 32 hexadecimal digits."""
        columns = [(field.name, str(field.type)) for field in self.incoming]
        text = f"{self.options.digest} {columns!r}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def is_complete(self, transaction: Transaction | None) -> bool:
        """Return whether all tables already have a batch."""
        if (
            transaction is None
            or self.newest_complete is None
            or self.newest_complete.writer != transaction.writer
        ):
            return False
        return transaction.number <= self.newest_complete.number

    def batch_transaction(self, transaction: Transaction | None) -> Transaction:
        """Return the transaction for dead-letter rows; without one, name it by this attempt."""
        return transaction or Transaction(writer=f"write:{self.token}", number=0)

    def new_table_id(self, folder: str) -> str:
        """Return the table ID for a new table in this attempt: 32 hexadecimal digits."""
        return hashlib.blake2b(f"{self.token} {folder}".encode(), digest_size=16).hexdigest()

    def require_same(self, folder: str, name: str, head: Manifest | None, url: str) -> None:
        """Raise if a folder's table is not the group's table (`other_table`)."""
        require_same(self.places, folder, name, head, url)


def plan_routed(
    options: RoutedOptions,
    incoming: pa.Schema,
    *,
    root: Store | None = None,
    overwrite: bool = False,
    late_rows: LateRows = LateRows.REJECT,
) -> RoutedPlan:
    """Validate and plan a routed write, as far as possible without its rows."""
    Router(options.template, incoming)
    group_table = GroupTable(root_of(options) if root is None else root)
    group = group_table.at()
    require_template(group, options.template.relative, group_table.root.url)
    if group.version < 0 and not options.allows_non_empty_root:
        require_free(group_table.root, is_root=True)
    return RoutedPlan(
        options=options,
        incoming=incoming,
        overwrite=overwrite,
        late_rows=late_rows,
        token=new_token(),
        places=group.members.places,
        group_version=group.version,
        dead_letter_folders=frozenset(DeadLetterTable(group_table.root).counts()) - {NAMELESS},
        newest_complete=_newest_complete(group),
        compaction_folders=() if overwrite else CompactionQueue.of(group).shares,
    )


def root_of(options: RoutedOptions) -> Store:
    """Open a routed write's root."""
    return open_store(options.template.root, options.storage)


def table_below(root: Store, folder: str) -> Table:
    """Return the table in a folder below a root; it need not exist."""
    return Table(PrefixStore(root, folder))


def plan_rows_of(
    table: Table,
    options: WriteOptions,
    rows: Iterable[pa.RecordBatch],
    incoming: pa.Schema,
    *,
    new_table_id: str | None = None,
) -> WritePlan:
    """Plan a write of available rows; their payloads may define the columns (`infer_options`)."""
    head = table.log.cached_head
    schema = None if head is None else head.schema
    try:
        inferred = infer_options(options, rows, schema)
        return plan_table_write(table, inferred, incoming, new_table_id=new_table_id, head=head)
    except SchemaError as error:
        if options.envelope.finds and options.on_error is None:
            _advise_quarantine(error, schema)
        raise


def _advise_quarantine(error: SchemaError, schema: TableSchema | None) -> None:
    """Add a hint: a quarantine would separate payloads with contradicting schemas."""
    if schema is None or "left_out" not in error.fields:
        return
    if schema.on_error is ErrorPolicy.FAIL and schema.engine.kind is Engine.DEDUPLICATE:
        error.advise(
            f"With {setting('onError', 'quarantine')} payloads whose schema contradicts the table "
            "are kept apart, and the others come in."
        )


def _newest_complete(group: TableGroup) -> Transaction | None:
    batch = group.batch
    if batch is None or batch.number is None:
        return None
    return Transaction(writer=batch.writer, number=batch.number)


def require_template(group: TableGroup, template: str, url: str) -> None:
    """Raise if a template differs from the one used to name the group's tables."""
    if group.batch is None or group.batch.template == template:
        return
    current = group.batch.template
    raise OptionError(
        f"option 'path' names the tables below '{url}' by '{template}', but they have their names "
        f"by '{current}'. Nothing was committed.",
        hint=f"go on with the path that ends in '{current}', or give another root and, "
        "to a stream, a new checkpointLocation.",
        option="path",
        value=template,
        own=current,
    )


def require_room(
    options: RoutedOptions, root: Store, known: Mapping[str, object], wanted: Mapping[str, str]
) -> None:
    """Raise if new tables are not allowed, or too many; existing tables may join."""
    new = {folder: name for folder, name in sorted(wanted.items()) if folder not in known}
    if not options.create_tables:
        _require_existing(root, new, len(known))
    if new and len(known) + len(new) > options.tables_max:
        name, count = next(iter(new.values())), len(known) + len(new)
        raise OptionError(
            f"with the table '{name}'{_and_more(new)} there would be {count} tables below "
            f"'{root.url}', and no more than {options.tables_max} may be.",
            hint=f"give {setting('tablesMax', str(max(count, 2 * options.tables_max)))}, if the "
            "values are right and so many tables are meant; else check the columns of the path.",
            option="tablesMax",
            table=name,
        )


def _require_existing(root: Store, new: Mapping[str, str], known: int) -> None:
    heads = map_in_order(
        lambda folder: table_below(root, folder).log.try_head(), new, min(_CHECKS_AT_ONCE, len(new))
    )
    missing = [name for name, head in zip(new.values(), heads, strict=True) if head is None]
    if missing:
        are = "which are" if len(missing) > 1 else "which is"
        raise OptionError(
            f"there are rows for the table '{missing[0]}'{_and_more(missing)}, {are} not there, "
            f"and with createTables=false none may be made. Tables below '{root.url}' "
            f"that the stream has: {known}.",
            hint="make it in its folder ('Table.create'), drop that option, or filter such rows "
            "out.",
            option="createTables",
            table=missing[0],
        )


def _and_more(names: Collection[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def require_same(
    places: Mapping[str, TableVersion], folder: str, name: str, head: Manifest | None, url: str
) -> None:
    """Raise if a folder's table is not the group's table (`other_table`)."""
    refusal = other_table(places, folder, name, head, url)
    if refusal is not None:
        raise refusal


def other_table(
    places: Mapping[str, TableVersion], folder: str, name: str, head: Manifest | None, url: str
) -> OtherTableError | None:
    """Return an error if a folder's table is not the group's table, else None."""
    table_ref = places.get(folder)
    if table_ref is None:
        return _find_folded_name(places, folder, name, head, url)
    if (
        head is not None
        and head.table_id == table_ref.table_id
        and head.version >= table_ref.version
    ):
        return None
    actual = "no table" if head is None else str(head.version_ref)
    return OtherTableError.at(url, f"the group's table '{name}'", str(table_ref), actual)


def _find_folded_name(
    places: Mapping[str, TableVersion], folder: str, name: str, head: Manifest | None, url: str
) -> OtherTableError | None:
    """Return the error for a folder equated by the storage with another one (case folding)."""
    if head is None:
        return None
    ids = {table_ref.table_id: folder_name for folder_name, table_ref in places.items()}
    other_folder = ids.get(head.table_id)
    if other_folder is None:
        return None
    return OtherTableError(
        f"the values '{name}' lead to '{url}', where the table of '{other_folder}' lies: to this "
        "storage the two names are one. Nothing was committed.",
        hint="let the values differ in more than upper and lower case, or use a storage that tells "
        "them apart.",
        path=url,
    )
