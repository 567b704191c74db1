"""Schema changes: new and wider columns, properties, dropped columns (docs/adr/0106).

No change rewrites a run. A dropped name stays reserved in the property `DROPPED`, because older
runs still hold its values.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, runtime_checkable

import pyarrow as pa

from spark_upsert.core.names import find_columns
from spark_upsert.core.schema import OnUnknown, TableSchema
from spark_upsert.core.source_positions import BINLOG_NAMES, require_extended
from spark_upsert.errors import OptionError, SchemaError, UpsertFlowError, setting
from spark_upsert.store import Store
from spark_upsert.store.protocol import new_token
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import KEPT_PROPERTIES, Draft, Kind, Manifest
from spark_upsert.table.log.properties import DROPPED, ROW_TTL, checked, indexed_columns
from spark_upsert.table.published import require_mirrored
from spark_upsert.table.row_ttl import RowTtl
from spark_upsert.table.run.file import is_run_path


def require_consistent(schema: TableSchema, properties: Mapping[str, str]) -> None:
    """Raise if a table with this schema cannot have these properties."""
    indexed_columns(schema, properties)
    require_mirrored(schema, properties)
    if ROW_TTL in properties:
        RowTtl.of(schema, properties)


def alter(
    log: Log, schema: TableSchema, properties: Mapping[str, str], upon: TableSchema | None
) -> Manifest:
    """Change a table's schema and set checked properties (`Table.alter`)."""

    def propose(head: Manifest) -> Draft | None:
        changed = {**head.properties, **properties}
        require_extended(head.properties.get(BINLOG_NAMES), properties.get(BINLOG_NAMES))
        changes = schema if upon is None else schema.rebased(upon, head.schema)
        if DROPPED in changed:
            require_not_dropped(head, changes.columns)
        accepted = head.schema.accept(changes.columns, merge=True, orders=changes.order)
        on_error = head.schema.on_error if head.schema.has_quarantine else schema.on_error
        on_unknown = head.schema.on_unknown
        if upon is None or schema.on_unknown is not upon.on_unknown:
            _require_policy_for_unknown(head, schema.on_unknown)
            on_unknown = schema.on_unknown
        result = replace(
            changes,
            columns=accepted.columns,
            order=accepted.order,
            has_wide_order=accepted.has_wide_order,
            on_error=on_error,
            on_unknown=on_unknown,
            hash_seed=head.schema.hash_seed,
            hash_prefix=head.schema.hash_prefix,
        )
        require_consistent(result, changed)
        if head.schema == result and changed == head.properties:
            return None
        return Draft(kind=Kind.ALTER, schema=result, properties=changed, live_rows=head.live_rows)

    log.append(propose)
    return log.head()


def _require_policy_for_unknown(head: Manifest, policy: OnUnknown) -> None:
    """Raise unless a table can change to a policy for unknown values.

    A table with the policy `OnUnknown.FAIL` has no unknown values, so it can change to any other.
    """
    own = head.schema.on_unknown
    if policy is own or own is OnUnknown.FAIL:
        return
    if policy is not OnUnknown.FAIL or head.unknown_rows:
        raise OptionError.fixed(
            "onUnknown",
            policy.value,
            own.value,
            why="it decides which rows the table shows (only 'fail' may become another, and only "
            "while no value is unknown another may become 'fail')",
        )


def drop_columns(log: Log, names: Sequence[str]) -> Manifest:
    """Drop a table's columns (`Table.drop_columns`)."""

    def propose(head: Manifest) -> Draft:
        schema = head.schema
        gone = list(find_columns(names, schema.columns.names, role="column to drop"))
        for name in gone:
            _require_droppable(head, name)
        left = pa.schema([field for field in schema.columns if field.name not in gone])
        new_schema = replace(schema, columns=left)
        require_consistent(new_schema, head.properties)
        return Draft(
            kind=Kind.ALTER,
            schema=new_schema,
            properties=with_dropped_names(head.properties, gone),
            live_rows=head.live_rows,
        )

    if names:
        log.append(propose)
    return log.head()


def dropped_names(properties: Mapping[str, str]) -> frozenset[str]:
    """Return the dropped columns' names, in lower case."""
    return frozenset(json.loads(properties.get(DROPPED, "[]")))


def with_dropped_names(properties: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return the properties with further dropped columns."""
    dropped = {*dropped_names(properties), *(name.lower() for name in names)}
    return {**properties, DROPPED: json.dumps(sorted(dropped))}


def require_not_dropped(head: Manifest, columns: pa.Schema) -> None:
    """Refuse new columns with a dropped column's name."""
    remaining_names = {name.lower() for name in head.schema.columns.names}
    dropped = dropped_names(head.properties) - remaining_names
    for name in columns.names:
        if name.lower() in dropped:
            raise SchemaError(
                f"a column '{name}' was dropped from the table, and older files still hold its "
                "values, which a column of the same name would show.",
                hint="leave it out of the rows, or write it under another name.",
                column=name,
                left_out=name,
            )


def _require_droppable(head: Manifest, name: str) -> None:
    reason = _reason_to_keep(head, name)
    if reason is not None:
        raise SchemaError(
            f"the column '{name}' cannot be dropped: {reason}.",
            hint="keep it, or write what is wanted of the table into a new one "
            "(read, leave the column out, write).",
            column=name,
        )


def _reason_to_keep(head: Manifest, name: str) -> str | None:
    """Return why a table needs a column; None if the column may be dropped."""
    schema: TableSchema = head.schema
    if any(property_name in head.properties for property_name in KEPT_PROPERTIES):
        return "the table keeps a view or a history, which says which columns it has"
    if name in schema.keys:
        return "it is a part of the key"
    if name in (field.name for field in schema.order):
        return "it orders the rows (sequenceBy)"
    if name == schema.error_column:
        return "it tells the errors of rows (errorColumn)"
    if schema.engine.folds or schema.engine.multiplicity is not None:
        return f"rows are folded column by column (mergeEngine={schema.engine.kind.value})"
    if len(schema.columns) == 1:
        return "the table has no other"
    return None


_DATA = "data"

_HIDDEN = ("_", ".")
"""First letters of names ignored by `require_free`."""

_MARKERS = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
"""Folders identifying another tool's table."""


@runtime_checkable
class _HasFoldersAbove(Protocol):
    """A store able to open its parent folders, the nearest first."""

    def iter_above(self) -> Iterator[Store]: ...


def unborn_manifest(
    schema: TableSchema, properties: Mapping[str, str] | None, table_id: str | None
) -> Manifest:
    """Return an uncreated table's manifest (`Table.unborn`)."""
    seed = secrets.randbits(64) if table_id is None else int(table_id[:16], 16)
    seeded = replace(schema, hash_seed=schema.hash_seed or seed)
    checked_properties = checked(properties)
    require_consistent(seeded, checked_properties)
    return Manifest.unborn(seeded, checked_properties, table_id=table_id or new_token())


def create(log: Log, unborn: Manifest) -> bool:
    """Create a table without an epoch; return False if it exists."""
    draft = Draft(kind=Kind.CREATE, schema=unborn.schema, properties=unborn.properties)
    return log.create(draft, table_id=unborn.table_id) is not None


def require_free(store: Store, *, is_root: bool = False) -> None:
    """Raise unless a new table may be created in a folder.

    Names beginning with ``_`` or ``.`` are ignored, except those in `_MARKERS`: users keep query
    checkpoints there.
    """
    contents = _format_of(store)
    if contents is None and (names := list(_foreign_names(store, is_root=is_root))):
        more = f" and {len(names) - 1} further files or folders" if len(names) > 1 else ""
        contents = f"'{names[0]}'{more}"
    contents = format_above(store) if contents is None else f"it holds {contents}"
    if contents is not None:
        raise OptionError(
            f"a table is to be made in '{store.url}', but {contents}. Nothing was written.",
            hint="choose an empty folder. 'Table.create' and a write also take "
            f"{setting('allowNonEmptyPath', 'true')}, for a folder where no other tool removes "
            "files.",
            option="path",
        )


def format_above(store: Store) -> str | None:
    """Return which parent folder holds another tool's table; None if there is none."""
    for above in store.iter_above() if isinstance(store, _HasFoldersAbove) else ():
        # A writer may lack the permission to list parent folders.
        with suppress(UpsertFlowError, OSError):
            contents = _format_of(above)
            if contents is not None:
                return f"'{above.url}' holds {contents}"
    return None


def _format_of(store: Store) -> str | None:
    """Return the format of another tool's table in a folder; None if there is none."""
    folders = set(store.folders(""))
    return next((format_name for name, format_name in _MARKERS.items() if name in folders), None)


def _foreign_names(store: Store, *, is_root: bool) -> Iterator[str]:
    """Yield a folder's names that do not belong to a table."""
    folders = set(store.folders(""))
    names = [*(info.path for info in store.list("")), *(() if is_root else folders - {_DATA})]
    yield from sorted(name for name in names if not name.startswith(_HIDDEN))
    if not is_root and _DATA in folders:
        yield from (f"{_DATA}/{name}" for name in store.folders(_DATA))
        paths = (info.path for info in store.list(_DATA))
        yield from (path for path in paths if not (is_run_path(path) or path.endswith(".now")))
