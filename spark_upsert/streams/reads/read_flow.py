"""The graph of a planned read: each input is a region, and its splits are the channels.

A channel is a range of hashes, or another part of the input; a task of the read is a processing
element, which reads its channels one after the other. Rows merge where they are read.

`packs.packed` decides which channels share a task, and not `flow.fused`, which weighs the costs of
hand-offs: there are none between the tasks of a read. What is left is to share out bytes, and for
that "heaviest first" is faster and better (ADR 41).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from spark_upsert.flow import Collected, Flow, Parallel, TableSource, expanded
from spark_upsert.flow.drawing import text
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.streams.reads.explain_words import SHOWN
from spark_upsert.streams.reads.packs import InputSplit, Pack, packed

_ROWS = "rows"
"""What the one input is called that has no name."""

_LOGGER = logging.getLogger(__name__)


class SplitChannel(NamedTuple):
    """A split of an input: the input's name, and which of its splits it is."""

    input: str
    number: int


def planned(
    splits: Mapping[str, Sequence[Any]], bytes_of: Callable[[str, Any], int], slots: int
) -> list[Pack]:
    """Return what each task reads, and tell the program's log at debug.

    Parameters
    ----------
    splits : mapping of str to sequence
        Of each input, by its name.
    bytes_of : callable
        Estimates what a split of an input reads.
    slots : int
        So many tasks there are at most; a table without a name has one for each split.
    """
    found = [
        (InputSplit(name, split), bytes_of(name, split))
        for name, own in splits.items()
        for split in own
    ]
    packs = packed(found, len(found) if UNNAMED in splits else slots)
    if _LOGGER.isEnabledFor(logging.DEBUG):
        graph = explain_packs(splits, packs)
        if graph:
            _LOGGER.debug("read planned, as a graph:\n%s", graph)
    return packs


def explain_packs(splits: Mapping[str, Sequence[Any]], packs: Sequence[Pack]) -> str:
    """Return the graph of a read: which channels of which inputs share a task."""
    at = {
        (name, id(split)): index for name, own in splits.items() for index, split in enumerate(own)
    }
    tasks = [
        [SplitChannel(each.name or _ROWS, at[each.name, id(each.split)]) for each in pack]
        for pack in packs
    ]
    return explain_flow({name or _ROWS: len(own) for name, own in splits.items()}, tasks)


def explain_flow(widths: Mapping[str, int], tasks: Sequence[Sequence[SplitChannel]]) -> str:
    """Return the graph as text; "" if there is nothing to read, or too much for anyone to read.

    Parameters
    ----------
    widths : mapping of str to int
        How many splits each input has.
    tasks : sequence of sequences of Channel
        What each task reads.
    """
    wide = {name: width for name, width in widths.items() if width}
    if not wide or len(wide) > SHOWN or len(tasks) > SHOWN:
        return ""
    flow = Flow()
    outputs = {
        name: flow.source(_operator(name, at), TableSource(name), parallel=Parallel(width=width))
        for at, (name, width) in enumerate(wide.items())
    }
    flow.sink("read", Collected(), *outputs.values())
    elements = [[f"{outputs[each.input].name}[{each.number}]" for each in task] for task in tasks]
    return text(expanded(flow.graph()), elements)


def _operator(name: str, at: int) -> str:
    """Return a name for an operator; inputs may be called by anything, a path for example."""
    return name if re.fullmatch(r"\w[\w-]*", name) else f"input_{at}"
