"""The data source ``upsertflow.postgres``: a PostgreSQL database as a stream.

Spark's discovery imports this module, so it imports no engine, pyarrow or numpy itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import __version__
from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType


class PostgresSource(DataSource):
    """The changes of a PostgreSQL database in batches of whole transactions.

    Options: ``docs/options.md``. The rows are for ``format("upsertflow")`` with
    ``envelope=postgres``.
    """

    @classmethod
    def name(cls) -> str:
        return "upsertflow.postgres"

    def schema(self) -> StructType:
        from pyspark_upsertflow.postgres_reader import change_columns

        return change_columns()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_upsert.errors import OptionError
        from spark_upsert_sink.types import HAS_LIMITS

        if not HAS_LIMITS:
            raise OptionError(
                f"format 'upsertflow.postgres' needs PySpark 4.2 or newer, and this is {__version__}.",
                hint="upgrade PySpark, or use the command 'upsertflow follow'.",
            )
        from pyspark_upsertflow.postgres_reader import PostgresStreamReader

        # Spark sends this object to the tasks, too, which need no address with a password.
        options, self.options = self.options, {}
        return PostgresStreamReader(options)
