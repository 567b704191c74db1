"""Splitters (partitioners) at work: which rows of a batch go to which replicas, and which markers.

The rows of a producer come to a replica in the order in which they were given. A round robin is
strict: it waits for a busy replica. Its turn is a value that the caller keeps, so that a batch
that is routed again from the same turn goes the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import NamedTuple, TypeAlias, assert_never

import numpy as np
import pyarrow as pa

from spark_upsert.flow.expansion import Splitter, SplitterKind
from spark_upsert.flow.hashing import hash_codes
from spark_upsert.model.arrays import Positions

RoundRobinState: TypeAlias = tuple[int, ...]
"""The channel that is next in each splitter of a chain (`Splitter.iter_chain`)."""


class Marker(Enum):
    """Marks that travel between rows."""

    WINDOW = "window"
    """The end of a group of rows."""
    BARRIER = "barrier"
    """The end of an epoch: an aligning operator needs it from each input."""
    FINAL = "final"
    """The end of all rows."""


class RowTargets(NamedTuple):
    """The targets of rows: ``rows[i]`` of the batch goes to ``targets[i]``; by broadcast, to all.

    The rows of one target ascend.
    """

    rows: Positions
    targets: Positions
    """Places in `Splitter.iter_replicas`."""
    turn: RoundRobinState
    """The turn for the next batch."""


def first_turn(splitter: Splitter) -> RoundRobinState:
    """Return the turn before any row: each round robin at its start."""
    return tuple(each.start for each in splitter.iter_chain())


def route(splitter: Splitter, batch: pa.RecordBatch, turn: RoundRobinState) -> RowTargets:
    """Decide where each row goes.

    Parameters
    ----------
    splitter : Splitter
        A splitter of a physical graph; the splitters chained to it decide, too.
    batch : pyarrow.RecordBatch, n rows
        A batch with the columns of the producer.
    turn : tuple of int
        The turn that the batch before left, or `first_turn`.
    """
    rows, channels, next_channel = _chosen(splitter, batch, turn[0])
    inner = [each for each in splitter.targets if isinstance(each, Splitter)]
    if not inner:
        return RowTargets(rows, channels, (next_channel,))
    return _routed_on(inner, batch, rows, channels, (next_channel, *turn[1:]))


def _chosen(
    splitter: Splitter, batch: pa.RecordBatch, turn: int
) -> tuple[Positions, Positions, int]:
    """Return the rows with their channels of a splitter, and the channel that is next."""
    count, width = batch.num_rows, splitter.width
    rows = np.arange(count, dtype=np.int64)
    if width == 1:
        return rows, np.zeros(count, dtype=np.int64), turn
    match splitter.kind:
        case SplitterKind.HASH:
            codes = hash_codes([batch[name] for name in splitter.attributes])
            return rows, (codes % np.uint64(width)).astype(np.int64), turn
        case SplitterKind.BROADCAST:
            channels = np.arange(width, dtype=np.int64)
            return np.tile(rows, width), np.repeat(channels, count), turn
        case SplitterKind.ROUND_ROBIN:
            return rows, (rows + turn) % width, (turn + count) % width
        case _:
            assert_never(splitter.kind)


def _routed_on(
    inner: Sequence[Splitter],
    batch: pa.RecordBatch,
    rows: Positions,
    channels: Positions,
    turn: RoundRobinState,
) -> RowTargets:
    """Let the splitter of each channel route the rows that came to it.

    Parameters
    ----------
    turn : tuple of int
        The turns of the splitter before them and of all of them, before these rows.
    """
    found_rows, found_targets, turns = [], [], [turn[:1]]
    length = (len(turn) - 1) // len(inner)
    first_target = 0
    for channel, splitter in enumerate(inner):
        own = rows[channels == channel]
        begin = 1 + channel * length
        routed = route(splitter, batch.take(pa.array(own)), turn[begin : begin + length])
        found_rows.append(own[routed.rows])
        found_targets.append(routed.targets + first_target)
        turns.append(routed.turn)
        first_target += sum(1 for _ in splitter.iter_replicas())
    return RowTargets(
        np.concatenate(found_rows), np.concatenate(found_targets), tuple(chain.from_iterable(turns))
    )


def iter_parts(batch: pa.RecordBatch, routed: RowTargets) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each target that gets any, by ascending target."""
    # There are fewer targets than 2**16 (`expansion.REPLICAS_MAX`), and numbers of 16 bits are
    # sorted by their digits, in a fifth of the time.
    targets = routed.targets.astype(np.uint16)
    is_sorted = bool((targets[1:] >= targets[:-1]).all())
    rows = routed.rows if is_sorted else routed.rows[np.argsort(targets, kind="stable")]
    end = 0
    for target, count in enumerate(np.bincount(routed.targets).tolist()):
        begin, end = end, end + count
        if count == batch.num_rows and count:
            yield target, batch
        elif count:
            yield target, batch.take(pa.array(rows[begin:end]))


def passes(splitter: Splitter, marker: Marker) -> bool:
    """Say whether a marker goes to all replicas behind a splitter; else it goes to none.

    The kind of the splitter does not matter. Windows end at a splitter with an owner in a region:
    the rows of one channel are no group to a consumer that takes the rows of all channels.
    """
    return splitter.passes_windows or marker is not Marker.WINDOW
