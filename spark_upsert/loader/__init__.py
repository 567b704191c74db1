"""Rows for training loops: exact batches in a drawn order, by rank, with checkpoints.

>>> from spark_upsert.loader import FileRows, Loader, TableRows
"""

from spark_upsert.loader.checkpoint import Checkpoint
from spark_upsert.loader.file_rows import FileRows
from spark_upsert.loader.loader import EpochBatches, Loader
from spark_upsert.loader.share import Remainder
from spark_upsert.loader.table_rows import TableRows

__all__ = ["Checkpoint", "EpochBatches", "FileRows", "Loader", "Remainder", "TableRows"]
