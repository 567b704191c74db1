"""How a read merges its inputs, as text: whether rows come as they are ready, and why.

It is told by the very value that decides (`QueryOptions.order`): a read without an exact order is
live. Its inputs are packed into tasks, and a task reads them through bounded channels, so that a
slow reader of its rows slows the inputs.
"""

from __future__ import annotations

import logging

from spark_upsert.merge import Seeded
from spark_upsert.model.log_fields import Fields
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.query import QueryOptions
from spark_upsert.streams.reads.explain_words import field

_LOGGER = logging.getLogger(__name__)


def explain_merge(plan: ReadPlan) -> str:
    """Return what becomes of the rows of the inputs; nothing for a read that names none."""
    if plan.is_unnamed:
        return ""
    query = plan.query
    is_live = query.order is None
    tasks = f"at most {query.slots}, packed by bytes" if is_live else "one, in an exact order"
    lines = [
        f"merge of several inputs: {query.merge.value}",
        *field("inputs", _inputs(plan)),
        *field("tasks", tasks),
        *field("live", _live(query)),
    ]
    return "\n".join(lines)


def _live(query: QueryOptions) -> str:
    """Return whether rows come as they are ready, and why."""
    match query.order:
        case None:
            return "yes: rows come as they are ready, through bounded channels"
        case Seeded(state=seed):
            return f"no: the seed {seed} gives it an exact order"
        case _:
            return f"no: its mode is {query.merge.value}, which has an exact order"


def _inputs(plan: ReadPlan) -> str:
    if plan.below is None or plan.below.named:
        return str(len(plan.inputs))
    count = f"{len(plan.inputs):,}, " if plan.inputs else ""
    return f"{count}found by '{plan.below.pattern}' below the path"


def tell_merge(plan: ReadPlan) -> None:
    """Tell the program's log how a read merges its inputs."""
    if plan.is_unnamed or not _LOGGER.isEnabledFor(logging.INFO):
        return
    fields = Fields(
        inputs=len(plan.inputs) or None,
        merge=plan.query.merge.value,
        live=_live(plan.query),
    )
    _LOGGER.info("merge planned: %s", fields)
