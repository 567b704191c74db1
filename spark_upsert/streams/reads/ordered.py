"""Input steps, and an exact order's single task (`Passage`): counted rows in a fixed order.

A step is an epoch or a snapshot's hash range; its rows and their order do not depend on batch
bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from spark_upsert.errors import DataLossError, OptionError, about
from spark_upsert.merge import Concat, Order, arrange, iter_picks
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.reads.columns import conformed, with_input, with_numbers
from spark_upsert.streams.reads.packing import InputReader, InputReaders, of_each

SNAPSHOT_STEPS = 1 << 16
"""A snapshot is cut at multiples of 1/65536 of the hashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedStep:
    """The steps that an exact order takes rows of; each is found out where it is asked for."""

    rows: Callable[[], int]
    """How many rows reading it yields."""
    split: Callable[[], Any]
    """The one split that has them; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStep(CountedStep):
    """A step of a stream."""

    after: Callable[[], Position]
    """The position behind it."""


def refuse_gaps(*, fail_on_data_loss: bool) -> None:
    """Refuse to leave out rows where other rows are counted."""
    if not fail_on_data_loss:
        raise OptionError(
            "failOnDataLoss=false has no meaning in an exact order, which a gap would change.",
            hint="drop it, or leave out 'merge' and 'interleaveSeed'.",
            option="failOnDataLoss",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShare:
    """The part of one input in a piece of the sequence."""

    index: int
    """The index among all inputs, as they were declared."""
    name: str
    splits: tuple[Any, ...]
    """The splits of its steps, in order."""
    skip: int
    """Rows of the first of them that are delivered."""
    rows: int | None
    """How many it gives; None: all."""
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of the sequence: what the one task of an exact order reads."""

    shares: tuple[InputShare, ...]
    order: Order
    inputs: int
    first: int
    """The number of its first row."""


@runtime_checkable
class SteppedRead(Protocol):
    """The part of an input with one order of rows that a batch reads."""

    def steps(self) -> Sequence[CountedStep]:
        """Return all there is to read, step by step."""
        ...


def steps_of(name: str, read: Any) -> Sequence[CountedStep]:
    """Return the steps of what a batch reads of an input; what else it raises names none."""
    if not isinstance(read, SteppedRead):
        raise without_order(name)
    return read.steps()


def splits_in_order(steps: Iterable[CountedStep]) -> tuple[Any, ...]:
    """Return the splits of steps; one without rows may have none."""
    return tuple(split for step in steps if (split := step.split()) is not None)


def whole_passage(inputs: Mapping[str, Any], order: Order) -> Passage:
    """Return a batch read of some inputs in an exact order; raises as `steps_of` does."""
    is_counted = not isinstance(order, Concat)

    def share(of: tuple[int, str, Any]) -> InputShare:
        index, name, read = of
        steps = steps_of(name, read)
        return InputShare(
            index=index,
            name=name,
            splits=splits_in_order(steps),
            skip=0,
            rows=sum(step.rows() for step in steps) if is_counted else None,
            has_more=False,
        )

    numbered = {name: (index, name, input_) for index, (name, input_) in enumerate(inputs.items())}
    shares = of_each(numbered, share).values()
    return Passage(shares=tuple(shares), order=order, inputs=len(inputs), first=0)


def without_order(name: str) -> OptionError:
    """Return the error of an input that no exact order can have."""
    return OptionError(
        f"the input '{name}' cannot be read in an exact order: what it delivers, and in which "
        "order, may depend on where a batch ends.",
        hint="leave out 'merge' and 'interleaveSeed' to take what is ready first.",
        input=name,
    )


# -- reading, in the task -----------------------------------------------------------------


def read_passage(
    readers: InputReaders,
    passage: Passage,
    merge_columns: tuple[str, ...],
    columns: pa.Schema | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece in their order."""
    is_concat = isinstance(passage.order, Concat)
    read = _rows if is_concat else _rows_and_no_more
    rows = {
        share.index: with_input(
            conformed(read(readers[share.name], share), columns), share.name, merge_columns
        )
        for share in passage.shares
    }
    batches: Iterable[pa.RecordBatch]
    if is_concat:
        batches = chain.from_iterable(rows.values())
    else:
        batches = arrange(
            [rows.get(index, iter(())) for index in range(passage.inputs)],
            (picks for picks, _ in iter_picks(passage.order, *_counts(passage))),
        )
    yield from with_numbers(iter(batches), passage.first, merge_columns)


def _counts(passage: Passage) -> tuple[list[int], int]:
    """Return counts that mean the order that was planned, and how many rows it has."""
    row_counts = {share.index: share.rows or 0 for share in passage.shares}
    total = sum(row_counts.values())
    endless = {share.index for share in passage.shares if share.has_more}
    counts = [total if i in endless else row_counts.get(i, 0) for i in range(passage.inputs)]
    return counts, total


def _rows(reader: InputReader, share: InputShare) -> Iterator[pa.RecordBatch]:
    """Yield the rows that an input gives."""
    skip, left = share.skip, share.rows
    with about("input", share.name):
        for split in share.splits:
            for batch in reader.read(split):
                if left == 0:
                    return
                part = batch.slice(skip, left)
                skip -= min(skip, batch.num_rows)
                if left is not None:
                    left -= part.num_rows
                if part.num_rows:
                    yield part
        if left:
            raise DataLossError(
                f"{left} of the {share.rows} rows that were counted are gone.",
                hint="something has changed what lay there; restore it, or give the query a new "
                "checkpointLocation.",
            )


def _rows_and_no_more(reader: InputReader, share: InputShare) -> Iterator[pa.RecordBatch]:
    """Yield the rows that an input gives; asking for more is an error: the order is another one."""
    yield from _rows(reader, share)
    raise OptionError(
        f"the checkpoint says that the input '{share.name}' gives {share.rows} rows, and that an "
        "order is taken which has more of it.",
        hint="the checkpoint was altered; give the query a new checkpointLocation.",
        input=share.name,
    )
