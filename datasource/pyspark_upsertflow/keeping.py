"""Keep a view: run the query that brings a table of ours to what the view is, batch after batch.

A grouped view is kept as contributions, of which the table takes each batch once by its own marker:
a query with a new checkpoint begins where the table is. Other views are kept as rows, by one query
(`spark_upsert.views.kept_rows`): one with a new checkpoint is refused, before it starts where the
engine can read the checkpoint, and else by the table, at its first batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_upsertflow.readers import read_schema
from spark_upsert.errors import OptionError
from spark_upsert.model.schema import COMMIT_VERSION
from spark_upsert.options.view import put_off_text
from spark_upsert.options.write import WriteOptions
from spark_upsert.plan.nodes import Node
from spark_upsert.store.resolve import open_store
from spark_upsert.table.changes.modes import Deduplication
from spark_upsert.table.log.manifest import QUERY, Manifest, Transaction
from spark_upsert.table.table import Table
from spark_upsert.table.write.moves import NOTHING
from spark_upsert.views.groups.kept import Kept
from spark_upsert.views.kept_rows import made_for_rows
from spark_upsert.views.view import View
from spark_upsert_sink.releases import arrow_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_FORMAT = "upsertflow"


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
    """Start the query that keeps a view in a table; see `pyspark_upsertflow.views.SparkView.keep`."""
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
    """Return the options of the read and of the write of the query that keeps a view.

    The table is made if there is none. Parameters as of `keep`.

    Raises
    ------
    OptionError
        The table holds rows of another query.
    PlanError
        It keeps another view.
    """
    table, view, text = Table(open_store(path, storage)), View(plan, storage), plan.to_json()
    own = {f"storage.{name}": value for name, value in storage.items()}
    # The table shows where a batch ends and nothing between: each batch is one step.
    reads = {"plan": text, "deduplicationMode": Deduplication.NET_CHANGES.value}
    writes = {**own, "path": path, "checkpointLocation": checkpoint}
    if view.grouping is None:
        _require_own_checkpoint(table, checkpoint, storage)
        changes, puts = _rows(view)
        reads, writes = {**reads, **changes}, {**writes, **puts}
        shown = arrow_of(read_schema({**reads, **own}))
        reads |= _consumer(made_for_rows(table, text, WriteOptions.parse(writes), shown))
    else:
        reads |= _groups(Kept.made(table, view.grouping, text))
    reads, put_off = _put_off({**reads, **options}, text)
    return {**own, **reads}, {**writes, **put_off}


def _put_off(reads: Mapping[str, str], text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the reader's and the writer's options for a plan: no row goes through Java.

    Spark assigns splits to tasks, and the writer's task reads the split that it writes.
    """
    return {**reads, "deferred": "true"}, {"deferred": put_off_text({**reads, "plan": text})}


def _require_own_checkpoint(table: Table, checkpoint: str, storage: Mapping[str, str]) -> None:
    """Refuse to begin anew upon rows of another query: those that are gone since would stay.

    Only where the engine itself can read the checkpoint; elsewhere nothing is known of it.
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


def _consumer(kept: Manifest) -> dict[str, str]:
    """Return under which name the query leases what it has yet to read."""
    return {"consumerId": f"view-{kept.table_id}"}


def _groups(kept: Kept) -> dict[str, str]:
    """Return how contributions are read: from where the table is."""
    recorded, consumer = kept.position(), _consumer(kept.table.log.head())
    return consumer if recorded == NOTHING else {**consumer, "startingPosition": recorded}


def _rows(view: View) -> tuple[dict[str, str], dict[str, str]]:
    """Return how rows are read and written: the later step wins, whenever it comes."""
    assert view.relation.key is not None
    writes = {
        "envelope": "changelog",
        "keys": ",".join(view.relation.key),
        "sequenceBy": COMMIT_VERSION,
        "sequenceScope": "table",
    }
    return {"readChangeFeed": "true"}, writes
