"""Running operators: each is fed batch by batch, and drained at a barrier.

After a barrier an operator begins anew: a function is called again, and a plan is a task that is
clean there (`spark_upsert.task`), but for its counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import pyarrow as pa

from spark_upsert.errors import GraphError, MemoryLimitError, about
from spark_upsert.flow.checks import columns
from spark_upsert.flow.expansion import Replica
from spark_upsert.flow.run.coroutine import Coroutine
from spark_upsert.flow.work import PythonFunction
from spark_upsert.task import Node, Task

HELD_BYTES_MAX = 1 << 30
"""Bytes that wait at all ports of an operator with several: before the barrier it is not known
which port its plan wants first."""


class Running(Protocol):
    """A replica that runs. It is used by one thread at a time."""

    def feed(self, port: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield what follows from a batch that came by a port."""
        ...

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield all that is held back: a barrier has come to all ports."""
        ...

    def close(self) -> None:
        """Release everything; also after an error, and twice."""
        ...


def started(replica: Replica) -> Running:
    """Return what runs a replica of an operator.

    Raises
    ------
    GraphError
        It is not the work of an operator.
    PlanError
        Its plan cannot be run.
    """
    work = replica.operator.work
    if isinstance(work, PythonFunction):
        return _Function(replica, work)
    if isinstance(work, Node):
        ports = replica.operator.inputs
        return _Plan(replica, work) if len(ports) == 1 else _PlanOfSeveral(replica, work)
    raise GraphError(
        f"operator '{replica.logical}': {type(work).__name__} is no work of an operator.",
        hint="give it a plan or a PythonFunction.",
        operators=(replica.logical,),
    )


class _Function:
    """A Python function, called anew behind each barrier."""

    def __init__(self, replica: Replica, work: PythonFunction) -> None:
        self._replica = replica
        self._work = work
        self._call: Coroutine | None = None

    def feed(self, port: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        del port  # It has one.
        return self._checked(self._begun().feed(batch))

    def drain(self) -> Iterator[pa.RecordBatch]:
        yield from self._checked(self._begun().end())
        self.close()

    def close(self) -> None:
        if self._call is not None:
            self._call.close()
            self._call = None

    def _begun(self) -> Coroutine:
        if self._call is None:
            self._call = Coroutine(self._called)
        return self._call

    def _called(self, batches: Iterator[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        given: object = self._work.call(batches, self._replica.channel)
        if not isinstance(given, Iterable):
            raise GraphError(
                f"operator '{self._replica.name}' gave {type(given).__name__}, expected an "
                "iterator over batches of Arrow.",
                hint="let its function yield pyarrow.RecordBatch.",
                operators=(self._replica.logical,),
            )
        return given

    def _checked(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in given:
            yield as_declared(batch, self._work.schema, self._replica)


class _Plan:
    """A plan over one port: a task with one split, which is all that comes before the barrier."""

    def __init__(self, replica: Replica, plan: Node) -> None:
        [self._port] = replica.operator.inputs
        self._replica = replica
        with about("operator", replica.name):
            self._task = Task(plan)
        self._pass: Coroutine | None = None

    def feed(self, port: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        del port
        if self._pass is None:
            self._pass = Coroutine(self._passed)
        return self._pass.feed(batch)

    def drain(self) -> Iterator[pa.RecordBatch]:
        if self._pass is None:
            self._pass = Coroutine(self._passed)
        yield from self._pass.end()
        self._end_pass()

    def close(self) -> None:
        self._end_pass()
        self._task.close()

    def _end_pass(self) -> None:
        if self._pass is not None:
            self._pass.close()
            self._pass = None

    def _passed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._task.add_split(self._port, batches)
        self._task.request_barrier()
        yield from self._task.iter_batches()


class _PlanOfSeveral:
    """A plan over several ports: what comes is held, and runs through a task at the barrier."""

    def __init__(self, replica: Replica, plan: Node) -> None:
        self._replica = replica
        with about("operator", replica.name):
            self._task = Task(plan)
        self._held: dict[str, list[pa.RecordBatch]] = {port: [] for port in replica.operator.inputs}
        self._bytes = 0

    def feed(self, port: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._bytes += batch.nbytes
        if self._bytes > HELD_BYTES_MAX:
            raise MemoryLimitError(
                f"operator '{self._replica.name}' holds more than {HELD_BYTES_MAX} bytes of its "
                f"{len(self._held)} ports before a barrier.",
                hint="make its region wider, or the batches smaller.",
            )
        self._held[port].append(batch)
        return iter(())

    def drain(self) -> Iterator[pa.RecordBatch]:
        for port, batches in self._held.items():
            self._task.add_split(port, iter(batches))
            self._held[port] = []
        self._bytes = 0
        self._task.request_barrier()
        yield from self._task.iter_batches()

    def close(self) -> None:
        self._held.clear()
        self._task.close()


# -- columns ---------------------------------------------------------------------------------


def as_declared(batch: object, schema: pa.Schema, replica: Replica) -> pa.RecordBatch:
    """Return a batch that a function gave, if it has the columns that were said.

    Raises
    ------
    GraphError
        It has others, or a NULL where none may be, or is no batch.
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
    """Return a batch of the same columns under a schema; None if names, order or types differ.

    What may be null, and what is noted of columns, are no difference.
    """
    if batch.schema.names != schema.names or batch.schema.types != schema.types:
        return None
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
