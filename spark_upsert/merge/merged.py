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
from spark_upsert.core.threads import BATCH_BYTES, HAND_OFF_ROWS, rows_within, split_batch
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

T = TypeVar("T")


_INPUTS_PER_BATCH = 64
"""Slices that a batch can join cheaply; for more inputs, more batches are joined together."""

_BATCHES_AT_ONCE = 32
"""Maximum batches per join: 65 536 rows by default, 10 times faster for 1 000 inputs in turn."""

_BYTES_AT_ONCE = 4 * BATCH_BYTES
"""Bytes per join; the join briefly needs twice as many."""

_UINT16_END = 1 << 16


def arrange(
    inputs: Sequence[Iterator[pa.RecordBatch]],
    order: Picks | Iterable[Picks],
    *,
    rows: int = HAND_OFF_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield rows from several inputs in an exact order.

    Parameters
    ----------
    inputs : sequence of iterators of pyarrow.RecordBatch
        All with one schema; batches of any size. Batches after the last needed row are not read.
    order : array of int64, or an iterable of such arrays
        Input index for each output row (`input_order.advance`, `iter_picks`).
    rows : int
        Maximum rows per output batch. Batches with several rows also have at most `BATCH_BYTES`.

    Yields
    ------
    pyarrow.RecordBatch
        Never an empty batch. A batch ends at the latest where an array of the order ends.

    Raises
    ------
    ValueError
        An input ends before the order does.
    """
    if rows < 1:
        raise ValueError(f"a batch holds at least one row, found {rows}")
    heads = [_InputCursor(index, batches) for index, batches in enumerate(inputs)]
    at_once = rows * min(_BATCHES_AT_ONCE, 1 + len(heads) // _INPUTS_PER_BATCH)
    for picks in [order] if isinstance(order, np.ndarray) else order:
        start = 0
        while start < len(picks):
            batch = _assemble(heads, _limit_bytes(heads, picks[start : start + at_once]))
            start += batch.num_rows
            yield from split_batch(batch, rows_max=rows)


def _limit_bytes(heads: Sequence[_InputCursor], picks: Picks) -> Picks:
    """Return a prefix of picks whose rows have about `_BYTES_AT_ONCE`."""
    counts = rows_of_inputs(picks, len(heads))
    size = sum(int(counts[i]) * heads[i].row_bytes() for i in np.flatnonzero(counts).tolist())
    return picks[: rows_within(_BYTES_AT_ONCE, int(size), len(picks), rows_max=len(picks))]


def _assemble(heads: Sequence[_InputCursor], picks: Picks) -> pa.RecordBatch:
    counts = rows_of_inputs(picks, len(heads))
    parts = [
        part for i in np.flatnonzero(counts).tolist() for part in heads[i].take(int(counts[i]))
    ]
    batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
    if (picks[1:] >= picks[:-1]).all():
        return batch
    return batch.take(pa.array(_output_indices(picks)))


def _output_indices(picks: Picks) -> Picks:
    """Return each output row's index in the concatenated inputs."""
    # 16-bit numbers are radix-sorted, which is faster.
    small = picks.astype(np.uint16) if int(picks.max(initial=0)) < _UINT16_END else picks
    row_indices = np.empty(len(picks), dtype=np.int64)
    row_indices[np.argsort(small, kind="stable")] = np.arange(len(picks))
    return row_indices


class _InputCursor:
    """Read position in an input."""

    def __init__(self, index: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._index = index
        self._batches = batches
        self._batch: pa.RecordBatch | None = None
        self._start = 0
        self._rows_taken = 0

    def row_bytes(self) -> float:
        """Return the average row size in the next batch; 0 at the end."""
        batch = self._next_batch()
        return 0.0 if batch is None else batch.nbytes / batch.num_rows

    def _next_batch(self) -> pa.RecordBatch | None:
        """Return the next row's batch; None at the end."""
        while self._batch is None or self._start == self._batch.num_rows:
            self._batch, self._start = next(self._batches, None), 0
            if self._batch is None:
                break
        return self._batch

    def take(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Yield slices with the next ``rows`` rows in total."""
        while rows > 0:
            batch = self._next_batch()
            if batch is None:
                raise ValueError(
                    f"input {self._index} ended behind {self._rows_taken} rows, but the order wants "
                    f"{rows} more of it"
                )
            part = batch.slice(self._start, rows)
            self._start += part.num_rows
            self._rows_taken += part.num_rows
            rows -= part.num_rows
            yield part


@dataclass(frozen=True, slots=True)
class DocumentOpen:
    """Mark before the first rows in a document."""

    document: str


@dataclass(frozen=True, slots=True)
class DocumentClose:
    """Mark after the last rows in a document."""

    document: str


MARKS = (DocumentOpen, DocumentClose)


@dataclass(slots=True)
class _Document(Generic[T]):
    openings: int = 0
    closings: list[tuple[int, T]] = field(default_factory=list)
    """Arrival number and item per closing mark."""


class Documents(Generic[T]):
    """Document boundaries in one merge. Memory grows with the mark count.

    A document's first opening is forwarded immediately. A single closing follows the rows from all
    inputs, if there are at least as many closings as openings; other marks are dropped. The
    forwarded item may be a wrapper, such as a `Delivery` with the input name.

    Source: clinker, ``reconcile_document_boundaries``.
    """

    def __init__(self) -> None:
        self._documents: dict[str, _Document[T]] = {}
        self._seen = 0

    def is_forwarded(self, item: Any, whole: T) -> bool:
        """Return whether an item is forwarded now: batches, and first openings."""
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
        """Yield the forwarded closings, after all inputs have ended."""
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
    """Yield items as they are ready; inputs with items take turns (round robin).

    Each input keeps its order, without loss or duplicates; no order is guaranteed between inputs. A
    slow input does not delay others. A slow or stopped consumer slows or stops all inputs: at most
    ``width * (capacity + batch_rows)`` rows are read from them and not yet yielded.

    No thread runs before the first ``next``. Closing the generator ends all threads.

    Parameters
    ----------
    inputs : mapping of str to callable
        Each returns an iterator of pyarrow.RecordBatch, opened and read in a reader thread. It may
        contain document marks, which are merged over all inputs (`Documents`).
    width : int
        Maximum open inputs; others wait until one has ended.
    capacity : int
        Maximum queued rows per input.
    batch_rows, batch_bytes : int
        Maximum per batch; larger batches are split. ``capacity`` also limits the rows.
    memory_bytes : int or None
        Limit for queued bytes over all inputs, near which readers pause; None: no limit.
    counters : MergeCounters or None
        Counters that other threads can read.
    join_seconds : float
        Seconds that closing waits for silent inputs; their threads are daemons.

    Yields
    ------
    name : str
    batch : pyarrow.RecordBatch, or a mark
        Never an empty batch.

    Raises
    ------
    Exception
        An input's error; its text or its note names the input. Other inputs are released
        immediately.
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

    Meanwhile the next ``width - 1`` inputs are read ahead, each up to its capacity. A slow input
    delays all later inputs. For arguments, threads and errors see `live`.
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
    """Yield a merge's items, while the merge works ahead in another thread.

    For a sink that works in parallel with the merge; at most ``capacity`` events are queued between
    them. Without it, the merge runs in the consumer's thread and nothing is queued after it.
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
    """Merge all inputs into one stream.

    ============================  ===============================================================
    ``MergeConfig()``             one input after the other; later inputs are read ahead
    ``mode=INTERLEAVE``           items as they are ready, through bounded channels (`live`)
    the same, not ``is_live``     a row from each input in turn; all inputs are read to their end
                                  first
    ``mode=INTERLEAVE, seed=42``  pseudorandom, by seed; all inputs are read to their end first
    ============================  ===============================================================

    Parameters
    ----------
    inputs : mapping of str to callable
        Each returns an iterator of pyarrow.RecordBatch, and possibly document marks. Exact orders
        depend on the mapping order.
    config : MergeConfig or None
        None: concat.
    is_live : bool
        Whether interleave without a seed is live; `merge_in` takes it from a graph.
    width : int
        Maximum inputs read in parallel.
    rows : int
        Maximum rows per batch.
    pressure : MemoryPressure or None
        Memory limit and spilling for inputs that are read to their end first.
    folder : path or None
        Parent folder for spilled inputs; None: see `SpillFolder`.
    counters : MergeCounters or None
        Counters that other threads can read.

    Yields
    ------
    pyarrow.RecordBatch, or a mark
        Document openings precede their rows if the merge is live or concat; other marks follow
        all rows.

    Raises
    ------
    SchemaError
        Two inputs have different columns; the error names both.
    Exception
        An input's error; its text or its note names the input.
    """
    config = config or MergeConfig()
    order, schema = config.order(is_live=is_live), OneSchema()
    if order is not None and not isinstance(order, Concat):
        yield from _merge_exact(inputs, order, width, rows, pressure, folder, counters)
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
    """Run a named merge from a graph (see `merge`); the graph decides whether it is live."""
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


def _merge_exact(
    inputs: Mapping[str, OpenInput],
    order: Order,
    width: int,
    rows: int,
    pressure: MemoryPressure | None,
    folder: Path | None,
    counters: MergeCounters | None,
) -> Generator[Any, None, None]:
    """Yield rows in an order that depends on the row counts, so all inputs are read first."""
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
