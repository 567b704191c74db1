"""How a name that a user wrote finds its column: exactly, else without regard to case."""

from __future__ import annotations

from collections.abc import Sequence

from spark_upsert.errors import SchemaError


def find_column(name: str, available: Sequence[str], *, role: str) -> str:
    """Return the column that ``name`` means: exactly, else the only one alike but for case."""
    if name in available:
        return name
    alike = [column for column in available if column.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    raise SchemaError.missing_column(name, available, role=role)
