"""Where a query begins, many inputs are asked at once: each of some waits for all the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import StorageError
from spark_upsert.options.inputs import TABLE, InputOptions, ReadPlan
from spark_upsert.streams.inputs.inputs import Described, NamedInputs
from spark_upsert.streams.offsets.offset import Position
from spark_upsert.streams.planner.formats import (
    InputFormat,
    MergedRead,
    batch_inputs,
    explain_read,
    plan_columns,
    stream_inputs,
)
from spark_upsert.streams.planner.stream import Stream
from spark_upsert.streams.reads.ordered import CountedStep, StreamStep
from spark_upsert.streams.reads.packing import CONCURRENT_REQUESTS, map_inputs
from tests.support.clocked import Now
from tests.support.inputs import COLUMNS, Told, ToldRead

NAMES = ("a", "b", "c", "d")
HANGING_S = 240.0
"""Who is asked alone waits for so long, and then it is an error."""


class Meeting:
    """A place where all inputs must be at once."""

    def __init__(self, count: int = len(NAMES)) -> None:
        self._barrier = threading.Barrier(count, timeout=HANGING_S)
        self.times = 0

    def wait(self) -> None:
        if self._barrier.wait() == 0:
            self.times += 1


@dataclass
class PublicationSettings:
    """What a kind makes of an input that has one row; each question is a meeting."""

    told: Told
    ask: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.told, name)

    def splits(self) -> Sequence[int]:
        self.ask()
        return ToldRead(self.told).splits()

    def steps(self) -> Sequence[CountedStep]:
        self.ask()
        return ToldRead(self.told).steps()

    def identity(self) -> str:
        self.ask()
        return self.told.name

    def explain(self, splits: Sequence[int]) -> str:
        return f"{len(splits)}"


@dataclass
class AskedKind:
    """A format whose inputs meet whenever they are asked."""

    meeting: Meeting = field(default_factory=Meeting)

    def describe(self, options: InputOptions) -> Described:
        self.meeting.wait()
        return Described(COLUMNS, options.name)

    def stream(self, options: InputOptions, columns: pa.Schema) -> Any:
        return Told(options.name, [1])

    def batch(self, options: InputOptions, columns: pa.Schema) -> Any:
        return PublicationSettings(Told(options.name, [1]), self.meeting.wait)


def plan_of(**more: str) -> ReadPlan:
    return ReadPlan.parse({"inputs": ",".join(NAMES), **more})


@pytest.mark.parametrize("merge_schema", ["false", "true"])
@pytest.mark.parametrize("merge", ["interleave", "roundrobin"])
def test_a_batch_asks_all_inputs_at_once(merge: str, merge_schema: str) -> None:
    kind = AskedKind()
    kinds: dict[str, InputFormat] = {TABLE: kind}
    plan = plan_of(merge=merge, mergeSchema=merge_schema)
    columns = plan_columns(plan, kinds)
    read = MergedRead(batch_inputs(plan, columns, kinds), plan.query)
    read.splits()
    # Their columns (twice where they may differ), which they are, and their splits.
    assert kind.meeting.times == (4 if merge_schema == "true" else 3)


def test_a_stream_asks_all_inputs_for_their_columns_at_once() -> None:
    kind = AskedKind()
    kinds: dict[str, InputFormat] = {TABLE: kind}
    plan = plan_of(mergeSchema="true")
    stream_inputs(plan, plan_columns(plan, kinds), kinds)
    assert kind.meeting.times == 2


@pytest.mark.parametrize("merge", ["interleave", "concat"])
def test_explaining_asks_all_inputs_at_once(merge: str) -> None:
    kind = AskedKind()
    explain_read(plan_of(merge=merge), {TABLE: kind})
    assert kind.meeting.times == 3


class Counted(Told):
    """An input whose rows are counted in a meeting."""

    def __init__(self, name: str, meeting: Meeting) -> None:
        super().__init__(name, [3])
        self._meeting = meeting

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        for step in super().steps(start, end):
            yield replace(step, rows=partial(self._rows, step))

    def _rows(self, step: StreamStep) -> int:
        self._meeting.wait()
        return step.rows()


class Planned(Told):
    """An input whose splits are planned in a meeting."""

    def __init__(self, name: str, meeting: Meeting) -> None:
        super().__init__(name, [3])
        self._meeting = meeting

    def splits(self, start: Position | None, end: Position) -> list[int]:
        self._meeting.wait()
        return super().splits(start, end)

    def steps(self, start: Position | None, end: Position) -> Iterator[StreamStep]:
        self._meeting.wait()
        yield from super().steps(start, end)


@pytest.mark.parametrize("merge", ["interleave", "concat"])
def test_a_micro_batch_asks_all_inputs_for_their_splits_at_once(merge: str) -> None:
    meeting = Meeting()
    inputs = {name: Planned(name, meeting) for name in NAMES}
    stream = Stream(NamedInputs(inputs), plan_of(merge=merge).query, clock=Now())
    start = stream.initial()
    assert len(stream.splits(start, stream.latest(start))) >= 1
    assert meeting.times == 1


def test_an_exact_order_counts_the_rows_of_all_inputs_at_once() -> None:
    meeting = Meeting()
    inputs = {name: Counted(name, meeting) for name in NAMES}
    query = plan_of(merge="roundrobin", maxRowsPerTrigger="2").query
    stream = Stream(NamedInputs(inputs), query, clock=Now())
    stream.latest(stream.initial())
    assert meeting.times == 1


def test_the_first_input_that_fails_is_named_and_the_answers_keep_their_order() -> None:
    def ask(number: int) -> int:
        if number >= 30:
            raise StorageError(f"number {number}", hint="try again.")
        return number * 2

    few = {f"input{number}": number for number in range(CONCURRENT_REQUESTS + 5)}
    assert map_inputs(few, ask) == {name: number * 2 for name, number in few.items()}
    assert list(map_inputs(few, ask)) == list(few)
    assert map_inputs({}, ask) == {}
    many = {f"input{number}": number for number in range(60)}
    with pytest.raises(StorageError, match="input 'input30': number 30"):
        map_inputs(many, ask)
