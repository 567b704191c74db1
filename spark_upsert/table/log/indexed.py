"""The indexed columns of a table, and the form of an index: a table of its own.

The index on a column ``c`` of a table with the key ``k`` is a table with the key ``(c, k)`` and no
other column, hashed by ``c`` (`TableSchema.hash_prefix`), so that the keys of all rows with one
value lie together. Rows in which ``c`` is null are not in it. It lies below the table:

    <table>/_index/<column>/

An index **proposes**, the table disposes: the index shows one version of the table, which its
property `SHOWS` names, and a reader adds the keys of the commands between that version and its own.
So an index may lag behind the table, or lead, and is never on the path of correctness.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import pyarrow as pa

from spark_upsert.errors import OptionError, SchemaError
from spark_upsert.model.names import find_columns, split_names
from spark_upsert.model.schema import Scope, TableSchema
from spark_upsert.model.words import is_hashable
from spark_upsert.table.log.manifest import Manifest, TableVersion

INDEX_BY = "indexBy"
"""Name of the write option and of the table's property."""

SHOWS = "indexShows"
"""A property of an index: the version that it shows, as ``<table id> <version> <token>``."""

FOLDER = "_index"


def parse_index_by(text: str) -> tuple[str, ...]:
    """Return the names in a list of columns; a blank one has none."""
    return split_names(INDEX_BY, text) if text.strip() else ()


def indexed_columns(schema: TableSchema, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that a table is indexed by.

    Raises
    ------
    OptionError, SchemaError
        One is not there, has no hash, or needs no index.
    """
    found: list[str] = []
    names = parse_index_by(properties.get(INDEX_BY, ""))
    for column in find_columns(names, schema.columns.names, role=f"column of '{INDEX_BY}'"):
        type_ = schema.columns.field(column).type
        if not is_hashable(type_):
            raise SchemaError(
                f"the column '{column}' of '{INDEX_BY}' has type {type_}, which has no hash.",
                hint="index a column of a number, text, binary, boolean, date, time or decimal.",
                column=column,
            )
        if schema.keys == (column,):
            raise OptionError(
                f"option '{INDEX_BY}' expects columns beside the key, found '{column}', which is "
                "the whole key: its rows are found without an index.",
                hint=f"leave '{column}' out of '{INDEX_BY}'.",
                option=INDEX_BY,
            )
        if column in found:
            raise OptionError.invalid(INDEX_BY, properties[INDEX_BY], "each column once")
        found.append(column)
    return tuple(found)


def index_schema(table: TableSchema, column: str, *, hash_seed: int = 0) -> TableSchema:
    """Return what the index on a column of a table holds."""
    names = (column, *(key for key in table.keys if key != column))
    return TableSchema(
        columns=pa.schema([table.columns.field(name) for name in names]),
        keys=names,
        order=(),
        scope=Scope.ARRIVAL,
        hash_seed=hash_seed,
        hash_prefix=1,
    )


def index_folder(column: str) -> str:
    """Return where the index on a column lies, below its table."""
    return f"{FOLDER}/{quote(column, safe='').replace('.', '%2E')}"


def shown(index: Manifest) -> TableVersion | None:
    """Return which version of its table an index shows; None if none, yet."""
    table_id, version, token = index.properties.get(SHOWS, "  ").split(" ")
    return TableVersion(table_id=table_id, version=int(version), token=token) if table_id else None


def showing(index: Manifest, place: TableVersion) -> dict[str, str]:
    """Return the properties of an index that shows a version of its table."""
    return {**index.properties, SHOWS: f"{place.table_id} {place.version} {place.token}"}
