"""The outlets of a replica: a connection, or a tree of splitters, for each port that it feeds.

A splitter gives each row the address of its channel and leaves the batch whole: a batch is cut only
where its rows are exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_upsert.flow.expansion import Replica, Splitter, SplitterKind
from spark_upsert.flow.run.addresses import AddressBook, Port
from spark_upsert.flow.run.splitters import (
    Marker,
    RowTargets,
    first_turn,
    iter_parts,
    passes,
    route,
)

Addresses: TypeAlias = npt.NDArray[np.int32]
"""The address of each row of a batch."""


class Parcel(NamedTuple):
    """Rows, and where they go: all to one address, or each row to one of its own."""

    batch: pa.RecordBatch
    to: int | Addresses


def by_address(parcel: Parcel) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows for each address, each address once, the least first."""
    batch, to = parcel
    if isinstance(to, int):
        yield to, batch
        return
    if not len(to):
        return
    # Addresses are few and small: they are counted rather than sorted.
    least = int(to.min())
    above = to - least
    if not above.any():
        yield least, batch
        return
    is_there = np.bincount(above) > 0
    found = np.flatnonzero(is_there) + least
    targets = (np.cumsum(is_there) - 1)[above]
    routed = RowTargets(np.arange(len(to)), targets, ())
    yield from ((int(found[index]), part) for index, part in iter_parts(batch, routed))


class Outlet:
    """All that leads to one port of an operator, or to its channels.

    Parameters
    ----------
    addresses : tuple of int
        Where it leads; behind a splitter in the order of its replicas.
    splitter : Splitter or None
        None: to the one address.
    turn : int
        What is added to the start of each round robin.
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
            (start + turn) % each.width for start, each in zip(starts, chain, strict=True)
        )
        self._copies = any(each.kind is SplitterKind.BROADCAST for each in chain)

    def send(self, batch: pa.RecordBatch) -> Iterator[Parcel]:
        """Yield the rows of a batch and where they go; a broadcast yields them several times."""
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
        """Say whether a marker goes to all that it leads to; else it goes nowhere."""
        return self._splitter is None or passes(self._splitter, marker)


def outlets_of(book: AddressBook, replica: Replica, *, turn: int = 0) -> tuple[Outlet, ...]:
    """Return what leads out of a replica, in the order of its streams."""
    physical = book.physical
    straight = tuple(
        Outlet((book.address[Port(each.consumer, each.port)],))
        for each in physical.connections_of[replica.name]
        if not each.is_split
    )
    split = tuple(
        Outlet(
            tuple(book.address[Port(name, each.port)] for name in each.iter_replicas()),
            each,
            turn=turn,
        )
        for each in physical.splitters_of[replica.name]
    )
    return straight + split
