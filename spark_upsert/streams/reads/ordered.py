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
from spark_upsert.streams.reads.columns import conform_batches, with_input, with_numbers
from spark_upsert.streams.reads.packing import InputReader, InputReaders, map_inputs

SNAPSHOT_STEPS = 1 << 16
"""Snapshots are cut at multiples of 1/65536 of the hash space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedStep:
    """A step in an exact order; rows and split are computed on demand."""

    rows: Callable[[], int]
    """Counts the step's rows."""
    split: Callable[[], Any]
    """Returns the step's single split; None if it has no rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStep(CountedStep):
    """A step in a stream."""

    after: Callable[[], Position]
    """Returns the position after the step."""


def refuse_gaps(*, fail_on_data_loss: bool) -> None:
    """Refuse ``failOnDataLoss=false`` in an exact order, which counts all rows."""
    if not fail_on_data_loss:
        raise OptionError(
            "failOnDataLoss=false has no meaning in an exact order, which a gap would change.",
            hint="drop it, or leave out 'merge' and 'interleaveSeed'.",
            option="failOnDataLoss",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShare:
    """One input's part in a passage."""

    index: int
    """Its index among all inputs, as declared."""
    name: str
    splits: tuple[Any, ...]
    """Its steps' splits, in order."""
    skip: int
    """Rows already delivered from the first split."""
    rows: int | None
    """Row count to read; None: all rows."""
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A section of an exact order's sequence, read by one task."""

    shares: tuple[InputShare, ...]
    order: Order
    inputs: int
    first: int
    """Its first row's number."""


@runtime_checkable
class SteppedRead(Protocol):
    """A batch input whose row order does not depend on its splits."""

    def steps(self) -> Sequence[CountedStep]:
        """Return all steps."""
        ...


def steps_of(name: str, read: Any) -> Sequence[CountedStep]:
    """Return a batch input's steps; raises `OptionError` if it has no fixed row order."""
    if not isinstance(read, SteppedRead):
        raise without_order(name)
    return read.steps()


def splits_in_order(steps: Iterable[CountedStep]) -> tuple[Any, ...]:
    """Return the steps' splits; steps without rows may have none."""
    return tuple(split for step in steps if (split := step.split()) is not None)


def whole_passage(inputs: Mapping[str, Any], order: Order) -> Passage:
    """Return a passage for a complete batch read in an exact order; raises as `steps_of` does."""
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
    shares = map_inputs(numbered, share).values()
    return Passage(shares=tuple(shares), order=order, inputs=len(inputs), first=0)


def without_order(name: str) -> OptionError:
    """Return the error for an input without support for exact orders."""
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
    """Yield a passage's rows in order."""
    is_concat = isinstance(passage.order, Concat)
    read = _rows if is_concat else _rows_and_no_more
    rows = {
        share.index: with_input(
            conform_batches(read(readers[share.name], share), columns), share.name, merge_columns
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
    """Return row counts reproducing the planned order, and the total row count.

    An input with more data gets the total as its count.
    """
    row_counts = {share.index: share.rows or 0 for share in passage.shares}
    total = sum(row_counts.values())
    endless = {share.index for share in passage.shares if share.has_more}
    counts = [total if i in endless else row_counts.get(i, 0) for i in range(passage.inputs)]
    return counts, total


def _rows(reader: InputReader, share: InputShare) -> Iterator[pa.RecordBatch]:
    """Yield an input's rows in a passage; raises `DataLossError` if some are missing."""
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
    """Yield an input's rows; requesting more raises `OptionError`, because the order differs."""
    yield from _rows(reader, share)
    raise OptionError(
        f"the checkpoint says that the input '{share.name}' gives {share.rows} rows, and that an "
        "order is taken which has more of it.",
        hint="the checkpoint was altered; give the query a new checkpointLocation.",
        input=share.name,
    )
