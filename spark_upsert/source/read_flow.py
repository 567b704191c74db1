"""The graph of a planned read: each input is a region whose channels are its splits.

A channel is a range of hashes, or whatever else the input is cut into; a task of the read is a
processing element, which reads its channels one after the other. Rows merge where they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from spark_upsert.flow import Collected, Flow, Parallel, TableSource, expanded
from spark_upsert.flow.drawing import text
from spark_upsert.source.explain_words import SHOWN


class Channel(NamedTuple):
    """A split of an input: the input's name, and which of its splits it is."""

    input: str
    number: int


def explain_flow(widths: Mapping[str, int], tasks: Sequence[Sequence[Channel]]) -> str:
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
