"""The commands: each opens a table, calls one method of it, and prints what it returns."""

from __future__ import annotations

from spark_upsert.cli.commands import (
    altering,
    facts,
    machines,
    reads,
    roots,
    rows,
    start,
    upkeep,
)
from spark_upsert.cli.commands.program import upsertflow

__all__ = [
    "altering",
    "facts",
    "machines",
    "reads",
    "roots",
    "rows",
    "start",
    "upkeep",
    "upsertflow",
]
