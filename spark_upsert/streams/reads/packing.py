"""Task packing (`packed`): splits of several inputs by bytes, the heaviest first (docs/adr/0029).

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
from spark_upsert.core.threads import in_order
from spark_upsert.errors import about
from spark_upsert.merge import WIDTH, live
from spark_upsert.merge.readers import InputCounters, MergeCounters
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.streams.reads.columns import conformed, with_input
from spark_upsert.streams.reads.explain import SHOWN, counted, more
from spark_upsert.table.run.remote import shared_by

ASKED_AT_ONCE = 16
"""The most inputs that are asked at once. A thousand on an object store, asked one by one, are a
minute; each answer is one or a few requests, and threads cost little while they wait."""

OPENING_BYTES = 1 << 16
"""The cost of opening a split, in bytes that are read in the time."""


QUEUED_BYTES_MAX = 40 << 20
"""What the inputs of a task may have ready together. Beside it each reader has a batch in its hand,
of a megabyte (`core.threads`) or of its part of what one table may hold, so that all of it stays
below 64 MB, whatever rows hold."""

_NAMED_MAX = 3
"""The most inputs of a task that an explanation names."""

_RANGES_MAX = 4
"""The most ranges of splits that an explanation names of an input."""

_PIECES = 2
"""Tables in memory at once: the slices of one, each of which keeps all of it, and the next one."""

BLOCKED_TOLD_SECONDS = 10.0
"""The wait of a reader from which on the log says that the consumer of its rows is slow."""

_LOGGER = logging.getLogger(__name__)

In = TypeVar("In")
Out = TypeVar("Out")


def of_each(inputs: Mapping[str, In], ask: Callable[[In], Out]) -> dict[str, Out]:
    """Return the answer of each input of a read, by name, `ASKED_AT_ONCE` asked at once."""

    def answer(of: tuple[str, In]) -> Out:
        name, input_ = of
        with about("input", name):
            return ask(input_)

    answers = in_order(answer, inputs.items(), min(ASKED_AT_ONCE, len(inputs)))
    return dict(zip(inputs, answers, strict=True))


class InputReaders(Protocol):
    """The readers of splits, by the names of inputs."""

    def __getitem__(self, name: str, /) -> InputReader:
        """Return what reads the splits of an input."""
        ...


class InputReader(Protocol):
    """The reader of the splits of an input, in the tasks."""

    def read(self, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split."""
        ...

    def split_bytes(self, split: Any) -> int:
        """Estimate the bytes that a split reads; called where splits are planned."""
        ...


@dataclass(frozen=True, slots=True)
class InputSplit:
    """A split of one of the inputs."""

    name: str
    split: Any


Pack = tuple[InputSplit, ...]
"""The splits of a task."""

SplitBytes = Callable[[str, Any], int]
"""Estimates the bytes that a split of an input reads, by the input's name."""


def packed(splits: Sequence[tuple[InputSplit, int]], slots: int) -> list[Pack]:
    """Share splits out among at most so many packs, of about as many bytes each."""
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


def planned(splits: Mapping[str, Sequence[Any]], bytes_of: SplitBytes, slots: int) -> list[Pack]:
    """Return what each task reads, and tell the program's log at debug."""
    sized = [
        (InputSplit(name, split), bytes_of(name, split))
        for name, input_splits in splits.items()
        for split in input_splits
    ]
    if UNNAMED in splits:
        return packed(sized, len(sized))
    packs = packed(sized, slots)
    if packs and _LOGGER.isEnabledFor(logging.DEBUG):
        text = "\n".join(explain_packs(splits, packs, bytes_of))
        _LOGGER.debug("read planned, %s:\n%s", counted(len(packs), "task"), text)
    return packs


def explain_packs(
    splits: Mapping[str, Sequence[Any]], packs: Sequence[Pack], bytes_of: SplitBytes
) -> Iterator[str]:
    """Yield a line for each task: which splits of which inputs it reads, and how many bytes."""
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
        yield f"  {_told(read)}: {size:,} bytes"
    yield from more(len(packs))


def _told(read: Mapping[str, Sequence[int]]) -> str:
    """Return how many splits of which inputs a task reads, and which, counted from 0."""
    named = [
        f"{name} {counted(len(numbers), 'split')} [{_ranges(numbers)}]"
        for name, numbers in islice(read.items(), _NAMED_MAX)
    ]
    if len(read) > _NAMED_MAX:
        left_out = sum(map(len, islice(read.values(), _NAMED_MAX, None)))
        named.append(
            f"{counted(len(read) - _NAMED_MAX, 'more input')} {counted(left_out, 'split')}"
        )
    return ", ".join(named) or "nothing"


def _ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text: ``0..2, 5``; of many ranges the first."""
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
    """Yield the rows of a pack: what any input has ready first, each input in its order.

    Several inputs are read by threads of their own, at most `WIDTH` at once; a slow consumer slows
    them all (`merge.live`). Closing the iterator ends the threads.
    """
    splits: dict[str, list[Any]] = {}
    for item in pack:
        splits.setdefault(item.name, []).append(item.split)

    def rows(name: str) -> Iterator[pa.RecordBatch]:
        for split in splits[name]:
            batches = conformed(readers[name].read(split), columns)
            yield from with_input(batches, name, merge_columns)

    if len(splits) == 1:
        [name] = splits
        with about("input", name):
            yield from rows(name)
        return

    def shared_rows(name: str) -> Iterator[pa.RecordBatch]:
        with shared_by(_PIECES * min(WIDTH, len(splits))):  # In the thread of this input.
            yield from rows(name)

    inputs = {name: partial(shared_rows, name) for name in splits}
    counters = MergeCounters()
    try:
        with closing(live(inputs, memory_bytes=QUEUED_BYTES_MAX, counters=counters)) as merged:
            for handed in merged:
                yield handed.item
    finally:
        tell_read(counters.snapshot())


def tell_read(counters: Mapping[str, InputCounters]) -> None:
    """Tell the program's log how a task has read its inputs: one line, however many they are."""
    slowest = max(counters, key=lambda name: counters[name].blocked_seconds, default=None)
    if slowest is None:
        return
    blocked_s = counters[slowest].blocked_seconds
    level = logging.INFO if blocked_s >= BLOCKED_TOLD_SECONDS else logging.DEBUG
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
