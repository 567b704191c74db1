"""How a read merges its inputs, as text: whether rows come as they are ready, and why.

Two questions decide whether a slow sink slows the inputs (`merge.graph`): whether the merge is
live, and whether the sink writes what it gives as it comes. The second is asked of a sink that
needs no more than the rows; Spark tells a reader nothing of the sink that it has.
"""

from __future__ import annotations

import logging

from spark_upsert.merge.config import MergeConfig, Mode
from spark_upsert.merge.graph import (
    Answer,
    MergeGraph,
    MergeNode,
    Sink,
    SourceNode,
    fusion,
    streaming_output,
)
from spark_upsert.model.log_fields import Fields
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.options.query import Merge as Asked
from spark_upsert.options.query import QueryOptions
from spark_upsert.streams.reads.explain_words import field

_LOGGER = logging.getLogger(__name__)

_MERGE, _SINK = "of inputs", "of rows"
"""No input has such a name."""


def explain_merge(plan: ReadPlan) -> str:
    """Return what becomes of the rows of the inputs; nothing for a read that names none."""
    if plan.is_unnamed:
        return ""
    live, streaming = _answers(plan)
    query = plan.query
    tasks = f"at most {query.slots}, packed by bytes" if live else "one, in an exact order"
    lines = [
        f"merge of several inputs: {query.merge.value}",
        *field("inputs", _inputs(plan)),
        *field("tasks", tasks),
        *field("live", str(live)),
        *field("streaming", str(streaming)),
    ]
    return "\n".join(lines)


def _inputs(plan: ReadPlan) -> str:
    if plan.below is None or plan.below.named:
        return str(len(plan.inputs))
    count = f"{len(plan.inputs):,}, " if plan.inputs else ""
    return f"{count}found by '{plan.below.pattern}' below the path"


def tell_merge(plan: ReadPlan) -> None:
    """Tell the program's log how a read merges its inputs."""
    if plan.is_unnamed or not _LOGGER.isEnabledFor(logging.INFO):
        return
    live, streaming = _answers(plan)
    fields = Fields(
        inputs=len(plan.inputs) or None,
        merge=plan.query.merge.value,
        live=live,
        streaming=streaming,
    )
    _LOGGER.info("merge planned: %s", fields)


def _answers(plan: ReadPlan) -> tuple[Answer, Answer]:
    """Return whether the merge is live, and whether a sink may write as it goes."""
    names = tuple(each.name for each in plan.inputs) or ("what is found",)
    merge = MergeNode(name=_MERGE, inputs=names, config=_config(plan.query))
    sources = [SourceNode(name=name) for name in names]
    graph = MergeGraph([*sources, merge, Sink(name=_SINK, inputs=(_MERGE,))])
    streaming = streaming_output(graph, _SINK)
    if plan.query.merge is Asked.ROUND_ROBIN:
        return Answer(False, "its mode is roundrobin, which has an exact order"), streaming
    return fusion(graph, _MERGE), streaming


def _config(query: QueryOptions) -> MergeConfig:
    is_concat = query.merge is Asked.CONCAT
    return MergeConfig(mode=Mode.CONCAT if is_concat else Mode.INTERLEAVE, seed=query.seed)
