"""A table that keeps the rows of a view: puts and deletes, ordered by the version of their step.

Any order and any repetition of the batches of *one* query gives one table, as each row has the
version of the step that made it. Two queries would break this: they may take the epochs of two
tables in another order, so that the same version stands for other positions, and an older row of
one may have a greater version than the newest of the other. And a query that begins anew never
hears of the rows that went before. So such a table takes what one query writes and nothing else; a
commit asks for it at the version that its epoch follows (`table.write.guards`).
"""

from __future__ import annotations

import pyarrow as pa

from spark_upsert.envelopes.write_plan import Create, plan_write
from spark_upsert.errors import PlanError
from spark_upsert.options.write import WriteOptions
from spark_upsert.table.log.kept_position import VIEW_PLAN
from spark_upsert.table.log.manifest import Manifest
from spark_upsert.table.table import Table


def made_for_rows(table: Table, plan: str, options: WriteOptions, incoming: pa.Schema) -> Manifest:
    """Return the table that keeps the rows of a view; it is made if there is none.

    Parameters
    ----------
    table : Table
        May be absent.
    plan : str
        The text of the view.
    options : WriteOptions
        The options of the query that will write.
    incoming : pyarrow.Schema
        The columns of its rows.

    Raises
    ------
    PlanError
        There is a table, and it keeps another view.
    """
    head = table.log.try_head()
    if head is None:
        step = plan_write(None, options, incoming)
        assert isinstance(step, Create)
        head = table.ensure(step.schema, step.properties, internal={VIEW_PLAN: plan})
    found = head.properties.get(VIEW_PLAN)
    if found not in (None, plan):
        raise PlanError(
            f"the table at '{table.store.url}' keeps another view: expected {plan:.300}, found "
            f"{found:.300}.",
            hint="keep this view in another path.",
        )
    return head
