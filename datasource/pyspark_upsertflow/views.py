"""Views for Spark: plans that are read as a stream of changes, or as rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.planner.explain_read import explain_read
from spark_upsert.views.builder import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_FORMAT = "upsertflow"


@dataclass(frozen=True)
class SparkView(Plan):
    """A plan over tables (`spark_upsert.views.builder.Plan`) that Spark can read."""

    def stream(self, spark: SparkSession, *, net: bool = False, **options: str) -> DataFrame:
        """Return the rows that there are, as inserts, and then what changes them.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
        net : bool
            Whether a micro-batch is one step: at most one change per key.
        **options : str
            Those of a stream's read.
        """
        given = {"readChangeFeed": "true", **self._options(), **options}
        if net:
            given["deduplicationMode"] = "netChanges"
        return spark.readStream.format(_FORMAT).options(**given).load()

    def read(self, spark: SparkSession, **options: str) -> DataFrame:
        """Return the rows that there are now, or with ``timestampAsOf`` were at some time."""
        return spark.read.format(_FORMAT).options(**{**self._options(), **options}).load()

    def keep(
        self,
        spark: SparkSession,
        path: str,
        checkpoint: str,
        *,
        available_now: bool = False,
        every: str | None = None,
        **options: str,
    ) -> StreamingQuery:
        """Start the query that keeps the view in a table, which is made if there is none.

        ``spark.read.format("upsertflow").load(path)`` shows the view, and with ``readChangeFeed``
        how it changes: an epoch per micro-batch. For a grouped view the table keeps sums, shown
        with ``raw=true``. There each batch counts once, whatever becomes of the checkpoint, and
        with a new one the query begins where the table is. For other views the table keeps their
        rows: give a query with a new checkpoint a new path, too.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
        path : str
            Where the kept table lies, in the same storage as the tables of the view.
        checkpoint : str
            Where Spark keeps the progress of the query.
        available_now : bool
            Whether the query ends when it has caught up.
        every : str, optional
            The interval of micro-batches, as ``10 seconds``.
        **options : str
            Those of a stream's read, for example ``maxRowsPerTrigger``.

        Raises
        ------
        PlanError
            The table keeps another view.
        """
        from pyspark_upsertflow.keeping import keep

        return keep(
            spark,
            self.node,
            path,
            checkpoint,
            storage=self.storage,
            available_now=available_now,
            every=every,
            options=options,
        )

    def explain(self, **options: str) -> str:
        """Return what a batch read of the view does: the plan, and how rows are found."""
        return explain_read(ReadPlan.parse({**self._options(), **options}))

    def _options(self) -> dict[str, str]:
        storage = {f"storage.{name}": value for name, value in self.storage.items()}
        return {"plan": self.to_json(), **storage}
