"""A processing element that runs: replicas that call each other, and what leads out of them.

Rows come to an address of the element and leave it with addresses elsewhere. Sinks are elsewhere:
what writes is not run here, nor what reads; of a source there is what leads out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from graphlib import TopologicalSorter
from types import TracebackType
from typing import Self

import pyarrow as pa

from spark_upsert.errors import about
from spark_upsert.flow.expansion import Physical
from spark_upsert.flow.graph import OperatorKind
from spark_upsert.flow.run.addresses import AddressBook
from spark_upsert.flow.run.outlets import Outlet, Parcel, by_address, outlets_of
from spark_upsert.flow.run.running import Running, started
from spark_upsert.flow.run.splitters import Marker


class Element:
    """Replicas that run together.

    Parameters
    ----------
    book : AddressBook
    replicas : sequence of str
        Those of the element.
    turn : int
        What is added to the start of each round robin.
    """

    def __init__(self, book: AddressBook, replicas: Sequence[str], *, turn: int = 0) -> None:
        self._book = book
        self._outlets: dict[str, tuple[Outlet, ...]] = {}
        self._running: dict[str, Running] = {}
        for name in _in_order(book.physical, replicas):
            replica = book.physical.replica[name]
            if replica.operator.kind is not OperatorKind.SINK:
                self._outlets[name] = outlets_of(book, replica, turn=turn)
            if replica.operator.kind is OperatorKind.OPERATOR:
                self._running[name] = started(replica)

    def feed(self, address: int, batch: pa.RecordBatch) -> Iterator[Parcel]:
        """Yield what leaves because a batch has come to an address of the element."""
        return self._leaving(self._follow(address, batch))

    def drain(self) -> Iterator[Parcel]:
        """Yield what leaves at a barrier: each replica drains behind those before it."""
        for name, running in self._running.items():
            yield from self._leaving(self._sent(name, running.drain()))

    def pass_window(self, address: int) -> Iterator[Parcel | int]:
        """Yield what leaves because a window has ended at an address; of the marker: where it goes.

        A replica drains and then sends the marker on, as far as its splitters let it pass.
        """
        following = [address]
        while following:
            name = self._book.ports[following.pop()].replica
            if name in self._running:
                yield from self._leaving(self._sent(name, self._running[name].drain()))
            for outlet in self._outlets[name]:
                if outlet.passes(Marker.WINDOW):
                    following += [each for each in outlet.addresses if self._is_here(each)]
                    yield from (each for each in outlet.addresses if not self._is_here(each))

    def close(self) -> None:
        """Release everything; also after an error, and twice."""
        with ExitStack() as stack:
            for running in self._running.values():
                stack.callback(running.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _leaving(self, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
        """Yield the rows that go elsewhere, and follow the others to where they lead.

        By a list of what is to be followed rather than by calls within calls: chains are long.
        """
        following = [parcels]
        while following:
            parcel = next(following[-1], None)
            if parcel is None:
                following.pop()
            elif isinstance(parcel.to, int):
                if self._is_here(parcel.to):
                    following.append(self._follow(parcel.to, parcel.batch))
                else:
                    yield parcel
            elif any(self._is_here(address) for address in set(parcel.to.tolist())):
                following.append(Parcel(part, to) for to, part in by_address(parcel))
            else:
                yield parcel

    def _is_here(self, address: int) -> bool:
        return self._book.ports[address].replica in self._outlets

    def _follow(self, address: int, batch: pa.RecordBatch) -> Iterator[Parcel]:
        replica, port = self._book.ports[address]
        running = self._running.get(replica)
        return self._sent(replica, [batch] if running is None else running.feed(port, batch))

    def _sent(self, replica: str, batches: Iterable[pa.RecordBatch]) -> Iterator[Parcel]:
        with about("operator", replica):
            for batch in batches:
                if batch.num_rows:
                    for outlet in self._outlets[replica]:
                        yield from outlet.send(batch)


def _in_order(physical: Physical, replicas: Sequence[str]) -> Iterator[str]:
    """Yield replicas so that each one comes behind those that feed it."""
    here = set(replicas)
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(replicas, ()))
    for each in physical.connections:
        if each.producer in here and each.consumer in here:
            sorter.add(each.consumer, each.producer)
    yield from sorter.static_order()
