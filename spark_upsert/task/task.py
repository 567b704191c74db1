"""Tasks (`Task`), which run a plan over added splits, and a pool of idle tasks (`TaskPool`).

A *barrier* separates splits: no row combines both sides, and a task at a barrier can be reused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import ExitStack
from threading import Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import pyarrow as pa

from spark_upsert.core.lru import LruMap
from spark_upsert.errors import PlanError, did_you_mean
from spark_upsert.plan.nodes import Node
from spark_upsert.task.driver import Driver
from spark_upsert.task.lifecycle import (
    Action,
    AddSplit,
    Event,
    Histogram,
    Monitor,
    NoMoreSplits,
    Phase,
    Plain,
    ReadSplit,
    SetMark,
    SplitCounts,
    State,
    Statistics,
    step,
)
from spark_upsert.task.operator import Signal
from spark_upsert.task.pipelines import TaskSettings, build
from spark_upsert.task.sources import SplitReader

if TYPE_CHECKING:
    from spark_upsert.task.lookup_join import Lookup


DRIVERS_MAX = 64
"""Maximum threads per task: more would not run in parallel on a shared machine."""

JOIN_SECONDS = 60.0
"""Seconds for which closing waits for a reading thread, a daemon."""

Pulled = tuple[pa.RecordBatch | None, Future[None] | None]
"""A batch; or None and the future to wait for; or neither: a barrier or the end."""


class Task:
    """A running plan, used by one thread at a time.

    With one driver, the thread calling `next` does all work, and equal splits give equal rows in
    equal order. With more, threads work ahead within bounds. Only limits and unique numbers count
    across barriers. After an error, which `next` raises, all is closed and the barrier's future is
    completed.

    >>> import pyarrow as pa
    >>> from spark_upsert.task import ArrowScan, Filter, Task
    >>> rows = pa.table({"n": [1, 2, 3]})
    >>> plan = Filter(id="big", input=ArrowScan(id="rows", schema=rows.schema), where="n > 1")
    >>> with Task(plan) as task:
    ...     task.add_split("rows", rows)
    ...     done = task.request_barrier()
    ...     print([batch["n"].to_pylist() for batch in task.iter_batches()], done.done())
    True
    [[2, 3]] True

    Parameters
    ----------
    plan : Node
    drivers : int
        Maximum threads per operator chain (`pipelines`); 1: none, all work is done by the
        caller.
    readers : mapping of str to SplitReader
        Split readers by scan name. Arrow scans need none.
    lookups : mapping of str to Lookup
        Look-ups for index lookup joins, by join name (`TableLookup`, `ArrowLookup`). Each
        driver calls them separately.
    clock : callable
        Seconds, for barrier durations.

    Raises
    ------
    PlanError
        The plan cannot be run; the error names the node.
    """

    def __init__(
        self,
        plan: Node,
        *,
        drivers: int = 1,
        readers: Mapping[str, SplitReader] | None = None,
        lookups: Mapping[str, Lookup] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if drivers < 1:
            raise PlanError(f"drivers are at least 1, found {drivers}.", hint="give 1.")
        self._progress = Monitor()
        self._clock = clock
        self._is_threaded = drivers > 1
        settings = TaskSettings(
            progress=self._progress,
            width=drivers,
            readers=readers or {},
            lookups=lookups or {},
            next_signal=self._next_signal,
            has_tail=lambda: self._has_tail,
        )
        self._pipelines = build(plan, settings)
        if self._is_threaded and len(self._pipelines.drivers) > DRIVERS_MAX:
            raise PlanError(
                f"the plan needs {len(self._pipelines.drivers)} threads with {drivers} drivers, at "
                f"most {DRIVERS_MAX} are run.",
                hint="give fewer drivers.",
            )
        self._output = self._pipelines.output.consumer()
        self._alone = None if self._is_threaded else self._pipelines.bare_scan
        self._state = State(leaves=frozenset(self._pipelines.queues))
        self._has_tail = True
        self._has_drained = False
        """Whether all rows before the barrier were handed out."""
        self._histogram = Histogram()
        self._rows = 0
        self._begun = 0.0
        self._futures: list[Future[None]] = []
        """The barrier's futures returned to callers."""
        self._threads: list[Thread] = []
        self._failure: Exception | None = None
        self._is_released = False

    # -- what the caller says

    def add_split(self, node: str, split: Any, sequence: int | None = None) -> bool:
        """Append a split to a leaf's queue.

        Parameters
        ----------
        node : str
            The scan's name.
        split : any
            The input for its reader.
        sequence : int or None
            Its number in the leaf's sequence, for `set_max_sequence`.

        Returns
        -------
        bool
            False if it is not read: its number is done, or the task has ended.

        Raises
        ------
        TaskError
            Under a barrier, or after `no_more_splits`.
        PlanError
            The scan does not exist.
        """
        self._require_leaf(node)
        with self._progress.lock:
            action = self._apply(AddSplit(node, sequence))
            if action is Action.QUEUE:
                self._pipelines.queues[node].add(split)
                self._has_tail = True
                self._start()
                self._progress.notify()
        return action is Action.QUEUE

    def set_max_sequence(self, node: str, sequence: int) -> None:
        """Mark a leaf's splits as done up to a number, which only rises."""
        self._require_leaf(node)
        with self._progress.lock:
            self._apply(SetMark(node, sequence))

    def no_more_splits(self, node: str) -> None:
        """End a leaf after its queued splits and barrier."""
        self._require_leaf(node)
        with self._progress.lock:
            if self._apply(NoMoreSplits(node)) is Action.END_LEAF:
                self._pipelines.queues[node].end()
                self._start()
                self._progress.notify()

    def request_barrier(self) -> Future[None]:
        """Add a barrier after all splits; it is reached when `next` returns neither batch nor
        future.

        Returns
        -------
        concurrent.futures.Future
            Done when it is reached, or when the task has failed or was aborted.

        Raises
        ------
        TaskError
            A leaf gets no more splits.
        """
        future: Future[None] = Future()
        with self._progress.lock:
            action = self._apply(Plain.REQUEST_BARRIER)
            if action is Action.ALREADY_OVER:
                future.set_result(None)
                return future
            self._futures.append(future)
            if action is Action.BEGIN_BARRIER:
                self._begin_barrier()
                self._start()
                self._progress.notify()
        return future

    def abort(self) -> None:
        """End immediately, and complete the barrier's futures; do nothing if the task has ended."""
        self._end_by(Plain.ABORT)

    close = abort
    """Abort and release everything; a finished task is closed already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    # -- what it gives

    @property
    def phase(self) -> Phase:
        """The task's lifecycle phase."""
        return self._state.phase

    @property
    def schema(self) -> pa.Schema:
        """The output columns."""
        return self._output.schema

    @property
    def statistics(self) -> Statistics:
        """Counts for the task's work so far."""
        with self._progress.lock:
            counts = [queue.counts() for queue in self._pipelines.queues.values()]
            return Statistics(
                barriers=self._state.barriers,
                splits=SplitCounts(
                    total=sum(count.total for count in counts),
                    queued=sum(count.queued for count in counts),
                    finished=sum(count.finished for count in counts),
                ),
                rows=self._rows,
                histogram=self._histogram.counts(),
            )

    def next(self) -> Pulled:
        """Return the next batch.

        Returns
        -------
        batch, None
        None, future
            There is no batch now; the future is done when a retry is worthwhile.
        None, None
            The barrier is reached; or all input has ended, if no more splits were to come.

        Raises
        ------
        TaskError
            There is neither a barrier nor an end to reach, or the task has ended.
        Exception
            The error of a failed operator or reader.
        """
        with self._progress.lock:
            # A thread may have failed meanwhile: then its error is raised.
            if self._failure is None:
                self._apply(Plain.PULL)
                self._start()
        while True:
            with self._progress.lock:
                change_count = self._progress.changes
                output_batch = self._output.poll()
                if self._failure is None and not isinstance(output_batch, Signal):
                    self._rows += output_batch.num_rows
                    return output_batch, None
                self._has_drained |= output_batch is Signal.DRAINED
                if self._failure is None and self._has_drained and self._end_barrier():
                    return None, None
            self._raise_failure()
            if output_batch is Signal.ENDED:
                self._end_by(Plain.ALL_ENDED)
                return None, None
            if self._is_threaded:
                return None, self._progress.future(change_count)
            if not self._work() and self._progress.changes == change_count:
                return None, self._when_resolved(change_count)

    def iter_batches(self, skip: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the batches up to the barrier, or to the end, waiting where necessary.

        Parameters
        ----------
        skip : int
            Rows to skip: those delivered from the same splits before a restart.
            Exact with one driver, whose rows have an order.
        """
        while True:
            batch, future = self.next()
            if batch is not None:
                remaining = batch.slice(skip) if skip else batch
                skip -= min(skip, batch.num_rows)
                if remaining.num_rows:
                    yield remaining
            elif future is None:
                return
            else:
                wait_for([future])

    def read(self, node: str, split: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows up to a barrier after one more split.

        Equivalent to `add_split`, `request_barrier` and `iter_batches`. If the caller's thread does
        all work and the plan is one scan, its batches are passed on as they are read.

        Raises
        ------
        TaskError
            Under a barrier, after `no_more_splits`, or the task has ended.
        Exception
            The error of a failed operator or reader.
        """
        if self._alone is None:
            if not self.add_split(node, split):
                self._apply(Plain.PULL)
            self.request_barrier()
            yield from self.iter_batches()
            return
        # No thread has to be woken up, and all is one event: small splits gain most by this.
        self._require_leaf(node)
        self._apply(ReadSplit(node))
        self._begun = self._clock()
        self._has_tail = False
        self._pipelines.queues[node].add(split, with_barrier=True)
        while not isinstance(polled := self._poll_driver(self._alone), Signal):
            self._rows += polled.num_rows
            yield polled
            if self._state.phase is not Phase.UNDER_BARRIER:
                self._apply(Plain.PULL)
        self._alone.pass_barrier()
        self._reopen()

    def _poll_driver(self, driver: Driver) -> pa.RecordBatch | Signal:
        """Return the only driver's next batch or signal; the task fails if it does."""
        try:
            return driver.poll()
        except Exception as error:
            self._fail(error)
            self._raise_failure()
            raise

    # -- how it goes on

    def _apply(self, event: Event) -> Action:
        """Change the state by the table; a refusal changes nothing."""
        self._state, action = step(self._state, event)
        return action

    def _require_leaf(self, node: str) -> None:
        if node not in self._pipelines.queues:
            raise PlanError(
                f"there is no scan '{node}' in the plan.",
                hint=did_you_mean(node, self._pipelines.queues)
                if self._pipelines.queues
                else "the plan has no leaf that takes splits.",
            )

    def _next_signal(self) -> Signal:
        with self._progress.lock:
            if self._state.phase is Phase.UNDER_BARRIER:
                return Signal.DRAINED
            is_over = self._state.ended == self._state.leaves
            return Signal.ENDED if is_over else Signal.WAIT

    def _end_barrier(self) -> bool:
        """End the barrier if every driver has reached it; requires the lock."""
        if not all(driver.is_at_barrier for driver in self._pipelines.drivers):
            return False
        for driver in self._pipelines.drivers:
            driver.pass_barrier()
        for exchange in self._pipelines.exchanges:
            exchange.pass_barrier()
        self._has_drained = False
        self._reopen()
        return True

    def _begin_barrier(self) -> None:
        """Add a barrier after all splits."""
        self._begun = self._clock()
        self._has_tail = False
        for queue in self._pipelines.queues.values():
            queue.add_barrier()

    def _reopen(self) -> None:
        """Reopen the task after a barrier, and complete the barrier's futures."""
        self._histogram.add(self._clock() - self._begun)
        self._apply(Plain.ALL_DRAINED)
        self._progress.notify()
        self._complete_futures()

    def _complete_futures(self) -> None:
        futures, self._futures = self._futures, []
        for future in futures:
            future.set_result(None)

    def _work(self) -> bool:
        """Step the first driver able to make progress; those near the output come first."""
        try:
            for driver in self._pipelines.drivers:
                if driver.step():
                    return True
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return True
        return False

    def _when_resolved(self, seen: int) -> Future[None]:
        """Return a future, done when any driver's wait may be over; one driver must wait."""
        waited = [pending for driver in self._pipelines.drivers for pending in driver.waiting_on()]
        assert waited, f"no driver can move, and none waits: {self._state}"
        for future in waited:
            future.add_done_callback(self._resolved)
        return self._progress.future(seen)

    def _resolved(self, _: Future[Any]) -> None:
        self._progress.notify()

    # -- threads

    def _start(self) -> None:
        if not self._is_threaded or self._threads or not self._state.phase.is_running:
            return
        self._threads = [
            Thread(target=self._drive, args=(driver,), name=f"task driver {index}", daemon=True)
            for index, driver in enumerate(self._pipelines.drivers)
        ]
        for thread in self._threads:
            thread.start()

    def _drive(self, driver: Driver) -> None:
        """Run one driver until it or the task has ended; then close it."""
        watched: list[Future[Any]] = []
        try:
            while True:
                with self._progress.lock:
                    change_count = self._progress.changes
                    if not self._state.phase.is_running or driver.is_ended:
                        break
                if driver.step():
                    self._progress.notify()
                    continue
                waited, watched = watched, driver.waiting_on()
                for future in watched:
                    if future not in waited:
                        future.add_done_callback(self._resolved)
                self._progress.wait(change_count)
        except Exception as error:  # noqa: BLE001
            self._fail(error)
        finally:
            self._close_driver(driver)

    def _close_driver(self, driver: Driver) -> None:
        try:
            driver.close()
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    # -- the end

    def _fail(self, error: Exception) -> None:
        """Fail by the first error; the next pull raises it."""
        with self._progress.lock:
            if self._apply(Plain.FAIL) is Action.RELEASE:
                self._failure = error
                self._progress.notify()
                self._complete_futures()

    def _raise_failure(self) -> None:
        """Raise the task's failure, once, with everything closed."""
        failure, self._failure = self._failure, None
        if failure is None:
            return
        try:
            self._release()
        except Exception as error:  # noqa: BLE001
            failure.add_note(f"While all was closed: {error!r}")
        raise failure

    def _end_by(self, event: Plain) -> None:
        """Close everything, and complete the barrier's futures."""
        with self._progress.lock:
            self._apply(event)
            self._progress.notify()
        try:
            self._release()
        finally:
            with self._progress.lock:
                self._complete_futures()

    def _release(self) -> None:
        """Close all open resources despite individual failures; idempotent."""
        if self._is_released:
            return
        self._is_released = True
        with ExitStack() as stack:
            for thread in self._threads:
                stack.callback(thread.join, JOIN_SECONDS)
            for driver in [] if self._threads else self._pipelines.drivers:
                stack.callback(driver.close)


K = TypeVar("K")

IDLE_MAX = 8
"""Maximum idle tasks: a Spark worker runs one at a time, a program's threads a few."""


class TaskPool(Generic[K]):
    """Idle tasks by key: a plan, or a key including one.

    A task in any state other than at a barrier is closed, so an idle task holds no rows and no
    credentials, only its plan.

    Parameters
    ----------
    make : callable
        Creates a task for a key.
    idle_max : int
        Maximum idle tasks; the least recently used one is closed.
    """

    def __init__(self, make: Callable[[K], Task], idle_max: int = IDLE_MAX) -> None:
        self._make = make
        self._idle: LruMap[int, tuple[K, Task]] = LruMap(idle_max)
        self._lock = Lock()

    def lend(self, key: K) -> LentTask[K]:
        """Lend a task for a key; no other reader has it meanwhile."""
        return LentTask(self, key)

    def acquire(self, key: K) -> Task:
        """Return a task for a key, for a later `release`."""
        return self._pop_idle(key) or self._make(key)

    def _pop_idle(self, key: K) -> Task | None:
        with self._lock:
            for expiry, task in self._idle.values():
                if expiry is key or expiry == key:
                    self._idle.pop(id(task))
                    return task
        return None

    def release(self, key: K, task: Task, *, has_failed: bool) -> None:
        """Store a task at a barrier; end any other."""
        if has_failed or task.phase is not Phase.OPEN:
            task.abort()
            return
        with self._lock:
            gone = self._idle.put(id(task), (key, task))
        for _, idle in gone:
            idle.abort()

    def __len__(self) -> int:
        return len(self._idle)


class LentTask(Generic[K]):
    """A lent task; a class, as a generator takes twice as long around each split."""

    __slots__ = ("_key", "_pool", "_task")

    def __init__(self, pool: TaskPool[K], key: K) -> None:
        self._pool = pool
        self._key = key

    def __enter__(self) -> Task:
        self._task = self._pool.acquire(self._key)
        return self._task

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.release(self._key, self._task, has_failed=kind is not None)
