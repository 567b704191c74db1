"""A task: runs a plan over splits that are given to it, and is clean at every barrier.

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

**What a barrier means.** All rows of the splits before it come before it is reached, no row of a
split behind it does, and no row is made of both: joins and groups are of one set of splits. Only
limits and unique numbers go on counting.

**Threads.** With one driver all work is done by the thread that calls `next`, and the same splits
give the same rows in the same order. With more, threads work ahead within bounds, and the same rows
come between the same barriers, in any order. The task itself is used by one thread at a time.

**Failure.** Whatever an operator raises comes out of `next`. All is closed by then, and the future
of the barrier is fulfilled, not failed: its waiter asks the task how it ended.

Idle tasks of a process, to be used again: a task that was left at a barrier is as good as new.

A task that ended in any other way, by an error or because its reader stopped early, is closed and
not used again. So an idle task holds no rows of an earlier read, only its plan, made ready.
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
"""Threads of one task: more would not run at once on a machine that runs others, too."""

JOIN_SECONDS = 60.0
"""How long closing waits for a thread that reads; it is a daemon."""

Pulled = tuple[pa.RecordBatch | None, Future[None] | None]
"""A batch; or none, and what it waits for; or neither: a barrier was reached, or the end."""


class Task:
    """A plan that runs.

    Parameters
    ----------
    plan : Node
    drivers : int
        How many threads a chain of operators may have (`pipelines`); 1: none, all is done by the
        caller.
    readers : mapping of str to Reader
        What reads the splits of a scan, by its name. Scans of Arrow need none.
    lookups : mapping of str to Lookup
        Where an index lookup join looks keys up, by its name (`TableLookup`, `ArrowLookup`). Each
        of several drivers asks for itself.
    clock : callable
        Seconds, for the time that barriers take.

    Raises
    ------
    PlanError
        The plan cannot be run; the node is named.
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
            stands_next=self._stands_next,
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
        """The futures of the barrier that were given to callers."""
        self._threads: list[Thread] = []
        self._failure: Exception | None = None
        self._is_released = False

    # -- what the caller says

    def add_split(self, node: str, split: Any, sequence: int | None = None) -> bool:
        """Queue a split behind the others of a leaf.

        Parameters
        ----------
        node : str
            The name of the scan.
        split : any
            What its reader reads.
        sequence : int or None
            Its number among those of the leaf, for `set_max_sequence`.

        Returns
        -------
        bool
            False if it is not read: its number is done, or the task runs no more.

        Raises
        ------
        TaskError
            Under a barrier, or behind `no_more_splits`.
        PlanError
            There is no such scan.
        """
        self._require_leaf(node)
        with self._progress.lock:
            action = self._apply(AddSplit(node, sequence))
            if action is Action.QUEUE:
                self._pipelines.queues[node].add(split)
                self._has_tail = True
                self._start()
                self._progress.note()
        return action is Action.QUEUE

    def set_max_sequence(self, node: str, sequence: int) -> None:
        """Note that the splits of a leaf are done up to a number; it only rises."""
        self._require_leaf(node)
        with self._progress.lock:
            self._apply(SetMark(node, sequence))

    def no_more_splits(self, node: str) -> None:
        """End a leaf behind the splits, and the barrier, that it has."""
        self._require_leaf(node)
        with self._progress.lock:
            if self._apply(NoMoreSplits(node)) is Action.END_LEAF:
                self._pipelines.queues[node].end()
                self._start()
                self._progress.note()

    def request_barrier(self) -> Future[None]:
        """Draw a line behind all splits; it is reached when `next` gives neither batch nor future.

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
                self._progress.note()
        return future

    def abort(self) -> None:
        """End at once, and fulfil the barrier's futures; nothing if the task runs no more."""
        self._end_by(Plain.ABORT)

    close = abort
    """Leave nothing behind; a task that has finished is closed already."""

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
        """The phase of the task's life."""
        return self._state.phase

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self._output.schema

    @property
    def statistics(self) -> Statistics:
        """Counts of the task's work so far."""
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
            There is nothing now; the future is done when it is worth asking again.
        None, None
            The barrier is reached; or all has ended, if no more splits were to come.

        Raises
        ------
        TaskError
            There is neither a barrier nor an end to come to, or the task runs no more.
        Exception
            By which an operator or a reader failed.
        """
        with self._progress.lock:
            # A thread may have failed meanwhile: then that is what comes out.
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
        """Yield the batches up to the barrier, or to the end, and wait where that is needed.

        Parameters
        ----------
        skip : int
            Rows that are passed by: those that were delivered of the same splits before a restart.
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
        """Yield the rows up to a barrier that comes behind one more split.

        As `add_split`, `request_barrier` and `iter_batches` do. Where the caller's thread does all
        work and the plan is one scan, its batches are handed on as they are read.

        Raises
        ------
        TaskError
            Under a barrier, behind `no_more_splits`, or the task runs no more.
        Exception
            By which an operator or a reader failed.
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
        while not isinstance(polled := self._polled(self._alone), Signal):
            self._rows += polled.num_rows
            yield polled
            if self._state.phase is not Phase.UNDER_BARRIER:
                self._apply(Plain.PULL)
        self._alone.pass_barrier()
        self._begin_anew()

    def _polled(self, driver: Driver) -> pa.RecordBatch | Signal:
        """Return what the only driver reads next; the task fails if it does."""
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

    def _stands_next(self) -> Signal:
        with self._progress.lock:
            if self._state.phase is Phase.UNDER_BARRIER:
                return Signal.DRAINED
            is_over = self._state.ended == self._state.leaves
            return Signal.ENDED if is_over else Signal.WAIT

    def _end_barrier(self) -> bool:
        """End the barrier if every driver has come to it; under the lock."""
        if not all(driver.is_at_barrier for driver in self._pipelines.drivers):
            return False
        for driver in self._pipelines.drivers:
            driver.pass_barrier()
        for exchange in self._pipelines.exchanges:
            exchange.pass_barrier()
        self._has_drained = False
        self._begin_anew()
        return True

    def _begin_barrier(self) -> None:
        """Put a barrier behind all splits."""
        self._begun = self._clock()
        self._has_tail = False
        for queue in self._pipelines.queues.values():
            queue.add_barrier()

    def _begin_anew(self) -> None:
        """Open the task behind a barrier, and fulfil the barrier's futures."""
        self._histogram.add(self._clock() - self._begun)
        self._apply(Plain.ALL_DRAINED)
        self._progress.note()
        self._fulfil()

    def _fulfil(self) -> None:
        futures, self._futures = self._futures, []
        for future in futures:
            future.set_result(None)

    def _work(self) -> bool:
        """Let the first driver that can move something do so; those near the output come first."""
        try:
            for driver in self._pipelines.drivers:
                if driver.step():
                    return True
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return True
        return False

    def _when_resolved(self, seen: int) -> Future[None]:
        """Return a future that is done when any driver's wait may be over; one driver must wait."""
        waited = [pending for driver in self._pipelines.drivers for pending in driver.waiting_on()]
        assert waited, f"no driver can move, and none waits: {self._state}"
        for future in waited:
            future.add_done_callback(self._resolved)
        return self._progress.future(seen)

    def _resolved(self, _: Future[Any]) -> None:
        self._progress.note()

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
        """Run one driver until it has ended, or the task has; closes it."""
        watched: list[Future[Any]] = []
        try:
            while True:
                with self._progress.lock:
                    change_count = self._progress.changes
                    if not self._state.phase.is_running or driver.is_ended:
                        break
                if driver.step():
                    self._progress.note()
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
                self._progress.note()
                self._fulfil()

    def _raise_failure(self) -> None:
        """Raise what made the task fail, once, with all closed."""
        failure, self._failure = self._failure, None
        if failure is None:
            return
        try:
            self._release()
        except Exception as error:  # noqa: BLE001
            failure.add_note(f"While all was closed: {error!r}")
        raise failure

    def _end_by(self, event: Plain) -> None:
        """Close everything, and fulfil the futures of the barrier."""
        with self._progress.lock:
            self._apply(event)
            self._progress.note()
        try:
            self._release()
        finally:
            with self._progress.lock:
                self._fulfil()

    def _release(self) -> None:
        """Close all that is open, whatever of it fails; nothing the second time."""
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
"""Tasks that are kept: a worker of Spark runs one at a time, a program's threads some."""


class TaskPool(Generic[K]):
    """Tasks by what they read: a plan, or a key that says more than one.

    Parameters
    ----------
    make : callable
        Makes a task for a key.
    idle_max : int
        How many are kept; the one that was used least recently is closed.
    """

    def __init__(self, make: Callable[[K], Task], idle_max: int = IDLE_MAX) -> None:
        self._make = make
        self._idle: LruMap[int, tuple[K, Task]] = LruMap(idle_max)
        self._lock = Lock()

    def taken(self, key: K) -> LentTask[K]:
        """Lend a task for a key; no other reader has it meanwhile."""
        return LentTask(self, key)

    def take_out(self, key: K) -> Task:
        """Return a task for a key, to be given to `put_back`."""
        return self._taken_out(key) or self._make(key)

    def _taken_out(self, key: K) -> Task | None:
        with self._lock:
            for expiry, task in self._idle.values():
                if expiry is key or expiry == key:
                    self._idle.pop(id(task))
                    return task
        return None

    def put_back(self, key: K, task: Task, *, has_failed: bool) -> None:
        """Keep a task that stands at a barrier; end any other."""
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
    """A task that is lent; a class, as a generator takes twice as long around each split."""

    __slots__ = ("_key", "_pool", "_task")

    def __init__(self, pool: TaskPool[K], key: K) -> None:
        self._pool = pool
        self._key = key

    def __enter__(self) -> Task:
        self._task = self._pool.take_out(self._key)
        return self._task

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.put_back(self._key, self._task, has_failed=kind is not None)
