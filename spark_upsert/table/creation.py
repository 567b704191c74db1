"""Table creation: the manifest before version 0, and the check for a free folder.

Reason for the check: docs/adr/0042.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, runtime_checkable

from spark_upsert.core.schema import TableSchema
from spark_upsert.errors import OptionError, UpsertFlowError, setting
from spark_upsert.store import Store
from spark_upsert.store.protocol import new_token
from spark_upsert.table.log.log import Log
from spark_upsert.table.log.manifest import Draft, Kind, Manifest
from spark_upsert.table.log.properties import checked
from spark_upsert.table.run.file import is_run_path
from spark_upsert.table.schema_changes import require_consistent

_DATA = "data"

_HIDDEN = ("_", ".")
"""The first letters of names that are no files of a table."""

_MARKERS = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
"""Folders by which a table of another tool is recognized."""


@runtime_checkable
class _HasFoldersAbove(Protocol):
    """A store that can open the folders above its own, the nearest first."""

    def iter_above(self) -> Iterator[Store]: ...


def unborn_manifest(
    schema: TableSchema, properties: Mapping[str, str] | None, table_id: str | None
) -> Manifest:
    """Return the manifest of a table that is not there yet (`Table.unborn`)."""
    seed = secrets.randbits(64) if table_id is None else int(table_id[:16], 16)
    seeded = replace(schema, hash_seed=seed)
    checked_properties = checked(properties)
    require_consistent(seeded, checked_properties)
    return Manifest.unborn(seeded, checked_properties, table_id=table_id or new_token())


def create(log: Log, unborn: Manifest) -> bool:
    """Make a table without an epoch; False if there is one."""
    draft = Draft(kind=Kind.CREATE, schema=unborn.schema, properties=unborn.properties)
    return log.create(draft, table_id=unborn.table_id) is not None


def require_free(store: Store, *, is_root: bool = False) -> None:
    """Raise unless a new table may be made in a folder.

    Names that begin with ``_`` or ``.`` are passed over, except for those of `_MARKERS`: people
    keep the checkpoints of queries there.
    """
    contents = _format_of(store)
    if contents is None and (names := list(_foreign(store, is_root=is_root))):
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
    """Return which folder above is that of a table of another tool; None if there is none."""
    for above in store.iter_above() if isinstance(store, _HasFoldersAbove) else ():
        # Who may write into a folder need not be allowed to list those above it.
        with suppress(UpsertFlowError, OSError):
            contents = _format_of(above)
            if contents is not None:
                return f"'{above.url}' holds {contents}"
    return None


def _format_of(store: Store) -> str | None:
    """Return the format of a table of another tool in a folder; None if there is none."""
    folders = set(store.folders(""))
    return next((format_name for name, format_name in _MARKERS.items() if name in folders), None)


def _foreign(store: Store, *, is_root: bool) -> Iterator[str]:
    """Yield the names in a folder that are not those of a table."""
    folders = set(store.folders(""))
    names = [*(info.path for info in store.list("")), *(() if is_root else folders - {_DATA})]
    yield from sorted(name for name in names if not name.startswith(_HIDDEN))
    if not is_root and _DATA in folders:
        yield from (f"{_DATA}/{name}" for name in store.folders(_DATA))
        paths = (info.path for info in store.list(_DATA))
        yield from (path for path in paths if not (is_run_path(path) or path.endswith(".now")))
