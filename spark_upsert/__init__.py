"""The engine of upsertflow: keyed changes in, a table and its exact changelog out.

It knows pyarrow and numpy, and nothing of Spark.
"""

from spark_upsert._version import __version__

__all__ = ["__version__"]
