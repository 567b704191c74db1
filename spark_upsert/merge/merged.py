"""A merge as its settings ask for it, alone or in a graph: the door for callers without Spark."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from spark_upsert.errors import OptionError
from spark_upsert.merge.assembly import arrange
from spark_upsert.merge.config import MergeConfig
from spark_upsert.merge.counters import MergeCounters
from spark_upsert.merge.documents import MARKS
from spark_upsert.merge.graph import MergeGraph, fusion
from spark_upsert.merge.pressure import MemoryPressure
from spark_upsert.merge.readers import WIDTH, OpenInput
from spark_upsert.merge.schemas import OneSchema
from spark_upsert.merge.spill import SpillingStore
from spark_upsert.merge.threaded import concat, live
from spark_upsert.model.orders import Concat, Order, iter_picks
from spark_upsert.model.portions import HAND_OFF_ROWS


def merge(
    inputs: Mapping[str, OpenInput],
    config: MergeConfig | None = None,
    *,
    is_live: bool = True,
    width: int = WIDTH,
    rows: int = HAND_OFF_ROWS,
    pressure: MemoryPressure | None = None,
    folder: Path | None = None,
    counters: MergeCounters | None = None,
) -> Generator[Any, None, None]:
    """Yield the rows of all inputs as one stream.

    ============================  ===============================================================
    ``MergeConfig()``             one input after the other; those behind are read ahead
    ``mode=INTERLEAVE``           whatever is ready, through bounded channels (`live`)
    the same, not ``is_live``     a row of each input in turn; all inputs are read to their end
                                  first
    ``mode=INTERLEAVE, seed=42``  by draws from the seed; all inputs are read to their end first
    ============================  ===============================================================

    Parameters
    ----------
    inputs : mapping of str to callable
        Each returns an iterator of pyarrow.RecordBatch, and of marks (`documents`) if it has any.
        Their order is that of the mapping, and is part of what an exact order means.
    config : MergeConfig or None
        None: concat.
    is_live : bool
        Whether interleave without a seed may be live; a graph decides it for `merge_in`.
    width : int
        Inputs that are read at once.
    rows : int
        Of a batch that is handed over, at most.
    pressure : Pressure or None
        How much memory inputs may take that are read to their end first, and whether they spill.
    folder : path or None
        Where they spill; None: where the system keeps temporary files.
    counters : Counters or None
        To be looked at from outside.

    Yields
    ------
    pyarrow.RecordBatch, or a mark
        Openings of documents come before their rows where the merge is live or concat, closings
        behind all rows.

    Raises
    ------
    SchemaError
        An input has other columns than another; both are named.
    Exception
        The one by which an input failed; its text or its note names the input.
    """
    config = config or MergeConfig()
    order, schema = config.order(is_live=is_live), OneSchema()
    if order is not None and not isinstance(order, Concat):
        yield from _exact(inputs, order, width, rows, pressure, folder, counters)
        return
    run = live if order is None else concat
    for name, item in run(inputs, width=width, batch_rows=rows, counters=counters):
        if not isinstance(item, MARKS):
            schema.check(name, item.schema)
        yield item


def merge_in(
    graph: MergeGraph,
    name: str,
    inputs: Mapping[str, OpenInput],
    *,
    width: int = WIDTH,
    rows: int = HAND_OFF_ROWS,
    pressure: MemoryPressure | None = None,
    folder: Path | None = None,
    counters: MergeCounters | None = None,
) -> Generator[Any, None, None]:
    """Yield the rows of one merge of a graph (`merge`), which is live if the graph lets it be.

    Parameters
    ----------
    graph : MergeGraph
        It decides: an interleave without a seed is live where `fusion` says so, and goes round
        robin where it does not.
    name : str
        The name of the merge. Its settings and the order of its inputs are those of its node.
    inputs : mapping of str to callable
        Its inputs by the names that the node gives them, and perhaps others.
    width, rows, pressure, folder, counters
        Those of `merge`.

    Raises
    ------
    OptionError
        An input of the node is not given.
    """
    node = graph.merge(name)
    if not inputs.keys() >= set(node.inputs):
        expected = f"those of the merge '{name}': {', '.join(node.inputs)}"
        raise OptionError.invalid("inputs", [*inputs], expected)
    return merge(
        {each: inputs[each] for each in node.inputs},
        node.config,
        is_live=bool(fusion(graph, name)),
        width=width,
        rows=rows,
        pressure=pressure,
        folder=folder,
        counters=counters,
    )


def _exact(
    inputs: Mapping[str, OpenInput],
    order: Order,
    width: int,
    rows: int,
    pressure: MemoryPressure | None,
    folder: Path | None,
    counters: MergeCounters | None,
) -> Generator[Any, None, None]:
    """Yield rows in an order that depends on how many each input has: read all of them first."""
    schema, marks = OneSchema(), []
    with SpillingStore(pressure, folder=folder) as store:
        for name, item in live(inputs, width=width, batch_rows=rows, counters=counters):
            if isinstance(item, MARKS):
                marks.append(item)
            else:
                schema.check(name, item.schema)
                store.add(name, item)
        counts = [store.rows.get(name, 0) for name in inputs]
        picks = (picks for picks, _ in iter_picks(order, counts))
        yield from arrange([store.take(name) for name in inputs], picks, rows=rows)
    yield from marks
