"""What runs and is mostly not meant: groups of which each channel, or each batch, sees a part.

Parts may be meant: sums of each channel that are added up further on, or by a table that folds
them. So it is told, in the program's log, and not refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from spark_upsert.flow.graph import Graph, Place, Region
from spark_upsert.task import Aggregation, Node

_LOGGER = logging.getLogger(__name__)


def advise(graph: Graph, *, is_stream: bool = False) -> None:
    """Warn the program's log of groups that may be shown in parts."""
    for each in advice(graph, is_stream=is_stream):
        _LOGGER.warning("flow: %s", each)


def advice(graph: Graph, *, is_stream: bool = False) -> Iterator[str]:
    """Yield what may not be meant, with the name of the operator that it is about.

    Parameters
    ----------
    is_stream : bool
        Whether the graph runs over what comes, batch by batch.
    """
    for place in graph.places.values():
        keys = _group_keys(place)
        if keys is None:
            continue
        for region in place.regions:
            if region.parallel.width > 1 and not _keeps_whole(region, keys):
                yield (
                    f"'{place.name}' groups by {', '.join(keys) or 'nothing'} in each channel of "
                    f"'{region.name}', which shares rows out by other columns or in turn: a group "
                    "comes out once for each channel that has rows of it. If that is not meant, "
                    f"partition '{region.name}' by some of these columns."
                )
        if is_stream:
            yield (
                f"'{place.name}' groups the rows of each micro-batch: a group comes out once for "
                "each that has rows of it. A table that takes it adds up if its merge engine does "
                "(aggregation); for totals kept up to date see views."
            )


def _group_keys(place: Place) -> tuple[str, ...] | None:
    """Return the columns that an operator groups by; None if it does not."""
    work = place.operator.work
    nodes = work.walk() if isinstance(work, Node) else ()
    return next((node.keys for node in nodes if isinstance(node, Aggregation)), None)


def _keeps_whole(region: Region, keys: tuple[str, ...]) -> bool:
    """Return whether rows of one group come to one channel, by the names of the columns."""
    parallel = region.parallel
    return bool(parallel.partition_by) and all(
        set(each.attributes) <= set(keys) for each in parallel.partition_by
    )
