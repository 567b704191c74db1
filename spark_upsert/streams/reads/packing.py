"""Task packing (`pack_splits`): splits of several inputs by bytes, the heaviest first (docs/adr/0029).

`read_pack` reads a task's inputs concurrently within a memory bound.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heapreplace
from itertools import islice
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from spark_upsert.core.durations import Fields
from spark_upsert.core.threads import map_in_order
from spark_upsert.errors import about
from spark_upsert.merge import WIDTH, live
from spark_upsert.merge.readers import InputCounters, MergeCounters
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.streams.reads.columns import conform_batches, with_input
from spark_upsert.streams.reads.explain import SHOWN, format_count, format_omitted
from spark_upsert.table.run.remote import share_limits

CONCURRENT_REQUESTS = 16
"""Maximum inputs queried concurrently.

A thousand inputs in object storage, queried one by one, take a minute; each query is one or a few
requests, and waiting threads cost little.
"""

OPENING_BYTES = 1 << 16
"""Cost of opening a split, as bytes readable in the same time."""


QUEUED_BYTES_MAX = 40 << 20
"""Memory bound for a task's queued batches.

In addition, each reader holds a batch up to a megabyte (`core.threads`) or its share of a table's
memory bound: the total stays below 64 MB, whatever the row size.
"""

_NAMED_MAX = 3
"""Maximum inputs named per task in an explanation."""

_RANGES_MAX = 4
"""Maximum split ranges shown per input in an explanation."""

_PIECES = 2
"""Arrow tables in memory per reader: one whose slices are in use, and the next one."""

BLOCKED_LOG_SECONDS = 10.0
"""A reader's wait from which the log reports a slow consumer at info."""

_LOGGER = logging.getLogger(__name__)

In = TypeVar("In")
Out = TypeVar("Out")


def map_inputs(inputs: Mapping[str, In], ask: Callable[[In], Out]) -> dict[str, Out]:
    """Call a function for each input, `CONCURRENT_REQUESTS` concurrently; return the results by name."""

    def answer(of: tuple[str, In]) -> Out:
        name, input_ = of
        with about("input", name):
            return ask(input_)

    answers = map_in_order(answer, inputs.items(), min(CONCURRENT_REQUESTS, len(inputs)))
    return dict(zip(inputs, answers, strict=True))


class InputReaders(Protocol):
    """Split readers by input name."""

    def __getitem__(self, name: str, /) -> InputReader:
        """Return an input's split reader."""
        ...


class InputReader(Protocol):
    """Reads an input's splits in the tasks."""

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows."""
        ...

    def split_bytes(self, split: Any) -> int:
        """Estimate the bytes read by a split; called in the planning process."""
        ...


@dataclass(frozen=True, slots=True)
class InputSplit:
    """A named input's split."""

    name: str
    split: Any


Pack = tuple[InputSplit, ...]
"""One task's splits."""

SplitBytes = Callable[[str, Any], int]
"""Estimates the bytes read by a split; called with the input's name and the split."""


def pack_splits(splits: Sequence[tuple[InputSplit, int]], slots: int) -> list[Pack]:
    """Distribute splits over at most ``slots`` packs with similar byte counts."""
    if slots >= len(splits):
        return [(split,) for split, _ in splits]
    heaviest = sorted(range(len(splits)), key=lambda index: (-splits[index][1], index))
    loads = [(0, number) for number in range(slots)]
    heapify(loads)
    chosen: list[list[int]] = [[] for _ in loads]
    for index in heaviest:
        load, number = loads[0]
        chosen[number].append(index)
        heapreplace(loads, (load + splits[index][1] + OPENING_BYTES, number))
    return [tuple(splits[index][0] for index in sorted(indices)) for indices in chosen]


def plan_packs(splits: Mapping[str, Sequence[Any]], bytes_of: SplitBytes, slots: int) -> list[Pack]:
    """Return the splits per task, and log them at debug."""
    sized = [
        (InputSplit(name, split), bytes_of(name, split))
        for name, input_splits in splits.items()
        for split in input_splits
    ]
    if UNNAMED in splits:
        return pack_splits(sized, len(sized))
    packs = pack_splits(sized, slots)
    if packs and _LOGGER.isEnabledFor(logging.DEBUG):
        text = "\n".join(explain_packs(splits, packs, bytes_of))
        _LOGGER.debug("read planned, %s:\n%s", format_count(len(packs), "task"), text)
    return packs


def explain_packs(
    splits: Mapping[str, Sequence[Any]], packs: Sequence[Pack], bytes_of: SplitBytes
) -> Iterator[str]:
    """Yield a line for each task: its splits by input, and its byte count."""
    numbers = {
        (name, id(split)): number
        for name, input_splits in splits.items()
        for number, split in enumerate(input_splits)
    }
    for pack in packs[:SHOWN]:
        read: dict[str, list[int]] = {}
        for item in pack:
            read.setdefault(item.name, []).append(numbers[item.name, id(item.split)])
        size = sum(bytes_of(packed_split.name, packed_split.split) for packed_split in pack)
        yield f"  {_splits_text(read)}: {size:,} bytes"
    yield from format_omitted(len(packs))


def _splits_text(read: Mapping[str, Sequence[int]]) -> str:
    """Return a task's split counts and split numbers by input, as text; numbers start at 0."""
    named = [
        f"{name} {format_count(len(numbers), 'split')} [{_ranges(numbers)}]"
        for name, numbers in islice(read.items(), _NAMED_MAX)
    ]
    if len(read) > _NAMED_MAX:
        left_out = sum(map(len, islice(read.values(), _NAMED_MAX, None)))
        named.append(
            f"{format_count(len(read) - _NAMED_MAX, 'more input')} {format_count(left_out, 'split')}"
        )
    return ", ".join(named) or "nothing"


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text: ``0..2, 5``; omits ranges after the first few."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first}..{last}" if last > first else f"{first}" for first, last in ranges]
    return ", ".join([*texts[:_RANGES_MAX], *["..."][: len(texts) - _RANGES_MAX]])


def read_pack(
    readers: InputReaders,
    pack: Pack,
    merge_columns: Sequence[str],
    columns: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a pack's rows as any input has them ready, each input in its order.

    Several inputs are read by separate threads, at most `WIDTH` concurrently; a slow consumer slows
    all inputs (`merge.live`). Closing the iterator ends the threads.
    """
    splits: dict[str, list[Any]] = {}
    for item in pack:
        splits.setdefault(item.name, []).append(item.split)

    def rows(name: str) -> Iterator[pa.RecordBatch]:
        for split in splits[name]:
            batches = conform_batches(readers[name].read(split), columns)
            yield from with_input(batches, name, merge_columns)

    if len(splits) == 1:
        [name] = splits
        with about("input", name):
            yield from rows(name)
        return

    def shared_rows(name: str) -> Iterator[pa.RecordBatch]:
        with share_limits(_PIECES * min(WIDTH, len(splits))):  # In the thread of this input.
            yield from rows(name)

    inputs = {name: partial(shared_rows, name) for name in splits}
    counters = MergeCounters()
    try:
        with closing(live(inputs, memory_bytes=QUEUED_BYTES_MAX, counters=counters)) as merged:
            for handed in merged:
                yield handed.item
    finally:
        log_counters(counters.snapshot())


def log_counters(counters: Mapping[str, InputCounters]) -> None:
    """Log how a task has read its inputs, in one line."""
    slowest = max(counters, key=lambda name: counters[name].blocked_seconds, default=None)
    if slowest is None:
        return
    blocked_s = counters[slowest].blocked_seconds
    level = logging.INFO if blocked_s >= BLOCKED_LOG_SECONDS else logging.DEBUG
    if not _LOGGER.isEnabledFor(level):
        return
    counter = counters.values()
    fields = Fields(
        inputs=len(counters),
        finished=sum(one.is_finished for one in counter),
        rows=sum(one.handed for one in counter),
        queued_peak=max(one.queued_peak for one in counter),
        blocked_s=round(blocked_s, 1),
        most_blocked=slowest,
    )
    _LOGGER.log(level, "merge read: %s", fields)
