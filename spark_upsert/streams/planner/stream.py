"""A stream over its inputs (`Stream`): the answers to Spark's reader, without Spark.

`Stream.latest` ends a micro-batch; `Stream.splits` is a pure function of two offsets and the logs,
so a replay plans the same batch. Also debouncing and the progress report.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from heapq import nlargest
from itertools import chain
from math import inf
from typing import Any

import pyarrow as pa

from spark_upsert.errors import about
from spark_upsert.options.inputs import UNNAMED
from spark_upsert.options.read import QueryOptions
from spark_upsert.scheduler.governor import Governor
from spark_upsert.streams.inputs.group import GroupInputs
from spark_upsert.streams.inputs.inputs import Heads, Inputs, SeenHeads
from spark_upsert.streams.inputs.protocol import Backlog, Input, ReadPiece
from spark_upsert.streams.offsets.offset import Offset, Offsets, PlainOffsets, Position, without
from spark_upsert.streams.planner.formats import (
    BEGAN,
    require_same_start_options,
    with_start_options,
)
from spark_upsert.streams.planner.ordered import STATE, ExactOrder, exact_order_error
from spark_upsert.streams.planner.poller import Backlogs, InputHeads, PollSchedule
from spark_upsert.streams.planner.pressure import StreamGauge
from spark_upsert.streams.planner.rate_limit import (
    Limits,
    Urgencies,
    plan_limited_batch,
    waiting_by_band,
)
from spark_upsert.streams.reads.packing import map_inputs, plan_packs
from spark_upsert.streams.reads.read_split import TaskRead, read_work


@dataclass(frozen=True, slots=True)
class BatchDelay:
    """The decision to delay a batch."""

    until_s: float
    """The time when the wait ends, on the monotonic clock."""


class Debounce:
    """Decides whether a batch waits for more rows.

    A wait counts from when this process saw the row or, if longer, from its commit: a restart does
    not begin it again.

    Parameters
    ----------
    rows_min : int
        Row count ending the wait.
    delay_ms : int
        Maximum wait for the oldest row.
    clock : callable
        In seconds; never goes back.
    wall : callable
        In seconds since 1970.
    """

    def __init__(
        self,
        rows_min: int,
        delay_ms: int,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._rows_min = rows_min
        self._delay_s = delay_ms / 1000
        self._clock = clock
        self._wall = wall
        self._since_s: float | None = None
        """When unread rows were first seen since the last batch."""

    def hold(self, backlogs: dict[str, Backlog]) -> BatchDelay | None:
        """Return the delay for a batch over these backlogs; None if it is due.

        Examined pieces are put back, so that the backlogs can be read again.
        """
        rows, oldest_ms, is_any = self._count(backlogs)
        if not is_any:
            self._since_s = None
            return BatchDelay(math.inf)
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        if oldest_ms is not None:
            waited_s = max(waited_s, self._wall() - oldest_ms / 1000)
        if rows >= self._rows_min or waited_s >= self._delay_s:
            self._since_s = None
            return None
        return BatchDelay(now_s + self._delay_s - waited_s)

    def _count(self, backlogs: dict[str, Backlog]) -> tuple[int, int | None, bool]:
        """Return the unread row count (up to the minimum), the oldest commit time, and if any are
        unread.
        """
        rows, oldest_ms, is_any = 0, None, False
        for name, backlog in backlogs.items():
            pieces = iter(backlog.pieces)
            looked: list[ReadPiece] = []
            for piece in pieces:
                looked.append(piece)
                rows += piece.rows
                if rows >= self._rows_min:
                    break
            backlogs[name] = replace(backlog, pieces=chain(looked, pieces))
            is_any |= bool(looked)
            made_ms = backlog.committed_ms() if looked and backlog.committed_ms else None
            if made_ms is not None:
                oldest_ms = made_ms if oldest_ms is None else min(oldest_ms, made_ms)
            if rows >= self._rows_min:
                break
        return rows, oldest_ms, is_any


POSITIONS_MAX = 10
NAMED_MAX = 5

_NAME_LENGTH_MAX = 200


@dataclass(frozen=True, kw_only=True)
class PlannedLast:
    """The last planned batch, or the last check without one, for the progress report."""

    backlogs: Mapping[str, Backlog]
    """Each input's backlog; a missing input had none."""
    positions: Mapping[str, Position]
    """The stream's positions after the batch."""
    waiting: Callable[[], Mapping[str, int]] = dict
    """Returns the waiting input count per band after the batch."""

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Lag and waiting inputs after the batch, cached because Spark requests reports more often."""
        return _lag(self.backlogs, self.positions) | {"waiting": dict(self.waiting())}


def report(
    inputs: Inputs,
    heads: Heads,
    last: PlannedLast | None,
    *,
    schedule: PollSchedule | None,
    governor: Governor,
) -> dict[str, Any]:
    """Return a stream's progress report, which Spark shows as the source's ``latestOffset``.

    It describes the state after the last planned batch (docs/many-tables.md); offsets do not
    contain it.

    - ``inputs``: input count; ``dirty``: inputs with a backlog; ``waiting``: inputs left over per
      band;
    - ``lag``: ``versions`` in all tables, ``most`` and ``since_ms`` for the `NAMED_MAX` longest;
    - ``positions`` and ``newest``: for up to `POSITIONS_MAX` inputs, their ends, and the newest
      version with its counters;
    - ``complete``: with ``consistent``, the newest complete batch; ``discovery``: polling counts;
    - ``pressure``: ``rung``, ``ratio`` (0 to 1) and ``latency_ms``.
    """
    summary: dict[str, Any] = {"inputs": len(heads)}
    if len(heads) <= POSITIONS_MAX:
        summary["positions"] = {name: head.record for name, head in sorted(heads.items())}
        summary["newest"] = _newest(inputs, heads)
    if last is not None:
        summary |= last.metrics
    if isinstance(inputs, GroupInputs):
        summary["complete"] = inputs.newest_complete_batch({} if last is None else last.positions)
    if schedule is not None:
        summary["discovery"] = {
            "looks": schedule.poll_count,
            "requests": schedule.requests,
            "rest_ms": round(schedule.most_s * 1000),
        }
    latency_ms = governor.latency_ms
    summary["pressure"] = {
        "latency_ms": None if latency_ms is None else round(latency_ms),
        "ratio": round(governor.pressure, 3),
        "rung": governor.rung,
    }
    return summary


def _newest(inputs: Inputs, heads: Heads) -> dict[str, Mapping[str, int]]:
    newest = ((name, inputs[name].newest()) for name in sorted(heads))
    return {name: counters for name, counters in newest if counters is not None}


def _lag(backlogs: Mapping[str, Backlog], positions: Mapping[str, Position]) -> dict[str, Any]:
    left = {
        name: backlog.lag_at(positions[name])
        for name, backlog in backlogs.items()
        if name in positions
    }
    dirty = {name: versions for name, versions in left.items() if versions}
    most = nlargest(NAMED_MAX, dirty, key=lambda name: dirty[name])
    since_by_name = ((name, backlogs[name].left_since_ms) for name in most)
    since = {name: ask(positions[name]) for name, ask in since_by_name if ask is not None}
    return {
        "dirty": len(dirty) + len(backlogs.keys() - positions.keys()),
        "lag": {
            "most": {name[:_NAME_LENGTH_MAX]: dirty[name] for name in most},
            "since_ms": {name[:_NAME_LENGTH_MAX]: ms for name, ms in since.items() if ms},
            "versions": sum(dirty.values()),
        },
    }


class Stream:
    """A stream over all its inputs; a stream over one table is a merge with one input.

    Parameters
    ----------
    inputs : Inputs
    query : QueryOptions
        Options for all inputs.
    columns : pyarrow.Schema, optional
        Schema to which all inputs' batches are converted; by default they stay unchanged.
    offsets : Offsets, optional
        Stored form for offsets; by default they hold all positions.
    heads : InputHeads, optional
        Reads or polls the inputs' heads.
    clock : callable, optional
        In seconds; never goes back.
    wall : callable, optional
        In seconds since 1970: offsets store when inputs began to wait, for later processes.
    """

    def __init__(
        self,
        inputs: Inputs,
        query: QueryOptions,
        *,
        columns: pa.Schema | None = None,
        offsets: Offsets | None = None,
        heads: InputHeads | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._inputs = inputs
        self._query = query
        self._columns = columns
        self._offsets = offsets or PlainOffsets()
        self._exact = None if query.order is None else ExactOrder(inputs, query)
        self._heads = heads or InputHeads(inputs, clock=clock)
        self._backlogs = Backlogs(inputs)
        self._urgencies = Urgencies(inputs, query)
        self._pressure = StreamGauge(inputs, query)
        self._wall = wall
        self._frozen: Heads | None = None
        self._clock = clock
        self._debounce = (
            None
            if query.rows_min is None
            else Debounce(query.rows_min, query.delay_ms, clock=clock, wall=wall)
        )
        self._idle: tuple[Mapping[str, Any], Heads] | None = None
        self._idle_until_s = inf
        self._last: PlannedLast | None = None
        self._committed: Mapping[str, Position] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks only read: planning state and storage clients, which cannot be pickled, stay here.
        return {name: self.__dict__[name] for name in ("_inputs", "_query", "_columns")}

    # -- planning --------------------------------------------------------------------

    def initial(self) -> dict[str, Any]:
        """Return the offset before the first batch.

        Constant: on replay Spark requests it again, when the inputs may have grown.
        """
        return Offset().to_json()

    def freeze(self) -> None:
        """Let the stream end at the data available now."""
        self._frozen = self._heads.read_now()
        for name in self._frozen:
            with about("input", name):
                self._inputs[name].freeze()

    def latest(self, start: Mapping[str, Any], *, everything: bool = False) -> Mapping[str, Any]:
        """Return a batch's end offset; returns ``start`` itself if the batch is empty.

        Waits briefly for polled inputs; ``everything`` ignores the limits.
        """
        if self._frozen is not None:
            return self._plan(start, SeenHeads(self._frozen), everything)
        asked_s = self._heads.now_s()
        while True:
            end = self._plan(start, self._heads.read_if_due(), everything)
            if end is not start or not self._heads.wait_for_news(asked_s, self._idle_until_s):
                return end

    def _plan(
        self, start: Mapping[str, Any], poll: SeenHeads, everything: bool
    ) -> Mapping[str, Any]:
        heads = poll.heads
        if self._is_idle(start, heads, everything):
            return start  # Memory only: Spark polls an idle query many times a second.
        offset = self._offsets.read(start)
        standing = offset.positions
        self._idle_until_s = inf
        if not (self._backlogs.is_incremental(standing, poll) and poll.has_same_names):
            self._inputs.update_inputs(standing, heads)
        if self._exact is not None:
            rows = None if everything else self._query.rows_max
            reached = self._exact.latest(offset, heads, rows)
            moved = None if reached != offset else frozenset[str]()
        else:
            _refuse_exact(offset)
            limits = None if everything else Limits.of(self._query)
            reached, moved = self._plan_paced(offset, *self._limit_batches(standing, poll, limits))
        if moved is None or moved:  # No batch is emitted only because the fairness state changed.
            return self._offsets.write(reached, start, moved=moved)
        self._pressure.record_idle()
        # Spark asks how to go on when all before is done, and reports the last batch only with the
        # next one: a writer waiting for this stream would wait for a batch it must write itself.
        self._release(offset.positions)
        self._idle = start, heads
        self._heads.restart_pause()
        return start

    def _is_idle(self, start: Mapping[str, Any], heads: Heads, everything: bool) -> bool:
        """Return whether, by memory alone, no batch starts at an offset yet."""
        if self._idle is None or self._idle[1] is not heads or self._idle[0] != start:
            return False
        return self._idle_until_s == inf or (not everything and self._clock() < self._idle_until_s)

    def _limit_batches(
        self, standing: Heads, poll: SeenHeads, limits: Limits | None
    ) -> tuple[SeenHeads, Limits | None]:
        """Return the heads and limits for a micro-batch when inputs must be read by complete
        batches.

        It takes at least one batch, and only complete ones, so that no limit remains within them.
        """
        inputs = self._inputs
        if limits is None or limits.is_none or not isinstance(inputs, GroupInputs):
            return poll, limits
        heads = inputs.limit_to_batches(standing, max(limits.rows or 0, self._query.rows_min or 0))
        return (poll if heads is None else SeenHeads(heads)), Limits()

    def _plan_paced(
        self, offset: Offset, poll: SeenHeads, limits: Limits | None
    ) -> tuple[Offset, frozenset[str]]:
        """Return a batch's end, and the inputs whose position it changes."""
        self._pressure.resume(offset)
        standing = offset.positions
        is_known = self._backlogs.is_incremental(standing, poll) and poll.has_same_names
        backlogs = self._backlogs.read(standing, poll)
        # Where an input begins is noted at once: the newest version is another one later.
        gone = frozenset[str]() if is_known else standing.keys() - poll.heads.keys()
        is_same = not gone and backlogs.keys() <= standing.keys()
        if self._debounce is not None and limits is not None and self._frozen is None and is_same:
            held = self._debounce.hold(backlogs)
            if held is not None:
                self._idle_until_s = held.until_s
                self._last = PlannedLast(backlogs=backlogs, positions=standing)
                return offset, frozenset()
        now_ms = max(0, int(self._wall() * 1000))
        # A frozen stream reads all data up to its end, so it defers no input.
        defers = self._pressure.defers_lowest and self._frozen is None
        # One input alone has no turns.
        has_turns = not (limits is None or limits.is_none or UNNAMED in backlogs)
        urgencies = self._urgencies.of(backlogs, now_ms) if has_turns else None
        serve = partial(
            plan_limited_batch,
            limits=limits,
            state=offset.state,
            now_ms=now_ms,
            urgencies=urgencies,
        )
        reached = serve(backlogs, defers_lowest=defers)
        if defers and _moves_no_input(offset, reached):
            backlogs = self._backlogs.read(standing, poll)  # Their pieces can be had once.
            reached = serve(backlogs)
        if limits is None:
            self._pressure.record_unlimited_batch()
        else:
            self._pressure.record_batch(backlogs, reached, now_ms)
        positions = {**standing, **reached.positions}
        for name in gone:
            del positions[name]
        fresh = {name: self._inputs[name] for name in backlogs if name not in standing}
        self._backlogs.record_positions(positions)
        waiting = partial(waiting_by_band, reached.state, now_ms, urgencies)
        self._last = PlannedLast(backlogs=backlogs, positions=positions, waiting=waiting)
        moved = frozenset(
            name for name, position in reached.positions.items() if standing.get(name) != position
        )
        state = self._pressure.offset_state(reached)
        state = with_start_options(state, fresh) if fresh else without(state, BEGAN)
        return Offset(positions=positions, state=state), moved | gone

    def report(self) -> dict[str, Any]:
        """Return the stream's progress report (`report`)."""
        poller = self._heads.poller
        return report(
            self._inputs,
            self._heads.last_heads(),
            self._last,
            schedule=None if poller is None else poller.schedule,
            governor=self._pressure.governor,
        )

    def splits(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[TaskRead]:
        """Return the tasks for the batch between two offsets.

        A table without a name has one split per task; named inputs' splits are packed by bytes, and
        an exact order uses one task.
        """
        first, last = self._offsets.read(start), self._offsets.read(end)
        if self._exact is not None:
            return [*self._exact.passages(first, last)]
        _refuse_exact(last)
        moved = {
            name: (self._inputs[name], before, position)
            for name, position in last.positions.items()
            if position != (before := first.positions.get(name))
        }
        fresh = {name: input_ for name, (input_, before, _) in moved.items() if before is None}
        if BEGAN in last.state:
            require_same_start_options(last.state, fresh)
        splits = map_inputs(moved, _splits)
        return [
            *plan_packs(
                splits,
                lambda name, split: moved[name][0].split_bytes(split),
                self._query.slots,
            )
        ]

    def commit(self, end: Mapping[str, Any]) -> None:
        """Release resources before an offset: Spark starts no later batch there."""
        self._release(self._offsets.read(end).positions)
        self._offsets.commit(end)

    def _release(self, positions: Mapping[str, Position]) -> None:
        for name, position in positions.items():
            if self._committed.get(name) != position:
                with about("input", name):
                    self._inputs[name].commit(position)
        self._committed = positions

    def stop(self) -> None:
        """Stop polling the inputs. Idempotent."""
        self._heads.stop()

    # -- reading, in the tasks -------------------------------------------------------

    def read(self, work: TaskRead) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows."""
        yield from read_work(self._inputs, work, self._query, self._columns)


def _refuse_exact(offset: Offset) -> None:
    """Refuse an exact order's offset in a query without an exact order."""
    if STATE in offset.state:
        raise exact_order_error()


def _moves_no_input(before: Offset, reached: Offset) -> bool:
    return all(
        before.positions.get(name) == position for name, position in reached.positions.items()
    )


def _splits(of: tuple[Input, Position | None, Position]) -> list[Any]:
    input_, before, position = of
    return input_.splits(before, position)
