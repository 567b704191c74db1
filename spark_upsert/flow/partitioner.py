"""Routing at run time: row and marker targets, port addresses, replica outlets.

A round robin is strict: the caller stores its turn, so that a batch routed again goes the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import chain
from typing import NamedTuple, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.core.keys import Positions
from spark_upsert.flow.expand import Physical, Replica, Splitter, SplitterKind
from spark_upsert.flow.graph import hash_codes

RoundRobinState: TypeAlias = tuple[int, ...]
"""Next channel for each splitter in a chain (`Splitter.iter_chain`)."""


class Marker(Enum):
    """Markers between rows."""

    WINDOW = "window"
    """End of a row group."""
    BARRIER = "barrier"
    """Epoch end: an aligning operator waits for it from every input."""
    FINAL = "final"
    """End of all rows."""


class RowTargets(NamedTuple):
    """Row routing: ``rows[i]`` goes to ``targets[i]``; a broadcast repeats rows for every target.

    Row indices ascend within a target.
    """

    rows: Positions
    targets: Positions
    """Indices in `Splitter.iter_replicas`."""
    turn: RoundRobinState
    """Round-robin state for the next batch."""


def first_turn(splitter: Splitter) -> RoundRobinState:
    """Return the initial round-robin state."""
    return tuple(link.start for link in splitter.iter_chain())


def route(splitter: Splitter, batch: pa.RecordBatch, turn: RoundRobinState) -> RowTargets:
    """Return the targets for all rows in a batch."""
    rows, channels, next_channel = _choose_channels(splitter, batch, turn[0])
    inner = [target for target in splitter.targets if isinstance(target, Splitter)]
    if not inner:
        return RowTargets(rows, channels, (next_channel,))
    return _route_inner(inner, batch, rows, channels, (next_channel, *turn[1:]))


def _choose_channels(
    splitter: Splitter, batch: pa.RecordBatch, turn: int
) -> tuple[Positions, Positions, int]:
    """Return rows with their channels, and the next round-robin channel."""
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


def _route_inner(
    inner: Sequence[Splitter],
    batch: pa.RecordBatch,
    rows: Positions,
    channels: Positions,
    turn: RoundRobinState,
) -> RowTargets:
    """Route each channel's rows through its nested splitter."""
    found_rows, found_targets, turns = [], [], [turn[:1]]
    length = (len(turn) - 1) // len(inner)
    first_target = 0
    for channel, splitter in enumerate(inner):
        routed_rows = rows[channels == channel]
        begin = 1 + channel * length
        routed = route(splitter, batch.take(pa.array(routed_rows)), turn[begin : begin + length])
        found_rows.append(routed_rows[routed.rows])
        found_targets.append(routed.targets + first_target)
        turns.append(routed.turn)
        first_target += sum(1 for _ in splitter.iter_replicas())
    return RowTargets(
        np.concatenate(found_rows), np.concatenate(found_targets), tuple(chain.from_iterable(turns))
    )


def iter_parts(batch: pa.RecordBatch, routed: RowTargets) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each target's rows by ascending target, without empty targets."""
    # There are fewer targets than 2**16 (`expand.REPLICAS_MAX`), and 16-bit numbers are
    # radix-sorted in a fifth of the time.
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
    """Return whether a marker goes to all replicas after a splitter; otherwise it goes to none.

    The splitter kind does not matter. Windows end at a splitter whose owner is in a region, because
    one channel's rows are only part of the consumer's input.
    """
    return splitter.passes_windows or marker is not Marker.WINDOW


READ = ""
"""Port name for the rows that a source reads."""


class Port(NamedTuple):
    """Input port of a replica."""

    replica: str
    name: str


@dataclass(frozen=True)
class AddressBook:
    """Addresses in a physical graph; a port's replicas have consecutive addresses."""

    physical: Physical

    @cached_property
    def ports(self) -> tuple[Port, ...]:
        """Ports indexed by address."""
        return tuple(
            Port(replica.name, port)
            for logical, placed in self.physical.graph.places.items()
            for port in (placed.operator.inputs or (READ,))
            for replica in self.physical.replicas_of[logical]
        )

    @cached_property
    def address(self) -> dict[Port, int]:
        """Addresses by port."""
        return {port: address for address, port in enumerate(self.ports)}

    @cached_property
    def leading(self) -> dict[str, tuple[int, ...]]:
        """Target addresses by producer replica name."""
        leading_addresses: dict[str, list[int]] = {name: [] for name in self.physical.replica}
        for connection in self.physical.connections:
            leading_addresses[connection.producer].append(
                self.address[Port(connection.consumer, connection.port)]
            )
        return {name: tuple(addresses) for name, addresses in leading_addresses.items()}


Addresses: TypeAlias = npt.NDArray[np.int32]
"""Target address per row."""


class Parcel(NamedTuple):
    """Rows with one common target address, or an address per row."""

    batch: pa.RecordBatch
    to: int | Addresses


def by_address(parcel: Parcel) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows for each address, by ascending address."""
    batch, to = parcel
    if isinstance(to, int):
        yield to, batch
        return
    if not len(to):
        return
    # Addresses are few and small: counting is cheaper than sorting.
    least = int(to.min())
    above = to - least
    if not above.any():
        yield least, batch
        return
    is_there = np.bincount(above) > 0
    indices = np.flatnonzero(is_there) + least
    targets = (np.cumsum(is_there) - 1)[above]
    routed = RowTargets(np.arange(len(to)), targets, ())
    yield from ((int(indices[index]), part) for index, part in iter_parts(batch, routed))


class Outlet:
    """Replica output to an operator's port, in one or several channels.

    Parameters
    ----------
    addresses : tuple of int
        Target addresses; with a splitter, in `Splitter.iter_replicas` order.
    splitter : Splitter or None
        None: all rows go to the single address.
    turn : int
        Offset added to each round-robin start.
    """

    def __init__(
        self, addresses: tuple[int, ...], splitter: Splitter | None = None, *, turn: int = 0
    ) -> None:
        self.addresses = addresses
        self._splitter = splitter
        self._of_target = np.array(addresses, dtype=np.int32)
        chain = () if splitter is None else tuple(splitter.iter_chain())
        starts = () if splitter is None else first_turn(splitter)
        self._turn = tuple(
            (start + turn) % link.width for start, link in zip(starts, chain, strict=True)
        )
        self._copies = any(link.kind is SplitterKind.BROADCAST for link in chain)

    def send(self, batch: pa.RecordBatch) -> Iterator[Parcel]:
        """Yield a batch's rows with their addresses; a broadcast yields one parcel per target."""
        if self._splitter is None:
            yield Parcel(batch, self.addresses[0])
            return
        routed = route(self._splitter, batch, self._turn)
        self._turn = routed.turn
        if self._copies:
            for target, part in iter_parts(batch, routed):
                yield Parcel(part, self.addresses[target])
        else:
            to = np.empty(batch.num_rows, dtype=np.int32)
            to[routed.rows] = self._of_target[routed.targets]
            yield Parcel(batch, to)

    def passes(self, marker: Marker) -> bool:
        """Return whether a marker goes to all targets; otherwise it goes to none."""
        return self._splitter is None or passes(self._splitter, marker)


def outlets_of(book: AddressBook, replica: Replica, *, turn: int = 0) -> tuple[Outlet, ...]:
    """Return a replica's outlets: unsplit connections first, then splitters."""
    physical = book.physical
    straight = tuple(
        Outlet((book.address[Port(connection.consumer, connection.port)],))
        for connection in physical.connections_of[replica.name]
        if not connection.is_split
    )
    split = tuple(
        Outlet(
            tuple(book.address[Port(name, splitter.port)] for name in splitter.iter_replicas()),
            splitter,
            turn=turn,
        )
        for splitter in physical.splitters_of[replica.name]
    )
    return straight + split
