"""A database's published tables, as its catalog describes them (`Catalog`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.postgres.messages import LoggedColumn, LoggedTable, identity_of
from spark_upsert.postgres.types import TypeNames

_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relreplident, c.relfilenode, p.attnames, p.rowfilter,
       coalesce(k.names, '{}'), coalesce(i.names, '{}'), greatest(c.relpages, 0),
       coalesce(rn.nspname, n.nspname), coalesce(r.relname, c.relname)
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
LEFT JOIN pg_class r ON c.relispartition AND r.oid = pg_partition_root(c.oid)
LEFT JOIN pg_namespace rn ON rn.oid = r.relnamespace
LEFT JOIN LATERAL (
    SELECT array_agg(a.attname ORDER BY x.at) AS names FROM pg_index ix
    CROSS JOIN LATERAL unnest(ix.indkey) WITH ORDINALITY x (attnum, at)
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = x.attnum
    WHERE ix.indrelid = c.oid AND ix.indisprimary
) k ON true
LEFT JOIN LATERAL (
    SELECT array_agg(a.attname ORDER BY x.at) AS names FROM pg_index ix
    CROSS JOIN LATERAL unnest(ix.indkey) WITH ORDINALITY x (attnum, at)
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = x.attnum
    WHERE ix.indrelid = c.oid AND ix.indisreplident AND x.at <= ix.indnkeyatts
) i ON true
WHERE p.pubname = %s
ORDER BY n.nspname, c.relname
"""

_COLUMNS = """
SELECT a.attrelid, a.attname, a.atttypid, a.atttypmod, a.attnum, a.atthasmissing,
       t.typname = 'citext' OR NOT coalesce(c.collisdeterministic, true)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum
"""

_TYPES = """
WITH RECURSIVE base (oid, target) AS (
    SELECT oid, oid FROM pg_type WHERE oid = ANY (%s)
    UNION ALL
    SELECT base.oid, t.typbasetype FROM base JOIN pg_type t ON t.oid = base.target
    WHERE t.typtype = 'd'
)
SELECT base.oid, CASE n.nspname WHEN 'pg_catalog' THEN '' ELSE n.nspname END, t.typname
FROM base JOIN pg_type t ON t.oid = base.target JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE t.typtype <> 'd'
"""

_FIRST_OF_USERS = 16_384
"""OIDs below are built in."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A published table."""

    oid: int
    schema: str
    name: str
    keys: tuple[str, ...]
    """The columns that identify a row; empty if nothing does."""
    columns: tuple[LoggedColumn, ...]
    numbers: tuple[int, ...]
    """Each column's number, which a renamed column keeps and no other column gets."""
    page_count: int = field(compare=False)
    """Size by the last statistics, in pages of 8 KiB."""
    row_filter: str | None
    file: int
    """Its file in the server, which a truncate, a rewrite and a vacuum replace."""
    filled: tuple[str, ...] = field(compare=False)
    """Columns added with a value for the rows that existed, which the log does not show."""
    folded_keys: tuple[str, ...] = field(compare=False)
    """Key columns in which texts with different characters are equal, such as ``citext``."""
    target: tuple[str, str]
    """Schema and name of our table: for a partition, of the partitioned table at the top."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def is_partition(self) -> bool:
        """Whether its rows belong to a partitioned table."""
        return self.target != (self.schema, self.name)

    @property
    def problem(self) -> str | None:
        """Why the table cannot be followed; None if it can."""
        if not self.keys:
            return "it has no primary key"
        if self.folded_keys:
            return f"texts of the key '{self.folded_keys[0]}' that differ in case may be equal"
        return None


@dataclass(frozen=True)
class Catalog:
    """The tables of a publication."""

    tables: tuple[SourceTable, ...]
    type_names: TypeNames

    @cached_property
    def by_oid(self) -> Mapping[int, SourceTable]:
        """Tables by OID."""
        return {table.oid: table for table in self.tables}

    def keys_of(self, relation: LoggedTable) -> tuple[str, ...]:
        """Return a table's key columns, for the decoder: the log does not name them with FULL."""
        table = self.by_oid.get(relation.oid)
        return identity_of(relation) if table is None else table.keys

    def require_usable(self) -> None:
        """Raise `SchemaError` if a table cannot be followed."""
        for table in self.tables:
            if table.problem is not None:
                raise SchemaError(
                    f"table '{table}' of the source cannot be followed: {table.problem}.",
                    hint="give it a primary key of numbers, UUIDs or texts that compare by their "
                    "characters, or remove it from the publication.",
                    table=str(table),
                )


def read_catalog(connection: Any, publication: str) -> Catalog:
    """Read the published tables."""
    rows = connection.execute(_TABLES, [publication]).fetchall()
    columns: dict[int, list[tuple[Any, ...]]] = {}
    for row in connection.execute(_COLUMNS, [[row[0] for row in rows]]).fetchall():
        columns.setdefault(row[0], []).append(row[1:])
    types = {row[1] for described in columns.values() for row in described}
    own_types = sorted(oid for oid in types if oid >= _FIRST_OF_USERS)
    names = connection.execute(_TYPES, [own_types]).fetchall() if own_types else ()
    return Catalog(
        tuple(_table(row, columns.get(row[0], ())) for row in rows),
        {oid: (schema, name) for oid, schema, name in names},
    )


def _table(row: tuple[Any, ...], columns: Sequence[tuple[Any, ...]]) -> SourceTable:
    oid, schema, name, identity, file, published, row_filter, primary, by_index, pages = row[:10]
    keys = tuple(by_index if identity == "i" else primary if identity != "n" else ())
    # A published column list names the columns; generated ones are in the log from 18 on, if at all.
    shown = [column for column in columns if published is None or column[0] in published]
    return SourceTable(
        oid=oid,
        schema=schema,
        name=name,
        keys=keys,
        columns=tuple(
            LoggedColumn(column, type_oid, modifier, column in keys)
            for column, type_oid, modifier, *_ in shown
        ),
        page_count=pages,
        row_filter=row_filter,
        file=file,
        numbers=tuple(column[3] for column in shown),
        filled=tuple(column[0] for column in shown if column[4]),
        folded_keys=tuple(column[0] for column in shown if column[5] and column[0] in keys),
        target=row[10:],
    )


def require_setup(connection: Any, publication: str) -> None:
    """Raise `OptionError` if the server or the publication cannot give all changes."""
    [level] = connection.execute("SHOW wal_level").fetchone()
    if level != "logical":
        raise OptionError(
            f"the server has wal_level = {level}, and logical decoding needs 'logical'.",
            hint="ALTER SYSTEM SET wal_level = 'logical'; then restart the server.",
        )
    row = connection.execute(
        "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot, puballtables "
        "FROM pg_publication WHERE pubname = %s",
        [publication],
    ).fetchone()
    if row is None:
        return
    publishes_all, via_root, _ = row
    if not publishes_all:
        raise OptionError(
            f"publication '{publication}' does not publish all operations.",
            hint=f"ALTER PUBLICATION {publication} SET "
            "(publish = 'insert, update, delete, truncate').",
            option="publicationName",
        )
    if via_root:
        raise OptionError(
            f"publication '{publication}' has publish_via_partition_root = true, with which the "
            "TRUNCATE of a partition is not sent.",
            hint=f"ALTER PUBLICATION {publication} SET (publish_via_partition_root = false).",
            option="publicationName",
        )


def create_publication(connection: Any, publication: str, tables: Sequence[SourceTable]) -> None:
    """Create a publication for tables."""
    names = ", ".join(f"{quoted(table.schema)}.{quoted(table.name)}" for table in tables)
    connection.execute(f"CREATE PUBLICATION {quoted(publication)} FOR TABLE {names}")


_CANDIDATES = """
SELECT c.oid, n.nspname, c.relname,
       c.relreplident <> 'n' AND EXISTS (
           SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY n.nspname, c.relname
"""


def list_candidates(connection: Any) -> list[tuple[SourceTable, bool]]:
    """Return the tables that a publication could have, each with whether it has a key.

    A table without a key in a publication would make the application's updates fail.
    """
    return [
        (SourceTable(oid, schema, name, (), (), (), 0, None, 0, (), (), (schema, name)), has_key)
        for oid, schema, name, has_key in connection.execute(_CANDIDATES).fetchall()
    ]


def quoted(name: str) -> str:
    """Quote an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
