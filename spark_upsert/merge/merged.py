"""Merges (`merge`): exact orders (`arrange`), live interleave, concatenation, document boundaries.

Rows are combined from slices by one concatenation and at most one ``take`` per output batch; memory
is bounded in rows and bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa

from spark_upsert.core.input_order import Concat, Order, Picks, iter_picks, rows_of_inputs
from spark_upsert.core.threads import BATCH_BYTES, HAND_OFF_ROWS, portions, rows_within
from spark_upsert.errors import OptionError
from spark_upsert.merge.graph import MergeGraph, fusion
from spark_upsert.merge.readers import (
    CHANNEL_EVENTS,
    JOIN_SECONDS,
    OUTPUT_EVENTS,
    WIDTH,
    Bounds,
    Delivery,
    MergeConfig,
    MergeCounters,
    MergeReaders,
    OneSchema,
    OpenInput,
)
from spark_upsert.merge.spill import MemoryPressure, SpillingStore

_INPUTS_PER_BATCH = 64
"""Slices of a batch that cost little; for more inputs, more batches are joined at once."""

_BATCHES_AT_ONCE = 32
"""The most: 65 536 rows by default. 1 000 inputs in turns come 10 times as fast as singly."""

_BYTES_AT_ONCE = 4 * BATCH_BYTES
"""Bytes of rows that are put together; they are held twice for a moment."""

_UINT16_END = 1 << 16


def arrange(
    inputs: Sequence[Iterator[pa.RecordBatch]],
    order: Picks | Iterable[Picks],
    *,
    rows: int = HAND_OFF_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some inputs in an order.

    Parameters
    ----------
    inputs : sequence of iterators of pyarrow.RecordBatch
        All of one schema; batches of any size. No more is asked of them than the order needs:
        rows behind it stay where they are.
    order : array of int64, or an iterable of such arrays
        The index of the input that gives the next row (`input_order.advance`, `iter_picks`).
    rows : int
        Of an output batch at most; it has no more than `BATCH_BYTES` either, unless it is one row.

    Yields
    ------
    pyarrow.RecordBatch
        Never an empty one. A batch ends where an array of the order does.

    Raises
    ------
    ValueError
        An input ends before it has given what the order wants of it.
    """
    if rows < 1:
        raise ValueError(f"a batch holds at least one row, found {rows}")
    heads = [_Head(index, batches) for index, batches in enumerate(inputs)]
    at_once = rows * min(_BATCHES_AT_ONCE, 1 + len(heads) // _INPUTS_PER_BATCH)
    for picks in [order] if isinstance(order, np.ndarray) else order:
        start = 0
        while start < len(picks):
            batch = _assemble(heads, _within(heads, picks[start : start + at_once]))
            start += batch.num_rows
            yield from portions(batch, rows_max=rows)


def _within(heads: Sequence[_Head], picks: Picks) -> Picks:
    """Return the first of some picks, so many that their rows have about `_BYTES_AT_ONCE`."""
    counts = rows_of_inputs(picks, len(heads))
    size = sum(int(counts[i]) * heads[i].row_bytes() for i in np.flatnonzero(counts).tolist())
    return picks[: rows_within(_BYTES_AT_ONCE, int(size), len(picks), rows_max=len(picks))]


def _assemble(heads: Sequence[_Head], picks: Picks) -> pa.RecordBatch:
    counts = rows_of_inputs(picks, len(heads))
    parts = [
        part for i in np.flatnonzero(counts).tolist() for part in heads[i].take(int(counts[i]))
    ]
    batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    if (picks[1:] >= picks[:-1]).all():
        return batch
    return batch.take(pa.array(_places(picks)))


def _places(picks: Picks) -> Picks:
    """Return where each row of the order lies among the rows of all inputs, one after the other."""
    # Numbers of 16 bits are sorted by counting.
    small = picks.astype(np.uint16) if int(picks.max(initial=0)) < _UINT16_END else picks
    row_indices = np.empty(len(picks), dtype=np.int64)
    row_indices[np.argsort(small, kind="stable")] = np.arange(len(picks))
    return row_indices


class _Head:
    """The rows of an input that come next."""

    def __init__(self, index: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._index = index
        self._batches = batches
        self._batch: pa.RecordBatch | None = None
        self._start = 0
        self._given = 0

    def row_bytes(self) -> float:
        """Return how many bytes a row of the next batch has on average; 0 behind the last one."""
        batch = self._next()
        return 0.0 if batch is None else batch.nbytes / batch.num_rows

    def _next(self) -> pa.RecordBatch | None:
        """Return the batch that the next row lies in."""
        while self._batch is None or self._start == self._batch.num_rows:
            self._batch, self._start = next(self._batches, None), 0
            if self._batch is None:
                break
        return self._batch

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield slices that hold the next so many rows together."""
        while rows > 0:
            batch = self._next()
            if batch is None:
                raise ValueError(
                    f"input {self._index} ended behind {self._given} rows, but the order wants "
                    f"{rows} more of it"
                )
            part = batch.slice(self._start, rows)
            self._start += part.num_rows
            self._given += part.num_rows
            rows -= part.num_rows
            yield part


@dataclass(frozen=True, slots=True)
class DocumentOpen:
    """The mark from which on there may be rows of a document."""

    document: str


@dataclass(frozen=True, slots=True)
class DocumentClose:
    """There are no more rows of a document."""

    document: str


MARKS = (DocumentOpen, DocumentClose)

T = TypeVar("T")


@dataclass(slots=True)
class _Document(Generic[T]):
    openings: int = 0
    closings: list[tuple[int, T]] = field(default_factory=list)
    """When each came, and what it was."""


class Documents(Generic[T]):
    """The boundaries of one merge. Memory grows with the number of marks.

    The first opening of a document is forwarded at once. Its one closing follows all rows of all
    inputs, if it was closed as often as opened; other marks are dropped. What is forwarded may be
    anything that stands for a mark, with the name of its input perhaps.

    Source: clinker, ``reconcile_document_boundaries``.
    """

    def __init__(self) -> None:
        self._documents: dict[str, _Document[T]] = {}
        self._seen = 0

    def is_forwarded(self, item: Any, whole: T) -> bool:
        """Return whether an item is forwarded now: a batch always, of the marks first openings."""
        if not isinstance(item, MARKS):
            return True
        document = self._documents.setdefault(item.document, _Document())
        if isinstance(item, DocumentOpen):
            document.openings += 1
            return document.openings == 1
        document.closings.append((self._seen, whole))
        self._seen += 1
        return False

    def closings(self) -> Iterator[T]:
        """Yield the closings that are forwarded, once all inputs have ended."""
        closings = [
            document.closings[document.openings - 1]
            for document in self._documents.values()
            if 0 < document.openings <= len(document.closings)
        ]
        for _, closed_document in sorted(closings, key=lambda each: each[0]):
            yield closed_document


def live(
    inputs: Mapping[str, OpenInput],
    *,
    width: int = WIDTH,
    capacity: int = CHANNEL_EVENTS,
    batch_rows: int = HAND_OFF_ROWS,
    batch_bytes: int = BATCH_BYTES,
    memory_bytes: int | None = None,
    counters: MergeCounters | None = None,
    join_seconds: float = JOIN_SECONDS,
) -> Generator[Delivery, None, None]:
    """Yield what is ready; inputs that have something come in turn (round robin).

    Each input keeps its order, and nothing is lost or given twice; between inputs no order is
    promised. A slow input does not delay others. A consumer that is slow, or stops, slows or stops
    all inputs: no more than ``width * (capacity + batch_rows)`` rows are taken from them and not
    handed over.

    No thread runs before the first ``next``. Closing the generator ends all of them.

    Parameters
    ----------
    inputs : mapping of str to callable
        Each returns an iterator of pyarrow.RecordBatch, opened and read in a thread of its own.
        It may hold marks of documents (`documents`), which are folded over all inputs.
    width : int
        Inputs that are open at once; others wait until one has ended.
    capacity : int
        Rows of each input that are queued.
    batch_rows, batch_bytes : int
        The most that a batch has; a larger one is cut. Rows are also cut at the capacity.
    memory_bytes : int or None
        Bytes of all inputs together that are queued before readers pause; None: only rows count.
    counters : MergeCounters or None
        To be looked at from outside.
    join_seconds : float
        How long closing waits for inputs that are silent; their threads are daemons.

    Yields
    ------
    name : str
    batch : pyarrow.RecordBatch, or a mark
        Never an empty batch.

    Raises
    ------
    Exception
        The one by which an input failed; its text or its note names the input. The others are
        released at once.
    """
    bounds = Bounds(
        width=width,
        capacity=capacity,
        batch_rows=batch_rows,
        batch_bytes=batch_bytes,
        memory_bytes=memory_bytes,
    )
    with MergeReaders(inputs, bounds, counters=counters, join_seconds=join_seconds) as readers:
        documents: Documents[Delivery] = Documents()
        while (taken := readers.take_ready()) is not None:
            if documents.is_forwarded(taken.item, taken):
                yield taken
    yield from documents.closings()


def concat(
    inputs: Mapping[str, OpenInput],
    *,
    width: int = WIDTH,
    capacity: int = CHANNEL_EVENTS,
    batch_rows: int = HAND_OFF_ROWS,
    batch_bytes: int = BATCH_BYTES,
    memory_bytes: int | None = None,
    counters: MergeCounters | None = None,
    join_seconds: float = JOIN_SECONDS,
) -> Generator[Delivery, None, None]:
    """Yield the first input to its end, then the second, and so on.

    While one is handed over, the next ``width - 1`` are read ahead, each up to its capacity. A slow
    input delays all behind it. Arguments, threads and errors are those of `live`.
    """
    bounds = Bounds(
        width=width,
        capacity=capacity,
        batch_rows=batch_rows,
        batch_bytes=batch_bytes,
        memory_bytes=memory_bytes,
    )
    with MergeReaders(inputs, bounds, counters=counters, join_seconds=join_seconds) as readers:
        documents: Documents[Delivery] = Documents()
        for name in inputs:
            while (item := readers.take_of(name)) is not None:
                taken = Delivery(name, item)
                if documents.is_forwarded(item, taken):
                    yield taken
    yield from documents.closings()


def streamed(
    items: Iterable[Any], *, capacity: int = OUTPUT_EVENTS, join_seconds: float = JOIN_SECONDS
) -> Generator[Any, None, None]:
    """Yield what a merge yields, while the merge works ahead in a thread of its own.

    It is for a sink that works beside the merge; at most ``capacity`` events wait between the two.
    Without it nothing is queued behind a merge: the merge runs in the consumer's thread.
    """
    bounds = Bounds(width=1, capacity=capacity)
    with MergeReaders({"": lambda: iter(items)}, bounds, join_seconds=join_seconds) as readers:
        while (taken := readers.take_ready()) is not None:
            yield taken[1]


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
    pressure : MemoryPressure or None
        How much memory inputs may take that are read to their end first, and whether they spill.
    folder : path or None
        Where they spill; None: where the system keeps temporary files.
    counters : MergeCounters or None
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
    """Yield the rows of one merge of a graph (`merge`), which is live if the graph lets it be."""
    node = graph.merge(name)
    if not inputs.keys() >= set(node.inputs):
        expected = f"those of the merge '{name}': {', '.join(node.inputs)}"
        raise OptionError.invalid("inputs", [*inputs], expected)
    return merge(
        {name: inputs[name] for name in node.inputs},
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
