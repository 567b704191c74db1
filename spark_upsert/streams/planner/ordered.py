"""Exact orders over batches (`ExactOrder`): the sequence of `core.input_order`, cut anywhere.

Positions are at step bounds; ``skip`` counts delivered rows of a begun step. Many small batches
give the rows of one large batch (docs/adr/0024).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from spark_upsert.core.input_order import Concat, Order, RoundRobin, Seeded, order_from_json, spend
from spark_upsert.errors import OptionError, about
from spark_upsert.options.read import MERGE_SEQ, QueryOptions
from spark_upsert.store.records import MALFORMED, text, whole
from spark_upsert.streams.inputs.inputs import Heads, Inputs
from spark_upsert.streams.inputs.protocol import Backlog, SteppedInput
from spark_upsert.streams.offsets.offset import Json, Offset, Position
from spark_upsert.streams.planner.formats import (
    Reads,
    collect_row_options,
    require_same_row_options,
    require_same_start_options,
    row_options_from_json,
    row_options_to_json,
    with_start_options,
)
from spark_upsert.streams.reads.ordered import (
    InputShare,
    Passage,
    StreamStep,
    splits_in_order,
    without_order,
)
from spark_upsert.streams.reads.packing import map_inputs

STATE = "order"
"""Key in an offset's state for an exact order's progress."""

_ROWS_MAX = 1 << 53
"""Larger than any sequence; sums stay within 64 bits."""

_ALTERED = "the checkpoint was altered; give the query a new checkpointLocation."


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderProgress:
    """An exact order's state after a batch, and the rows in that batch.

    =========  ======================================================================
    ``ahead``  for inputs with more data: the position after their next step
    ``given``  rows per input in the batch; absent if they were not counted
    ``mode``   the order's name (`mode_of`)
    ``names``  the inputs, in the order in which they were declared
    ``order``  its state (`core.input_order`)
    ``reads``  options that affect the rows per step (`formats`); absent from
               offsets of older releases
    ``rows``   rows in the sequence so far; null if a batch did not count
    ``skip``   rows already delivered in the next step, if any
    =========  ======================================================================
    """

    mode: str
    order: Order
    names: tuple[str, ...]
    rows: int | None = 0
    ahead: Mapping[str, Position] = field(default_factory=dict)
    batch_rows: Mapping[str, int] | None = field(default_factory=dict)
    skip: Mapping[str, int] = field(default_factory=dict)
    reads: Reads = field(default_factory=dict)

    def partial_step_end(self, name: str) -> Position | None:
        """Return the position after an input's partially delivered step, None if there is none."""
        return self.ahead[name] if self.skip.get(name) else None

    def row_count(self, name: str) -> int | None:
        """Return an input's row count in the batch; None: all rows up to its position."""
        if self.batch_rows is not None:
            return self.batch_rows.get(name, 0)
        # A batch that does not count ends within no step: a begun one was so before, and is kept.
        return 0 if name in self.skip else None

    def to_json(self) -> dict[str, Json]:
        """Return the form for an offset's state."""
        return {
            "ahead": {name: front.record for name, front in self.ahead.items()},
            "given": None if self.batch_rows is None else dict(self.batch_rows),
            "mode": self.mode,
            "names": list(self.names),
            "order": self.order.to_json(),
            "reads": row_options_to_json(self.reads),
            "rows": self.rows,
            "skip": dict(self.skip),
        }

    @classmethod
    def from_json(cls, record: Any) -> OrderProgress:
        """Parse the form in an offset; raises `OptionError`."""
        try:
            counts = record["given"]
            names = tuple(map(text, record["names"]))
            progress = cls(
                ahead={name: Position.of(front) for name, front in record["ahead"].items()},
                batch_rows=None
                if counts is None
                else {n: _count(rows) for n, rows in counts.items()},
                mode=text(record["mode"]),
                names=names,
                order=order_from_json(record["order"]),
                rows=None if record["rows"] is None else _count(record["rows"]),
                skip={name: _count(rows, least=1) for name, rows in record["skip"].items()},
                reads=row_options_from_json(record["reads"], names) if "reads" in record else {},
            )
            progress._require_whole()
            return progress
        except MALFORMED as error:
            raise OptionError(
                f"the checkpoint holds {record!r:.500}, which is no state of an exact order.",
                hint=_ALTERED,
            ) from error

    def _require_whole(self) -> None:
        """Check input names, begun steps and row counts; raises `ValueError`."""
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError("no input is named, or one twice")
        if not {*self.ahead, *(self.batch_rows or ())} <= set(self.names):
            raise ValueError("an input is meant that is not named")
        if not self.skip.keys() <= self.ahead.keys():
            raise ValueError("a step is begun, and where it ends is not said")
        if self.rows is not None and sum((self.batch_rows or {}).values()) > self.rows:
            raise ValueError("the batch has more rows than there were")


def _count(rows: Any, *, least: int = 0) -> int:
    return whole(rows, least=least, most=_ROWS_MAX)


def mode_of(query: QueryOptions) -> str:
    """Return an exact order's name, including its seed."""
    match query.order:
        case Seeded(state=seed):
            return f"interleave, seed {seed}"
        case _:
            return query.merge.value


class ExactOrder:
    """Plans batches in an exact order.

    Parameters
    ----------
    inputs : Inputs
    query : QueryOptions
        With an `order`.
    """

    def __init__(self, inputs: Inputs, query: QueryOptions) -> None:
        self._inputs = inputs
        self._query = query
        assert query.order is not None
        self._first: Order = query.order

    def latest(self, offset: Offset, heads: Heads, limit: int | None) -> Offset:
        """Return a batch's end offset within a row limit; returns ``offset`` itself if it is empty."""
        names = tuple(heads)
        reads = collect_row_options({name: self._stepped(name) for name in names})
        standing = self._progress_at(offset, names)
        require_same_row_options(standing.reads, reads)
        named = {name: (name, offset, standing, head) for name, head in heads.items()}
        fronts = list(map_inputs(named, lambda of: self._front(*of)).values())
        counts: list[int] | None = None
        order = standing.order
        if limit is not None or self._counts_all:
            counts, order = _take(fronts, order, limit)
            ends = [front.end_after(rows) for front, rows in zip(fronts, counts, strict=True)]
        else:
            ends = list(_iter_all_ends(fronts))
        positions = {end.name: end.position for end in ends}
        if positions == offset.positions and not (counts and any(counts)):
            return offset
        rows = standing.rows
        progress = OrderProgress(
            mode=standing.mode,
            order=order,
            names=names,
            rows=rows + sum(counts) if counts is not None and rows is not None else None,
            ahead={end.name: end.ahead for end in ends if end.ahead is not None},
            batch_rows=None
            if counts is None
            else {front.name: rows for front, rows in zip(fronts, counts, strict=True) if rows},
            skip={end.name: end.skip for end in ends if end.skip},
            reads=reads,
        )
        fresh = {name: self._inputs[name] for name in names if name not in offset.positions}
        state = with_start_options(offset.state, fresh)
        return Offset(positions=positions, state={**state, STATE: progress.to_json()})

    def passages(self, first: Offset, last: Offset) -> list[Passage]:
        """Return the passage between two offsets; an empty list if there are no rows."""
        if STATE not in last.state:
            raise _plain_offset_error()
        after = OrderProgress.from_json(last.state[STATE])
        _require_mode(after, self._query)
        if not last.positions.keys() >= set(after.names):
            raise OptionError(
                f"the checkpoint has an exact order of {list(after.names)!r:.200}, and positions "
                f"of {list(last.positions)!r:.200}.",
                hint=_ALTERED,
            )
        require_same_row_options(
            after.reads, collect_row_options({name: self._inputs[name] for name in after.names})
        )
        fresh = {name: self._inputs[name] for name in after.names if name not in first.positions}
        require_same_start_options(last.state, fresh)
        before = self._before(first, after.names)

        def share(of: tuple[int, str]) -> InputShare:
            index, name = of
            rows = after.row_count(name)
            start = first.positions.get(name)
            end = after.partial_step_end(name) or last.positions[name]
            splits: tuple[Any, ...] = ()
            if rows != 0 and start != end:
                steps = _steps(self._stepped(name), start, end, before.partial_step_end(name))
                splits = splits_in_order(steps)
            return InputShare(
                index=index,
                name=name,
                splits=splits,
                skip=before.skip.get(name, 0),
                rows=rows,
                has_more=name in after.ahead,
            )

        named = {name: (index, name) for index, name in enumerate(after.names)}
        all_shares = map_inputs(named, share).values()
        shares = [passage for passage in all_shares if passage.splits or passage.has_more]
        if not any(share.splits for share in shares):
            return []
        return [
            Passage(
                shares=tuple(shares),
                order=before.order,
                inputs=len(after.names),
                first=before.rows or 0,
            )
        ]

    @property
    def _counts_all(self) -> bool:
        """Whether all rows in a batch are counted even without a limit."""
        return not isinstance(self._first, Concat) or MERGE_SEQ in self._query.merge_columns

    def _before(self, offset: Offset, names: tuple[str, ...]) -> OrderProgress:
        """Return the order's progress at an offset, adapted to the declared inputs."""
        record = offset.state.get(STATE)
        if record is None:
            if offset.positions:
                raise _plain_offset_error()
            return OrderProgress(mode=mode_of(self._query), order=self._first, names=names)
        progress = OrderProgress.from_json(record)
        _require_order_of(progress.names, names)
        return replace(
            progress, order=_adapt_order(progress.order, progress.names, names), names=names
        )

    def _progress_at(self, offset: Offset, names: tuple[str, ...]) -> OrderProgress:
        progress = self._before(offset, names)
        _require_mode(progress, self._query)
        if progress.rows is None and MERGE_SEQ in self._query.merge_columns:
            raise OptionError(
                f"'mergeColumns' asks for '{MERGE_SEQ}', and this checkpoint was begun without it, "
                "so that its rows were not counted.",
                hint=f"drop '{MERGE_SEQ}', or give the query a new checkpointLocation.",
                option="mergeColumns",
            )
        return progress

    def _front(
        self, name: str, offset: Offset, standing: OrderProgress, head: Position
    ) -> _InputSteps:
        input_ = self._stepped(name)
        position, front = offset.positions.get(name), standing.partial_step_end(name)
        with about("input", name):
            # First of all, because an input takes its lease at the position passed here.
            begun = [] if front is None else [_begun_step(input_, position, front)]
            backlog = input_.backlog(front or position, head)
        start = backlog.start if front is None or position is None else position
        return _InputSteps(name, start, begun, input_, backlog, standing.skip.get(name, 0))

    def _stepped(self, name: str) -> SteppedInput:
        input_ = self._inputs[name]
        if not isinstance(input_, SteppedInput):
            raise without_order(name)
        return input_


def exact_order_error() -> OptionError:
    """Return the error for an exact order's offset in a query without an exact order.

    A step may be delivered in part, which positions do not contain.
    """
    return OptionError(
        "the checkpoint is that of an exact order, and the query asks for none.",
        hint="give 'merge' and 'interleaveSeed' as they were, or a new checkpointLocation.",
        option="merge",
    )


def _require_mode(standing: OrderProgress, query: QueryOptions) -> None:
    mode = mode_of(query)
    if standing.mode != mode:
        raise OptionError(
            f"the checkpoint is that of another order ({standing.mode}) than the query asks for "
            f"({mode}).",
            hint="give 'merge' and 'interleaveSeed' as they were, or a new checkpointLocation.",
            option="merge",
        )


def _plain_offset_error() -> OptionError:
    return OptionError(
        "the checkpoint is that of a query that takes what is ready first, and this one asks for "
        "an exact order, which has no beginning there.",
        hint="leave out 'merge' and 'interleaveSeed', or give the query a new checkpointLocation.",
        option="merge",
    )


def _require_order_of(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Refuse inputs in another order; inputs may be added or removed."""
    common = [name for name in before if name in after]
    if common != [name for name in after if name in before]:
        order_text = ",".join(before)
        raise OptionError(
            f"the inputs of this exact order were declared as {order_text:.500}, and are in "
            "another order now, which would be another sequence of rows.",
            hint=f"give 'inputs' in that order: {','.join(common):.500}; or give the query a new "
            "checkpointLocation.",
            option="inputs",
        )


def _adapt_order(order: Order, before: tuple[str, ...], after: tuple[str, ...]) -> Order:
    """Adapt an order to other inputs: the turn passes to the next remaining input."""
    if not isinstance(order, RoundRobin) or before == after:
        return order
    turn = order.cursor % len(before)
    common = (name for name in (*before[turn:], *before[:turn]) if name in after)
    return RoundRobin(cursor=next((after.index(name) for name in common), 0))


def _steps(
    each: SteppedInput, start: Position | None, end: Position, begun: Position | None
) -> Iterator[StreamStep]:
    """Yield the steps between two positions, first the rest of a partially delivered step."""
    if begun is not None:
        yield from each.steps(start, begun)
        start = begun
    if start != end:
        yield from each.steps(start, end)


def _begun_step(each: SteppedInput, start: Position | None, ahead: Position) -> StreamStep:
    """Return the partially delivered step; it ends at the recorded position."""
    steps = list(each.steps(start, ahead))
    if len(steps) != 1:
        raise OptionError(
            f"the checkpoint says that one step of the input is begun, and {len(steps)} lie there.",
            hint=_ALTERED,
        )
    return replace(steps[0], after=lambda: ahead)


@dataclass(frozen=True, slots=True)
class _InputEnd:
    """An input's position after a batch."""

    name: str
    position: Position
    skip: int = 0
    ahead: Position | None = None


class _InputSteps:
    """One input's unread steps, read lazily."""

    def __init__(
        self,
        name: str,
        start: Position,
        begun: list[StreamStep],
        each: SteppedInput,
        backlog: Backlog,
        skip: int,
    ) -> None:
        self.name = name
        self._start = start
        self._each = each
        self._backlog = backlog
        self._steps = chain(begun, self._iter_unread())
        self._skip = skip
        self._seen: list[StreamStep] = []
        self._rows: list[int] = []

    def _iter_unread(self) -> Iterator[StreamStep]:
        # Computed lazily: the end may cost a request, and is needed only when steps are taken.
        yield from _steps(self._each, self._backlog.start, self._backlog.end(), None)

    def count(self, most: int | None) -> int:
        """Return the unread row count; counting may stop once it reaches ``most``."""
        counted = sum(self._rows) - self._skip
        while most is None or counted < most:
            with about("input", self.name):
                step = next(self._steps, None)
                if step is None:
                    break
                rows = step.rows()
                if not self._seen and rows < self._skip:
                    raise OptionError(
                        f"the checkpoint says that {self._skip} rows of a step are delivered, and "
                        f"it has {rows}.",
                        hint=_ALTERED,
                    )
            self._seen.append(step)
            self._rows.append(rows)
            counted += rows
        return counted

    def end_after_all(self) -> tuple[_InputEnd, bool]:
        """Return the position after all offered steps, and whether more may follow."""
        with about("input", self.name):
            end = self._backlog.end()
        return _InputEnd(self.name, end), end != self._start and not self._backlog.is_all

    def end_after(self, row_count: int) -> _InputEnd:
        """Return the position after this many rows; they must have been counted."""
        with about("input", self.name):
            left, position = self._skip + row_count, self._start
            for index, (step, rows) in enumerate(zip(self._seen, self._rows, strict=True)):
                if rows > left:
                    last = self._seen[index - 1].after() if index else position
                    return _InputEnd(self.name, last, left, step.after())
                left -= rows
            if self._seen:
                position = self._seen[-1].after()
            return _InputEnd(self.name, position)


def _iter_all_ends(fronts: list[_InputSteps]) -> Iterator[_InputEnd]:
    """Yield each input's end position, one input after the other.

    If an input may have more, it keeps its turn until the next batch, and later inputs wait.
    """
    is_last = False
    for front in fronts:
        if is_last:
            front.count(0)
            yield front.end_after(0)
        else:
            end, is_last = front.end_after_all()
            yield end


def _take(fronts: list[_InputSteps], order: Order, limit: int | None) -> tuple[list[int], Order]:
    """Return each input's row count in the batch, and the order after them."""
    if isinstance(order, Concat):
        row_counts: list[int] = []
        for front in fronts:
            left = None if limit is None else limit - sum(row_counts)
            rows = front.count(left)
            row_counts.append(rows if left is None else min(rows, left))
        return row_counts, order
    by_name = {front.name: front for front in fronts}
    had = map_inputs(by_name, lambda front: front.count(limit))
    counts, next_order = spend(order, list(had.values()), limit)
    return counts.tolist(), next_order
