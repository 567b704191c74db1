"""Running operators (`Running`) and processing elements (`Element`), fed by batch.

At a barrier an operator drains and begins again. A Python function is a `Coroutine`: it has a
thread that works only while its caller waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from graphlib import TopologicalSorter
from threading import Semaphore, Thread
from types import TracebackType
from typing import Protocol, Self, TypeAlias

import pyarrow as pa

from spark_upsert.errors import GraphError, MemoryLimitError, about
from spark_upsert.flow.expand import Physical, Replica
from spark_upsert.flow.graph import OperatorKind, PythonFunction
from spark_upsert.flow.partitioner import (
    AddressBook,
    Marker,
    Outlet,
    Parcel,
    by_address,
    outlets_of,
)
from spark_upsert.flow.validate import columns
from spark_upsert.task import Node, Task

Overs: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]]

JOIN_SECONDS = 60.0
"""Seconds that `Coroutine.close` waits for a blocked function; its thread is a daemon."""


class _Signal(Enum):
    IS_HUNGRY = "is hungry"
    HAS_ENDED = "has ended"


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class _EndOfInput(BaseException):
    """Ends a function that gets no more input; `except Exception` does not catch it."""


class Coroutine:
    """One function call in a thread, fed batch by batch."""

    def __init__(self, function: Overs) -> None:
        self._function = function
        self._next_input: pa.RecordBatch | None = None
        self._outcome: pa.RecordBatch | _Signal | _Failure = _Signal.HAS_ENDED
        self._is_abandoned = False
        self._may_work = Semaphore(0)
        self._may_go_on = Semaphore(0)
        self._thread: Thread | None = None

    def feed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Pass a batch and yield the function's output until it requests the next one.

        If the function has already returned, the batch is dropped.
        """
        yield from self._ensure_started()
        assert isinstance(self._outcome, _Signal), (
            "what followed from the batch before was not taken"
        )
        if self._outcome is _Signal.IS_HUNGRY:
            yield from self._outputs(batch)

    def end(self) -> Iterator[pa.RecordBatch]:
        """End the input and yield the remaining output."""
        yield from self._ensure_started()
        if self._outcome is _Signal.IS_HUNGRY:
            yield from self._outputs(None)

    def close(self) -> None:
        """Stop the function at its current wait; no effect if it has ended."""
        if self._thread is not None:
            self._is_abandoned = True
            self._may_work.release()
            self._thread.join(JOIN_SECONDS)

    # -- the caller's thread

    def _ensure_started(self) -> Iterator[pa.RecordBatch]:
        if self._thread is None:
            self._thread = Thread(target=self._work, name="operator of a flow", daemon=True)
            self._thread.start()
            yield from self._outputs(None)

    def _outputs(self, batch: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
        while True:
            self._next_input = batch
            self._may_work.release()
            self._may_go_on.acquire()
            if isinstance(self._outcome, _Failure):
                raise _wrap_error(self._outcome.error)
            if isinstance(self._outcome, _Signal):
                return
            yield self._outcome

    # -- the function's thread

    def _work(self) -> None:
        self._may_work.acquire()
        outcome: _Signal | _Failure = _Signal.HAS_ENDED
        try:
            if not self._is_abandoned:
                for batch in self._function(self._batches()):
                    self._hand_over(batch)
        except _EndOfInput:
            pass
        except BaseException as error:  # noqa: BLE001  (raised in the caller)
            outcome = _Failure(error)
        self._outcome = outcome
        self._may_go_on.release()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._hand_over(_Signal.IS_HUNGRY)) is not None:
            yield batch

    def _hand_over(self, what: pa.RecordBatch | _Signal) -> pa.RecordBatch | None:
        """Pass a signal or output batch to the caller, then wait for the next input."""
        self._outcome = what
        self._may_go_on.release()
        self._may_work.acquire()
        if self._is_abandoned:
            raise _EndOfInput
        return self._next_input


def _wrap_error(error: BaseException) -> Exception:
    """Return a function's error; wrap errors such as SystemExit in RuntimeError."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"it ended by {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


HELD_BYTES_MAX = 1 << 30
"""Maximum bytes buffered for an operator with several ports. It buffers until the barrier, because
it is unknown which port its plan reads first."""


class Running(Protocol):
    """Running replica; one thread uses it at a time."""

    def feed(self, port: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield output for a batch from a port."""
        ...

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield all buffered output, after a barrier from every port."""
        ...

    def close(self) -> None:
        """Release all resources; safe after an error, and twice."""
        ...


def start_operator(replica: Replica) -> Running:
    """Start a replica's operator; GraphError for unsupported work."""
    work = replica.operator.work
    if isinstance(work, PythonFunction):
        return _Function(replica, work)
    if isinstance(work, Node):
        ports = replica.operator.inputs
        return _Plan(replica, work) if len(ports) == 1 else _MultiPortPlan(replica, work)
    raise GraphError(
        f"operator '{replica.logical}': {type(work).__name__} is no work of an operator.",
        hint="give it a plan or a PythonFunction.",
        operators=(replica.logical,),
    )


class _Function:
    """Runs a Python function, called again after each barrier."""

    def __init__(self, replica: Replica, work: PythonFunction) -> None:
        self._replica = replica
        self._work = work
        self._call: Coroutine | None = None

    def feed(self, port: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        del port  # A function has a single port.
        return self._check_output(self._start_call().feed(batch))

    def drain(self) -> Iterator[pa.RecordBatch]:
        yield from self._check_output(self._start_call().end())
        self.close()

    def close(self) -> None:
        if self._call is not None:
            self._call.close()
            self._call = None

    def _start_call(self) -> Coroutine:
        if self._call is None:
            self._call = Coroutine(self._call_function)
        return self._call

    def _call_function(self, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        output: object = self._work.call(batches, self._replica.channel)
        if not isinstance(output, Iterable):
            raise GraphError(
                f"operator '{self._replica.name}' gave {type(output).__name__}, expected an "
                "iterator over batches of Arrow.",
                hint="let its function yield pyarrow.RecordBatch.",
                operators=(self._replica.logical,),
            )
        return output

    def _check_output(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield require_declared_columns(batch, self._work.schema, self._replica)


class _Plan:
    """Runs a single-port plan as a task, with one split per barrier."""

    def __init__(self, replica: Replica, plan: Node) -> None:
        [self._port] = replica.operator.inputs
        self._replica = replica
        with about("operator", replica.name):
            self._task = Task(plan)
        self._pass: Coroutine | None = None

    def feed(self, port: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        del port
        if self._pass is None:
            self._pass = Coroutine(self._run_task)
        return self._pass.feed(batch)

    def drain(self) -> Iterator[pa.RecordBatch]:
        if self._pass is None:
            self._pass = Coroutine(self._run_task)
        yield from self._pass.end()
        self._end_pass()

    def close(self) -> None:
        self._end_pass()
        self._task.close()

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.close()
            self._pass = None

    def _run_task(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._task.add_split(self._port, batches)
        self._task.request_barrier()
        yield from self._task.iter_batches()


class _MultiPortPlan:
    """Runs a multi-port plan: buffers input, and runs the task at the barrier."""

    def __init__(self, replica: Replica, plan: Node) -> None:
        self._replica = replica
        with about("operator", replica.name):
            self._task = Task(plan)
        self._buffered: dict[str, list[pa.RecordBatch]] = {
            port: [] for port in replica.operator.inputs
        }
        self._bytes = 0

    def feed(self, port: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._bytes += batch.nbytes
        if self._bytes > HELD_BYTES_MAX:
            raise MemoryLimitError(
                f"operator '{self._replica.name}' holds more than {HELD_BYTES_MAX} bytes of its "
                f"{len(self._buffered)} ports before a barrier.",
                hint="make its region wider, or the batches smaller.",
            )
        self._buffered[port].append(batch)
        return iter(())

    def drain(self) -> Iterator[pa.RecordBatch]:
        for port, batches in self._buffered.items():
            self._task.add_split(port, iter(batches))
            self._buffered[port] = []
        self._bytes = 0
        self._task.request_barrier()
        yield from self._task.iter_batches()

    def close(self) -> None:
        self._buffered.clear()
        self._task.close()


# -- columns ---------------------------------------------------------------------------------


def require_declared_columns(batch: object, schema: pa.Schema, replica: Replica) -> pa.RecordBatch:
    """Return a function's batch under its declared schema.

    Raises GraphError for other columns, and for NULL in a non-nullable column.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise GraphError(
            f"operator '{replica.name}' gave {type(batch).__name__}, expected batches of Arrow.",
            hint="let its function yield pyarrow.RecordBatch.",
            operators=(replica.logical,),
        )
    conformed = batch if batch.schema.equals(schema) else try_conform(batch, schema)
    if conformed is None:
        raise GraphError(
            f"operator '{replica.name}' gave the columns {columns(batch.schema)}, its schema is "
            f"{columns(schema)}.",
            hint="give the operator the schema that its function gives, or cast in the function.",
            operators=(replica.logical,),
        )
    for field, column in zip(schema, conformed.columns, strict=True):
        if not field.nullable and column.null_count:
            raise GraphError(
                f"operator '{replica.name}' gave NULL in {column.null_count} of {batch.num_rows} "
                f"rows of '{field.name}', of which its schema says that none is.",
                hint="drop such rows, or say in the schema that the column may be NULL.",
                operators=(replica.logical,),
            )
    return conformed


def try_conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch | None:
    """Return a batch under another schema; None if names, order or types differ.

    Nullability and metadata are ignored.
    """
    if batch.schema.names != schema.names or batch.schema.types != schema.types:
        return None
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


class Element:
    """Processing element: replicas that run together.

    Parameters
    ----------
    book : AddressBook
    replicas : sequence of str
        Replica names.
    turn : int
        Offset added to each round-robin start.
    """

    def __init__(self, book: AddressBook, replicas: Sequence[str], *, turn: int = 0) -> None:
        self._book = book
        self._outlets: dict[str, tuple[Outlet, ...]] = {}
        self._running: dict[str, Running] = {}
        for name in _sort_replicas(book.physical, replicas):
            replica = book.physical.replica[name]
            if replica.operator.kind is not OperatorKind.SINK:
                self._outlets[name] = outlets_of(book, replica, turn=turn)
            if replica.operator.kind is OperatorKind.OPERATOR:
                self._running[name] = start_operator(replica)

    def feed(self, address: int, batch: pa.RecordBatch) -> Iterator[Parcel]:
        """Process a batch at an address and yield outgoing parcels."""
        return self._route(self._follow(address, batch))

    def drain(self) -> Iterator[Parcel]:
        """Drain replicas in topological order and yield outgoing parcels."""
        for name, running in self._running.items():
            yield from self._route(self._send(name, running.drain()))

    def pass_window(self, address: int) -> Iterator[Parcel | int]:
        """Process a window marker; yield outgoing parcels, and outside addresses for the marker.

        A replica drains, then forwards the marker if its splitters let it pass.
        """
        following = [address]
        while following:
            name = self._book.ports[following.pop()].replica
            if name in self._running:
                yield from self._route(self._send(name, self._running[name].drain()))
            for outlet in self._outlets[name]:
                if outlet.passes(Marker.WINDOW):
                    following += [
                        address for address in outlet.addresses if self._is_local(address)
                    ]
                    yield from (
                        address for address in outlet.addresses if not self._is_local(address)
                    )

    def close(self) -> None:
        """Release all resources; safe after an error, and twice."""
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

    def _route(self, parcels: Iterator[Parcel]) -> Iterator[Parcel]:
        """Yield parcels for other elements and process parcels for this one.

        Uses a stack instead of recursion, because operator chains are long.
        """
        following = [parcels]
        while following:
            parcel = next(following[-1], None)
            if parcel is None:
                following.pop()
            elif isinstance(parcel.to, int):
                if self._is_local(parcel.to):
                    following.append(self._follow(parcel.to, parcel.batch))
                else:
                    yield parcel
            elif any(self._is_local(address) for address in set(parcel.to.tolist())):
                following.append(Parcel(part, to) for to, part in by_address(parcel))
            else:
                yield parcel

    def _is_local(self, address: int) -> bool:
        return self._book.ports[address].replica in self._outlets

    def _follow(self, address: int, batch: pa.RecordBatch) -> Iterator[Parcel]:
        replica, port = self._book.ports[address]
        running = self._running.get(replica)
        return self._send(replica, [batch] if running is None else running.feed(port, batch))

    def _send(self, replica: str, batches: Iterable[pa.RecordBatch]) -> Iterator[Parcel]:
        with about("operator", replica):
            for batch in batches:
                if batch.num_rows:
                    for outlet in self._outlets[replica]:
                        yield from outlet.send(batch)


def _sort_replicas(physical: Physical, replicas: Sequence[str]) -> Iterator[str]:
    """Yield replicas in topological order, producers first."""
    here = set(replicas)
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(replicas, ()))
    for connection in physical.connections:
        if connection.producer in here and connection.consumer in here:
            sorter.add(connection.consumer, connection.producer)
    yield from sorter.static_order()
