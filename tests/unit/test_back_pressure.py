"""What a task reads ahead of who takes its rows, counted: through a stream, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataLossError
from spark_upsert.merge import CHANNEL_EVENTS
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.inputs.inputs import NamedInputs
from spark_upsert.streams.planner.stream import Stream
from tests.support.clocked import Now
from tests.support.inputs import COLUMNS, Told
from tests.support.waiting import merge_threads, passed, watched

BATCH = 256
DEPTH = CHANNEL_EVENTS // BATCH


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert merge_threads() == []


class Counted(Told):
    """An input of one large epoch that counts what is taken of it."""

    def __init__(self, name: str, rows: int = 100 * BATCH) -> None:
        super().__init__(name, [rows])
        self.taken = 0
        self.is_closed = False
        self.gate: threading.Event | None = None
        self.at_gate = threading.Event()
        self.failure: Exception | None = None

    def read(self, split: int) -> Iterator[pa.RecordBatch]:
        try:
            if self.gate is not None:
                self.at_gate.set()
                passed(self.gate)
            if self.failure is not None:
                raise self.failure
            for start in range(0, self.epochs[split], BATCH):
                names = [f"{self.name}{start + row + 1}" for row in range(BATCH)]
                self.taken += BATCH
                yield pa.record_batch([pa.array(names)], schema=COLUMNS)
        finally:
            self.is_closed = True


def reading(inputs: dict[str, Counted], **given: str) -> Any:
    """Return the generator of the one task of a batch over all inputs."""
    query = ReadPlan.parse({"inputs": "a", "parallelism": "1", **given}).query
    stream = Stream(NamedInputs(inputs), query, clock=Now())
    [work] = stream.splits(stream.initial(), stream.latest(stream.initial()))
    return stream.read(work)


def counted(names: str) -> dict[str, Counted]:
    return {name: Counted(name) for name in names}


@pytest.mark.parametrize("names", ["ab", "abcd"], ids=len)
def test_a_sink_that_stops_lets_inputs_times_depth_plus_1_times_batch_be_taken(names: str) -> None:
    inputs = counted(names)
    with watched() as waits, closing(reading(inputs)) as rows:
        for handed in range(1, 8):
            next(rows)
            waits.until(len(names))
            taken = sum(each.taken for each in inputs.values())
            assert taken - handed * BATCH == len(names) * (DEPTH + 1) * BATCH
    assert all(each.is_closed for each in inputs.values())


def test_one_input_is_read_by_the_task_itself_and_not_ahead() -> None:
    inputs = counted("a")
    with closing(reading(inputs)) as rows:
        next(rows)
        assert merge_threads() == []
        assert inputs["a"].taken == BATCH


def test_a_gated_input_delays_nobody_where_rows_come_as_they_are_ready() -> None:
    inputs = counted("ab")
    gate = inputs["b"].gate = threading.Event()
    with closing(reading(inputs)) as rows:
        first = [next(rows).column("row")[0].as_py() for _ in range(100)]
        assert all(name.startswith("a") for name in first)
        gate.set()
        assert next(rows).column("row")[0].as_py().startswith("b")


def test_a_gated_input_delays_those_behind_it_in_concat() -> None:
    inputs = counted("ab")
    gate = inputs["a"].gate = threading.Event()
    got = threading.Event()
    with closing(reading(inputs, merge="concat")) as rows:

        def take() -> None:
            next(rows)
            got.set()

        thread = threading.Thread(target=take)
        thread.start()
        passed(inputs["a"].at_gate)
        assert inputs["b"].taken == 0
        assert not got.is_set()
        gate.set()
        passed(got)
        thread.join()


@pytest.mark.parametrize(
    "failure",
    [DataLossError("it is gone."), OSError("the disk is gone")],
    ids=["ours", "another's"],
)
def test_an_input_that_fails_releases_the_others_and_is_named(failure: Exception) -> None:
    inputs = counted("abc")
    inputs["b"].failure = failure
    rows = reading(inputs)
    with pytest.raises(type(failure)) as caught:
        list(rows)
    told = "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "input 'b'" in told
    assert merge_threads() == []


def test_closing_does_not_wait_for_silent_inputs() -> None:
    inputs = counted("ab")
    gate = inputs["b"].gate = threading.Event()
    rows = reading(inputs)
    next(rows)
    passed(inputs["b"].at_gate)
    rows.close()
    gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("merge-"):
            assert thread.daemon
            thread.join()
    assert inputs["b"].is_closed


def test_hundreds_of_inputs_are_open_a_few_at_a_time() -> None:
    inputs = {f"i{number}-": Counted(f"i{number}-", BATCH) for number in range(200)}
    most = 0
    found: list[str] = []
    for batch in reading(inputs):
        most = max(most, len(merge_threads()))
        found += batch.column("row").to_pylist()
    assert 1 < most <= 16
    assert len(found) == len(set(found)) == 200 * BATCH
