"""The plan of a write: the driver makes it before any row moves, and sends it to the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import pyarrow as pa

from spark_upsert.envelopes.write_plan import WritePlan, plan_upon
from spark_upsert.errors import BatchTooLargeError, TableFullError, ThrottledError, UpsertFlowError
from spark_upsert.options.write import WriteOptions
from spark_upsert.store.resolve import open_store
from spark_upsert.table.compaction import Job
from spark_upsert.table.log.manifest import Transaction
from spark_upsert.table.table import Table

JOBS_MAX = 16
"""Compactions planned for one epoch. They travel to every task, so they are few; the rest waits."""


@dataclass(frozen=True, kw_only=True)
class SinkPlan:
    """A write of Spark's: where to, how, and what else its tasks do. Travels by pickle."""

    path: str
    """The path as the driver resolves it: a task may run in another folder."""
    storage: Mapping[str, str] = dataclass_field(repr=False)
    write: WritePlan
    jobs: tuple[Job, ...] = ()
    """Compactions that are due: the n-th task does the n-th one."""
    refusal: UpsertFlowError | None = None
    """Why the rows may not come in, unless they are in the table already."""

    def table(self) -> Table:
        """Open the table, on the driver or in a task."""
        return Table(open_store(self.path, self.storage))


def plan_sink(
    options: WriteOptions,
    incoming: pa.Schema,
    *,
    overwrite: bool,
    transaction: Transaction | None = None,
) -> SinkPlan:
    """Check a write against its table, altering the table if allowed; the commit makes a new one.

    Parameters and errors as of `spark_upsert.envelopes.write_plan.plan_write`; after an error the
    table is as it was. Where the table is full and waits, so does the plan, for it holds no slot
    that a consumer may need.
    """
    table = Table(open_store(options.path, options.storage))
    write = plan_upon(table, options, incoming)
    refusal = None
    if not (transaction is not None and write.base.has(transaction)):
        try:
            admission = table.admission(
                options.full_wait_ms,
                heeds_pressure=not options.disable_backpressure,
                waits_for_relief=True,
            )
            head = admission.require(write.base)
        except (TableFullError, BatchTooLargeError, ThrottledError) as error:
            refusal = error
        else:
            write = write if head is write.base else plan_upon(table, options, incoming)
    jobs: list[Job] = []
    if not (overwrite or write.base.is_unborn):
        # What the write is planned upon will do.
        jobs = table.compaction_jobs(look=table.log.last_look())[:JOBS_MAX]
    return SinkPlan(
        path=table.store.url,
        storage=options.storage,
        write=write,
        jobs=tuple(jobs),
        refusal=refusal,
    )
