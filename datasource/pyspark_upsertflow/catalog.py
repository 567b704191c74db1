"""Options for Spark's catalog tables, stored in the metadata of a ``NOT NULL`` column.

Spark passes no catalog option to a source, only its columns (docs/adr/0014).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from spark_upsert.errors import OptionError
from spark_upsert.options.declare import fold
from spark_upsert.options.spark import drop_spark_options

if TYPE_CHECKING:
    from collections.abc import Collection

_OPTIONS = "upsertflow.options"
"""Key in the column metadata for the options as JSON."""

_MADE_BY = "provider"
"""Option passed by Spark only while it creates a table."""


def is_catalog_create(options: Mapping[str, str]) -> bool:
    """Return whether Spark requests the columns for a catalog table before it creates the table."""
    return _MADE_BY in {name.lower() for name in options}


def refuse_secrets(options: Mapping[str, str]) -> None:
    """Raise `OptionError` if `CREATE TABLE` has a storage option."""
    for name in drop_spark_options(options):
        if ".storage." in f".{name.lower()}":
            raise OptionError(
                f"a catalog table cannot keep the option '{name}': Spark copies what belongs to "
                "its columns into the files that are made of its rows, and it may be a secret.",
                hint="leave it away and let the environment say it (docs/object-stores.md), or use "
                f"CREATE TEMPORARY VIEW v USING upsertflow OPTIONS (path '...', `{name}` '...').",
                option=name,
            )


def with_stored_options(
    shown: StructType, options: Mapping[str, str], keys: Collection[str]
) -> StructType:
    """Return a catalog table's columns, with the read options in one column's metadata.

    That column is the first one without nulls, declared ``NOT NULL`` here, because
    `complete_options` reads no other column. ``CREATE TABLE ... AS`` copies the metadata into a new
    table, but as nullable columns, so the new table never shows the old one's rows. Raises
    `OptionError` if every column may be null.
    """
    fields = list(shown)
    index = next((i for i, f in enumerate(fields) if not f.nullable or f.name in keys), None)
    if index is None:
        raise _no_metadata_column(shown)
    column = fields[index]
    metadata = {
        **column.metadata,
        _OPTIONS: json.dumps(drop_spark_options(options), sort_keys=True),
    }
    fields[index] = StructField(column.name, column.dataType, nullable=False, metadata=metadata)
    return StructType(fields)


def complete_options(options: Mapping[str, str], schema: StructType) -> Mapping[str, str]:
    """Return the read options, completed by a catalog table's stored options.

    A read with a path, plan or input uses its own options only.
    """
    given_names = {fold(name.partition(".")[0]) for name in options}
    if given_names & {"path", "plan", "input", "inputs", "inputspattern"}:
        return options
    for field in schema:
        if _OPTIONS in field.metadata and not field.nullable:
            stored = json.loads(field.metadata[_OPTIONS])
            by_fold = {fold(name) for name in options}
            return {n: text for n, text in stored.items() if fold(n) not in by_fold} | dict(options)
    return options


def _no_metadata_column(shown: StructType) -> OptionError:
    """Return the error for columns that may all be null."""
    return OptionError(
        "a catalog table keeps its options with a column that is never null, found none among "
        f"{', '.join(shown.names)}.",
        hint="choose a key column by 'columns', or use CREATE TEMPORARY VIEW v USING upsertflow "
        "OPTIONS (path '...').",
        option="columns",
    )
