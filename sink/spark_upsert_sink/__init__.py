"""Spark's writes into a table: the driver's plan, the tasks' staging, and the commit.

The public names are imported on first access: a reader needs two modules of this package, and no
writer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_upsert_sink.routed import RoutedBatchWriter, RoutedStreamWriter
    from spark_upsert_sink.writers import UpsertBatchWriter, UpsertStreamWriter

__all__ = ["RoutedBatchWriter", "RoutedStreamWriter", "UpsertBatchWriter", "UpsertStreamWriter"]

if not TYPE_CHECKING:  # Or any name would pass for one of ours.

    def __getattr__(name: str) -> Any:
        """Import a public name on first access."""
        if name not in __all__:
            raise AttributeError(f"module 'spark_upsert_sink' has no attribute '{name}'")
        home = "routed" if name.startswith("Routed") else "writers"
        attribute = getattr(import_module(f"spark_upsert_sink.{home}"), name)
        globals()[name] = attribute
        return attribute
