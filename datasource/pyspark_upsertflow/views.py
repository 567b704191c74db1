"""Views for Spark (`SparkView`), and the query materializing one in a table (`keep`).

A grouped view is stored as contributions and continues from the table's position; other views are
stored as rows by one query (docs/adr/0037).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark_upsertflow.readers import read_schema
from spark_upsert.core.schema import COMMIT_VERSION
from spark_upsert.errors import OptionError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.views import deferred_read_text
from spark_upsert.options.write import WriteOptions
from spark_upsert.plan.nodes import Node
from spark_upsert.store.open import open_store
from spark_upsert.streams.planner.formats import explain_read
from spark_upsert.table.changelog.read import Deduplication
from spark_upsert.table.log.manifest import QUERY, Manifest, Transaction
from spark_upsert.table.table import Table
from spark_upsert.table.write.outcomes import NOTHING
from spark_upsert.views.materialized import MaterializedView, create_rows_table
from spark_upsert.views.plan_builder import Plan
from spark_upsert.views.view import View
from spark_upsert_sink.types import to_arrow_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


_FORMAT = "upsertflow"


@dataclass(frozen=True)
class SparkView(Plan):
    """A Spark-readable plan over tables (`spark_upsert.views.plan_builder.Plan`)."""

    def stream(self, spark: SparkSession, *, net: bool = False, **options: str) -> DataFrame:
        """Return the view's present rows as inserts, and then its changes."""
        all_options = {"readChangeFeed": "true", **self._options(), **options}
        if net:
            all_options["deduplicationMode"] = "netChanges"
        return spark.readStream.format(_FORMAT).options(**all_options).load()

    def read(self, spark: SparkSession, **options: str) -> DataFrame:
        """Return the view's rows now, or at a time with ``timestampAsOf``."""
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
        """Start a streaming query that writes the view's rows to a table and updates them.

        The table is created if it does not exist. Each micro-batch becomes one version:
        ``spark.read.format("upsertflow").load(path)`` returns the view, and with
        ``readChangeFeed`` its changes.

        A grouped view's table stores partial sums (``raw=true`` reads them) and its position in
        the source tables. So each change is applied exactly once, even if you lose the checkpoint:
        a query with a new one continues from that position. Any other view's table stores rows
        only: if you use a new checkpoint, use a new path, too.
        """
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
        """Describe a batch read of the view: the plan, and how it finds rows."""
        return explain_read(ReadPlan.parse({**self._options(), **options}))

    def _options(self) -> dict[str, str]:
        storage = {f"storage.{name}": value for name, value in self.storage.items()}
        return {"plan": self.to_json(), **storage}


def keep(
    spark: SparkSession,
    plan: Node,
    path: str,
    checkpoint: str,
    *,
    storage: Mapping[str, str],
    available_now: bool = False,
    every: str | None = None,
    options: Mapping[str, str],
) -> StreamingQuery:
    """Start the query that writes a view to a table and updates it (`SparkView.keep`)."""
    if available_now and every is not None:
        raise OptionError.conflict("available_now", f"every={every}")
    reads, writes = planned(plan, path, checkpoint, storage=storage, options=options)
    changes = spark.readStream.format(_FORMAT).options(**reads).load()
    writer = changes.writeStream.format(_FORMAT).options(**writes)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif every is not None:
        writer = writer.trigger(processingTime=every)
    return writer.start()


def planned(
    plan: Node,
    path: str,
    checkpoint: str,
    *,
    storage: Mapping[str, str],
    options: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the read options and write options for the query materializing a view.

    Creates the table if it does not exist. For the parameters see `keep`.
    """
    table, view, text = Table(open_store(path, storage)), View(plan, storage), plan.to_json()
    storage_options = {f"storage.{name}": value for name, value in storage.items()}
    # The table shows where a batch ends and nothing between: each batch is one step.
    reads = {"plan": text, "deduplicationMode": Deduplication.NET_CHANGES.value}
    writes = {**storage_options, "path": path, "checkpointLocation": checkpoint}
    if view.grouping is None:
        _require_own_checkpoint(table, checkpoint, storage)
        changes, puts = _row_options(view)
        reads, writes = {**reads, **changes}, {**writes, **puts}
        shown = to_arrow_columns(read_schema({**reads, **storage_options}))
        seed = view.log(view.paths[0]).head().schema.hash_seed
        head = create_rows_table(table, text, WriteOptions.parse(writes), shown, hash_seed=seed)
        reads |= _consumer_option(head)
    else:
        reads |= _group_options(MaterializedView.create(table, view.grouping, text))
    reads, deferred_writes = _deferred_options({**reads, **options}, text)
    return {**storage_options, **reads}, {**writes, **deferred_writes}


def _deferred_options(reads: Mapping[str, str], text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the reader's and the writer's options for a plan: no row passes through Java.

    Spark assigns splits to tasks, and the writer's task reads the split it writes.
    """
    return {**reads, "deferred": "true"}, {"deferred": deferred_read_text({**reads, "plan": text})}


def _require_own_checkpoint(table: Table, checkpoint: str, storage: Mapping[str, str]) -> None:
    """Refuse a new query on another query's rows: deleted rows would remain in the table.

    Checks only if the engine itself can read the checkpoint.
    """
    head = table.log.try_head()
    if head is None or not any(name.startswith(QUERY) for name in head.transactions):
        return
    try:
        query_id = json.loads(open_store(checkpoint, storage).read("metadata"))["id"]
    except FileNotFoundError:
        query_id = None
    except OptionError:
        return
    if query_id is None or Transaction.writer_of_query(query_id) not in head.transactions:
        raise OptionError(
            f"the table at '{table.store.url}' holds rows of another query, and the checkpoint at "
            f"'{checkpoint}' has none of its batches: rows that are gone since would stay.",
            hint="go on with the checkpoint of that query, or keep the view in a new path.",
        )


def _consumer_option(kept: Manifest) -> dict[str, str]:
    """Return the option with the query's lease name."""
    return {"consumerId": f"view-{kept.table_id}"}


def _group_options(kept: MaterializedView) -> dict[str, str]:
    """Return the read options for contributions: start at the table's position."""
    recorded, consumer = kept.position(), _consumer_option(kept.table.log.head())
    return consumer if recorded == NOTHING else {**consumer, "startingPosition": recorded}


def _row_options(view: View) -> tuple[dict[str, str], dict[str, str]]:
    """Return the read and write options for rows: the later step wins, whenever it arrives."""
    assert view.relation.key is not None
    writes = {
        "envelope": "changelog",
        "keys": ",".join(view.relation.key),
        "sequenceBy": COMMIT_VERSION,
        "sequenceScope": "table",
    }
    return {"readChangeFeed": "true"}, writes
