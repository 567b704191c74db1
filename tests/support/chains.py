"""A driver of one chain, as small as it can be: operators are tried without a task.

Who runs an operator here keeps to `spark_upsert.task.operator` to the letter, and checks
what an operator owes: no batch without its schema, nothing while it waits, an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from spark_upsert.task.operator import Operator, Signal

Rows = list[dict[str, Any]]

_STEPS_MAX = 100_000
"""A chain that makes so many steps without an end hangs."""


class Scripted:
    """A source that says what it was told: batches and barriers, and "wait" where it was told so.

    Parameters
    ----------
    sets : sequence of sequence of pyarrow.RecordBatch or Signal
        What comes before each barrier; a `Signal.WAIT` among it is said as it stands.
    is_open : bool
        No barrier stands behind the last set, but the end of all.
    """

    def __init__(
        self,
        schema: pa.Schema,
        sets: Sequence[Sequence[pa.RecordBatch | Signal]],
        *,
        is_open: bool = False,
    ) -> None:
        self.schema = schema
        self.taken = 0
        """Batches that were taken."""
        self.is_closed = False
        self._sets = [list(each) for each in sets]
        self._is_open = is_open
        self._is_dropped = False
        self._is_at_barrier = False

    def poll(self) -> pa.RecordBatch | Signal:
        if self._is_at_barrier:
            return Signal.WAIT
        if not self._sets:
            return Signal.ENDED
        if not self._sets[0] or self._is_dropped:
            if self._is_open and len(self._sets) == 1:
                return Signal.ENDED
            self._is_at_barrier = True
            return Signal.DRAINED
        item = self._sets[0].pop(0)
        if not isinstance(item, Signal):
            self.taken += 1
        return item

    def drop(self) -> None:
        """Give no more until the barrier."""
        self._is_dropped = True

    def pass_barrier(self) -> None:
        """Go on behind the barrier."""
        assert self._is_at_barrier, "the barrier is over, but this side has not come to it"
        del self._sets[0]
        self._is_at_barrier = self._is_dropped = False

    def close(self) -> None:
        self.is_closed = True


class Dropping:
    """What operators are given to ask: it drops the input of the sides that it knows."""

    def __init__(self, **sides: Scripted) -> None:
        self._sides = sides
        self.asked: list[str] = []
        """The nodes whose input was to be dropped."""

    def drop_input(self, node: str) -> None:
        self.asked.append(node)
        if node in self._sides:
            self._sides[node].drop()


class Chain:
    """A chain of operators, and the right sides of the joins among them."""

    def __init__(self, operators: Sequence[Operator], sides: Sequence[Scripted] = ()) -> None:
        self._operators = list(operators)
        self._sides = list(sides)
        self._was_fed = False

    def run(
        self, sets: Iterable[Iterable[pa.RecordBatch]], *, is_ended: bool = True
    ) -> list[list[pa.RecordBatch]]:
        """Return what comes out of each set of batches, and at last what comes at the end."""
        given = [list(self.barrier(batches)) for batches in sets]
        if is_ended:
            given.append(list(self.end()))
        return given

    def barrier(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what comes of some batches and the barrier behind them."""
        yield from self.feed(batches)
        for index, operator in enumerate(self._operators):
            if operator.start_drain():
                for _ in self._steps():
                    if operator.is_drained():
                        break
                    assert not operator.needs_input(), "takes input while it drains"
                    yield from self._pull(index)
            # What those behind it made of it, before they drain themselves.
            yield from self.flow(index + 1)
        for side in self._sides:
            side.pass_barrier()

    def end(self) -> Iterator[pa.RecordBatch]:
        """Yield what comes behind the last barrier."""
        for index, operator in enumerate(self._operators):
            operator.no_more_input()
            for _ in self._steps():
                if operator.is_finished():
                    break
                yield from self._pull(index)
            yield from self.flow(index + 1)

    def close(self) -> None:
        """Close every operator, twice."""
        for operator in [*self._operators, *self._operators]:
            operator.close()

    def feed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what comes of some batches, without a barrier."""
        for batch in batches:
            if batch.num_rows:
                for _ in self._steps():
                    if self._operators[0].needs_input():
                        break
                    yield from self.flow(0)
                self._operators[0].add_input(batch)
            yield from self.flow(0)

    def flow(self, begin: int) -> Iterator[pa.RecordBatch]:
        """Move batches until nothing moves; yield what comes out."""
        moved = True
        while moved:
            moved = False
            for index in reversed(range(begin, len(self._operators))):
                for batch in self._pull(index):
                    moved = True
                    yield batch
            # An operator in the middle that was fed is asked again.
            moved = moved or self._was_fed
            self._was_fed = False

    def _pull(self, index: int) -> Iterator[pa.RecordBatch]:
        """Take a batch of an operator; yield it if it is the last one, else pass it on."""
        is_last = index == len(self._operators) - 1
        if not is_last and not self._operators[index + 1].needs_input():
            yield from self._pull(index + 1)
            return
        operator = self._operators[index]
        batch = operator.output()
        if batch is None:
            waits_for = operator.waiting_on()
            if waits_for is not None:
                waits_for.result(timeout=60)
            return
        batch.validate(full=True)
        assert batch.schema.equals(operator.schema), (batch.schema, operator.schema)
        if not batch.num_rows:
            return
        if is_last:
            yield batch
        else:
            self._operators[index + 1].add_input(batch)
            self._was_fed = True

    def _steps(self) -> Iterator[int]:
        yield from range(_STEPS_MAX)
        raise AssertionError("the chain hangs")


def rows_of(batches: Iterable[pa.RecordBatch]) -> Rows:
    """Return the rows of some batches."""
    return [row for batch in batches for row in batch.to_pylist()]
