"""All inputs of a merge have one schema: that of the one which gave the first batch."""

from __future__ import annotations

import pyarrow as pa

from spark_upsert.errors import SchemaError
from spark_upsert.model.names import has_column


class OneSchema:
    """Remembers the first schema, and holds all others against it. Metadata does not count."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._input = ""

    def check(self, name: str, schema: pa.Schema) -> None:
        """Check what an input gives.

        Raises
        ------
        SchemaError
            A column is missing, is one too many, stands elsewhere, or has another type.
        """
        if self._schema is None:
            self._schema, self._input = schema, name
        elif schema is not self._schema and not schema.equals(self._schema):
            raise SchemaError(
                f"the inputs '{self._input}' and '{name}' of a merge have different columns: "
                f"{_difference(self._schema, schema, self._input, name)}.",
                hint="give all inputs the same columns, in the same order and of the same types.",
                input=name,
            )


def _difference(one: pa.Schema, other: pa.Schema, first: str, second: str) -> str:
    for name in one.names:
        if not has_column(other, name):
            return f"'{name}' is only in '{first}'"
    for name in other.names:
        if not has_column(one, name):
            return f"'{name}' is only in '{second}'"
    for mine, theirs in zip(one, other, strict=True):
        if mine.name != theirs.name:
            return f"where '{first}' has '{mine.name}', '{second}' has '{theirs.name}'"
        if not mine.equals(theirs):
            return f"'{mine.name}' is {_told(mine)} in '{first}' and {_told(theirs)} in '{second}'"
    return f"{one.names} and {other.names}"


def _told(field: pa.Field) -> str:
    return str(field.type) if field.nullable else f"{field.type} and never null"
