"""All options that there are, by their scopes: for the reference page, and for hints."""

from __future__ import annotations

from spark_upsert.options.inputs import INPUT_OPTIONS
from spark_upsert.options.read import READ_OPTIONS
from spark_upsert.options.routed import ROUTED_OPTIONS
from spark_upsert.options.write import WRITE_OPTIONS

SCOPES = {
    "writes": WRITE_OPTIONS,
    "routed": ROUTED_OPTIONS,
    "reads": READ_OPTIONS,
    "inputs": INPUT_OPTIONS,
}
"""What is declared, by name: the options of a write, of a write into many tables, of a read of
one thing, and of a read of several."""
