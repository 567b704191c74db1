"""A follower's durable state (`FollowerState`): numbered records below the root, the newest counts.

A record is put only if it is absent. So of two followers one fails before it writes any table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from spark_upsert.core.lsn import format_lsn, parse_lsn
from spark_upsert.errors import ContentionError
from spark_upsert.postgres.catalog import SourceTable
from spark_upsert.postgres.copies import Visibility
from spark_upsert.postgres.messages import LoggedColumn
from spark_upsert.store import Store
from spark_upsert.store.records import (
    FORMAT_VERSION,
    checked_record,
    optional,
    read_record,
    text,
    whole,
)

FOLDER = "_follow"
"""Below the root; no table's folder begins with an underscore."""

_CLAIMS = 100
"""How often a claim is tried against a follower that writes small batches."""

_PREFIX = f"{FOLDER}/postgres-"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedTable:
    """A published table, as it was when its rows were copied or its last change was accepted."""

    source: SourceTable
    visibility: Visibility
    """The transactions that the copy contains, and that the stream repeats."""
    lsn: int
    """From this position on, the table has what the source has, and no transaction is repeated."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        copied = {"visibility": str(self.visibility), "lsn": format_lsn(self.lsn)}
        return {**self.description, **copied}

    @property
    def description(self) -> dict[str, Any]:
        """The JSON form without the copy."""
        source = self.source
        return {
            "oid": source.oid,
            "schema": source.schema,
            "name": source.name,
            "target": list(source.target),
            "keys": list(source.keys),
            "columns": [
                [number, c.name, c.type_oid, c.modifier]
                for number, c in zip(source.numbers, source.columns, strict=True)
            ],
            "file": source.file,
            "filter": source.row_filter,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> CopiedTable:
        """Convert the JSON form."""
        keys = tuple(map(text, record["keys"]))
        schema, name = map(text, record["target"])
        columns = tuple(
            LoggedColumn(text(column), whole(oid), int(modifier), column in keys)
            for _, column, oid, modifier in record["columns"]
        )
        return cls(
            source=SourceTable(
                oid=whole(record["oid"]),
                schema=text(record["schema"]),
                name=text(record["name"]),
                keys=keys,
                columns=columns,
                numbers=tuple(whole(number) for number, *_ in record["columns"]),
                page_count=0,
                row_filter=optional(text, record["filter"]),
                file=whole(record["file"]),
                filled=(),
                folded_keys=(),
                target=(schema, name),
            ),
            visibility=Visibility.parse(record["visibility"]),
            lsn=parse_lsn(record["lsn"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerState:
    """The source, the batch planned last, and the copies.

    It is written before the first table of a batch is: so a restart repeats exactly this batch.
    Whether the batch is complete, the group table tells.
    """

    system: str
    """The database cluster's identifier."""
    database: str
    slot: str
    publication: str
    start: int
    """The position from which the slot has all transactions; 0 while the slot is created."""
    number: int = -1
    """The batch planned last; -1 before the first."""
    lower: int = 0
    upper: int = 0
    """The batch has the transactions (lower, upper]; a batch of copies has none."""
    copying: tuple[int, ...] = ()
    """OIDs of the tables that the batch copies."""
    tables: Mapping[int, CopiedTable] = field(default_factory=dict)
    """Copied tables by OID, with those of the batch."""
    released: int = 0
    """The last position confirmed while nothing was to be read: after ``upper``, if at all."""
    session: str = ""
    """A token of the process that put the record, which makes it unlike any other's."""
    record: int = -1
    """The record's number; -1 for a state that was never put."""

    @property
    def writer(self) -> str:
        """The query ID under which the follower writes."""
        return f"postgres:{self.system}:{self.database}:{self.slot}"

    @property
    def joined(self) -> int:
        """The position from which all tables show one state of the source."""
        return max((table.lsn for table in self.tables.values()), default=self.start)

    @property
    def digest(self) -> str:
        """A digest of the accepted tables, 16 hexadecimal digits; empty until all have joined."""
        if not self.tables or self.upper < self.joined:
            return ""
        tables = [self.tables[oid].description for oid in sorted(self.tables)]
        return hashlib.blake2b(json.dumps(tables).encode(), digest_size=8).hexdigest()

    @property
    def copy_place(self) -> tuple[int, int]:
        """The order of copied rows: after earlier batches and copies, before later transactions.

        A commit record begins at or after the end of the one before, and is longer than a byte.
        """
        return self.upper - 1, 2 * self.number + 1

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "format": FORMAT_VERSION,
            "system": self.system,
            "database": self.database,
            "slot": self.slot,
            "publication": self.publication,
            "start": format_lsn(self.start),
            "number": self.number,
            "lower": format_lsn(self.lower),
            "upper": format_lsn(self.upper),
            "copying": list(self.copying),
            "tables": [table.to_json() for table in self.tables.values()],
            "released": format_lsn(self.released),
            "session": self.session,
            "record": self.record,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> FollowerState:
        """Convert the JSON form."""
        tables = [CopiedTable.from_json(table) for table in record["tables"]]
        return cls(
            system=text(record["system"]),
            database=text(record["database"]),
            slot=text(record["slot"]),
            publication=text(record["publication"]),
            start=parse_lsn(record["start"]),
            number=whole(record["number"], least=-1),
            lower=parse_lsn(record["lower"]),
            upper=parse_lsn(record["upper"]),
            copying=tuple(map(whole, record["copying"])),
            tables={table.source.oid: table for table in tables},
            released=parse_lsn(record["released"]),
            session=text(record["session"]),
            record=whole(record["record"]),
        )

    def put(self, root: Store) -> FollowerState:
        """Write the state durably as the record after its own; return it with its number.

        Raises `ContentionError` if another follower has put a state meanwhile.
        """
        state = replace(self, record=self.record + 1)
        path = f"{_PREFIX}{state.record:020}.json"
        record = checked_record(path, state, state.to_json(), state.from_json)
        if not state.record:
            root.prepare(FOLDER)
        is_put = record.put_if_absent(root)
        paths = _paths(root)
        # A process that slept may put a number that was removed already.
        if not is_put or paths[-1] != path:
            raise ContentionError(
                f"another follower writes the tables below '{root.url}', and has the slot "
                f"'{self.slot}'.",
                hint="run one follower for a root.",
            )
        for earlier in paths[:-1]:
            root.delete(earlier)
        return state


def read_state(root: Store) -> FollowerState | None:
    """Read a root's newest state; None if nothing was ever followed there."""
    while paths := _paths(root):
        state = read_record(root, paths[-1], FollowerState.from_json)
        if state is not None:  # Else a later one has replaced it.
            return state
    return None


def claim_state(root: Store, session: str) -> None:
    """Let the follower that writes below a root fail at its next record."""
    for _ in range(_CLAIMS):
        state = read_state(root)
        if state is None:
            return
        with suppress(ContentionError):  # It has put a record meanwhile.
            replace(state, session=session).put(root)
            return


def _paths(root: Store) -> list[str]:
    return [info.path for info in root.list(FOLDER) if info.path.startswith(_PREFIX)]
