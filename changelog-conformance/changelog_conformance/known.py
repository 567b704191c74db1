"""What is known upstream about a cell that is not green: by system and row of the table."""

from __future__ import annotations

_TOMBSTONE = (
    "A `MERGE` cannot see the order of a row that is gone. "
    "The column to the right shows what helps; no thread about it is known to us."
)

KNOWN: dict[tuple[str, str], str] = {
    ("delta_rs", "deleted"): _TOMBSTONE,
    ("delta_rs", "replay"): "The same cause: the old batch has a row that was deleted since.",
    ("delta_rs", "drawn"): "The same cause.",
    ("ducklake", "deleted"): (
        "A row that is gone has no order to compare, and deletes kept as rows would help here, too. "
        "That deletes need a statement of their own is told in "
        "[duckdb/ducklake#351](https://github.com/duckdb/ducklake/pull/351); that `table_changes` "
        "told an update four times where two `MERGE` shared a transaction, in "
        "[duckdb/ducklake#1387](https://github.com/duckdb/ducklake/issues/1387)."
    ),
    ("ducklake", "replay"): "The same cause: the old batch has a row that was deleted since.",
    ("ducklake", "drawn"): "The same cause.",
}
