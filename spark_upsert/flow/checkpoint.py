"""The record of a streaming flow beside its checkpoint: its sources, and the widths of its state.

The engine that runs a flow keeps how far it has read, by the number of each source. This record is
compared with the flow when it goes on. It is written before the first batch: a flow that failed
before that batch has no state, and is held to its widths all the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from spark_upsert.errors import GraphError, OptionError
from spark_upsert.flow.graph import Graph, OperatorKind
from spark_upsert.flow.width import require_widths_kept, widths_kept
from spark_upsert.store.records import FORMAT_VERSION, checked_record, numbers, read_record, text
from spark_upsert.store.resolve import open_store

NAME = "upsertflow-flow.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """The text of the file; ``id`` is drawn once, and names the batches of a flow to its tables."""

    id: str
    sources: tuple[str, ...]
    widths: Mapping[str, Mapping[str, int]]
    """The widths of the regions around each operator that keeps state (`width.widths_kept`)."""


def remember(graph: Graph, checkpoint: str, storage: Mapping[str, str]) -> str | None:
    """Hold a graph against what its checkpoint remembers, and let it remember this graph.

    Parameters
    ----------
    checkpoint : str
        The folder of the checkpoint.
    storage : mapping of str to str
        Settings of the object store in which it lies.

    Returns
    -------
    str or None
        The id of the flow; None if the checkpoint lies where the engine cannot read.

    Raises
    ------
    WidthError
        A region that keeps state has another width than before.
    GraphError
        The sources are others than before, or in another order; or the graph keeps state, and the
        checkpoint lies where the engine cannot read.
    CorruptionError
        What the checkpoint remembers is damaged.
    """
    sources = tuple(
        name for name, place in graph.places.items() if place.operator.kind is OperatorKind.SOURCE
    )
    widths = widths_kept(graph)
    try:
        store = open_store(checkpoint, storage)
    except OptionError as error:
        _require_no_state(checkpoint, widths, error)
        return None
    found = read_record(store, NAME, _remembered)
    if found is None:
        store.prepare("")
    else:
        _require_sources(sources, found.sources)
        require_widths_kept(graph, found.widths)
    flow_id = uuid.uuid4().hex if found is None else found.id
    now = Remembered(id=flow_id, sources=sources, widths=widths)
    checked_record(NAME, now, {"format": FORMAT_VERSION, **asdict(now)}, _remembered).put(store)
    return flow_id


def _remembered(record: Mapping[str, Any]) -> Remembered:
    return Remembered(
        id=text(record["id"]),
        sources=tuple(map(text, record["sources"])),
        widths={text(name): numbers(widths) for name, widths in record["widths"].items()},
    )


def _require_no_state(checkpoint: str, widths: Mapping[str, object], error: OptionError) -> None:
    for operator in widths:
        raise GraphError(
            f"'{operator}' keeps state, and the checkpoint at '{checkpoint}' cannot be read to "
            "hold the widths of its regions against those of before.",
            hint="put the checkpoint where tables can lie.",
            operators=(operator,),
        ) from error


def _require_sources(now: tuple[str, ...], before: tuple[str, ...]) -> None:
    if now != before:
        raise GraphError(
            f"the flow of this checkpoint had the sources {', '.join(before)}, in this order; now "
            f"it has {', '.join(now)}.",
            hint="give them in the order of before, whose numbers the checkpoint keeps, or begin "
            "anew (another checkpoint).",
            operators=now,
        )
