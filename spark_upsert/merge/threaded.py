"""Merges over threads: live interleave, and concatenation that reads later inputs ahead."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from spark_upsert.merge.channel import CHANNEL_EVENTS, OUTPUT_EVENTS
from spark_upsert.merge.counters import MergeCounters
from spark_upsert.merge.documents import Documents
from spark_upsert.merge.readers import (
    JOIN_SECONDS,
    WIDTH,
    Bounds,
    Delivery,
    MergeReaders,
    OpenInput,
)
from spark_upsert.model.portions import BATCH_BYTES, HAND_OFF_ROWS


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
    counters : Counters or None
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
