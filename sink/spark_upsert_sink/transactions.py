"""The identity that makes a write of Spark's idempotent: a batch of a query, or an application's.

The commit of a stream is not told its query, its tasks are.
"""

from __future__ import annotations

from pyspark import TaskContext

from spark_upsert.errors import OptionError
from spark_upsert.table.log.manifest import Transaction

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


def query_of_task() -> str | None:
    """Return the id of this task's query; None if Spark does not say."""
    return _told(_QUERY_ID)


def of_task() -> Transaction | None:
    """Return the batch of this task's query; None if Spark does not say."""
    query_id, batch_id = _told(_QUERY_ID), _told(_BATCH_ID)
    if not (query_id and batch_id):
        return None
    return Transaction(writer=Transaction.writer_of_query(query_id), number=int(batch_id))


def _told(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def of_batch(
    query_id: str | None, batch_id: int, *, checkpoint: str | None, allow_missing: bool
) -> Transaction:
    """Return the transaction of a batch, by what its tasks and the options say of its query.

    Raises
    ------
    OptionError
        They say nothing.
    """
    if query_id is None and not checkpoint:
        raise OptionError.missing(
            "checkpointLocation", "this session does not tell its tasks the query id"
        )
    # Spark numbers the batches of a query 0, 1, 2, ..., and writes each of them.
    return Transaction(
        writer=f"checkpoint:{checkpoint}"
        if query_id is None
        else Transaction.writer_of_query(query_id),
        number=batch_id,
        is_consecutive=not allow_missing,
    )


def of_application(app_id: str | None, version: int | None) -> Transaction | None:
    """Return the transaction of a batch write, None if it has none."""
    if app_id is None or version is None:
        return None
    return Transaction(writer=Transaction.writer_of_app(app_id), number=version)


def refuse_application(app_id: str | None) -> None:
    """Refuse the name of an application for a stream."""
    if app_id is not None:
        raise OptionError(
            "options 'txnAppId' and 'txnVersion' are for batch writes.",
            hint="drop them: a stream is idempotent by its query id and batch id.",
        )
