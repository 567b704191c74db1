"""Merges over threads: who waits for whom, counted exactly, and that every thread ends."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import ContextVar
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from spark_upsert.errors import DataError
from spark_upsert.merge.merged import concat, live, streamed
from spark_upsert.merge.readers import (
    Bounds,
    Delivery,
    MergeCancellation,
    MergeCounters,
    MergeReaders,
    OpenInput,
)
from tests.support.merging import batches_of, rows_in
from tests.support.waiting import merge_threads, no_thread_is_left, passed, watched

Merged = Generator[Delivery, None, None]

MERGES = [pytest.param(live, id="live"), pytest.param(concat, id="concat")]


@pytest.fixture(autouse=True)
def each_thread_ends() -> Iterator[None]:
    with no_thread_is_left():
        yield


class Input:
    """An input that counts what is taken of it, and may wait for a gate before a batch."""

    def __init__(self, name: str, rows: int, batch: int, *, gate_before: int | None = None) -> None:
        self.name = name
        self.taken = 0
        self.is_closed = False
        self.gate = threading.Event()
        self.at_gate = threading.Event()
        self._sizes = [batch] * (rows // batch)
        self._gate_before = gate_before

    def __call__(self) -> Iterator[pa.RecordBatch]:
        try:
            for index, batch in enumerate(batches_of(self.name, self._sizes)):
                if index == self._gate_before:
                    self.at_gate.set()
                    passed(self.gate)
                self.taken += batch.num_rows
                yield batch
        finally:
            self.is_closed = True


def inputs_of(names: str, rows: int, batch: int) -> dict[str, Input]:
    return {name: Input(name, rows, batch) for name in names}


def broken(error: BaseException, after: int = 0) -> Callable[[], Iterator[pa.RecordBatch]]:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from batches_of("broken", [1] * after)
        raise error

    return batches


def readers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name.startswith("merge-")]


# -- back-pressure, by counting


def test_33_concat_of_3_inputs_of_5000_whose_consumer_has_not_begun() -> None:
    inputs, counters = inputs_of("abc", 5_000, 250), MergeCounters()
    bounds = Bounds(capacity=1_000, batch_rows=250)
    with watched() as waits, MergeReaders(inputs, bounds, counters=counters):
        waits.until(3)
        found = counters.snapshot()
        assert [found[name].queued for name in "abc"] == [1_000] * 3
        assert [each.taken for each in inputs.values()] == [1_250] * 3


def test_33_the_default_channel_holds_1024_events() -> None:
    inputs, counters = inputs_of("abc", 4_096, 1_024), MergeCounters()
    with watched() as waits, MergeReaders(inputs, Bounds(), counters=counters):
        waits.until(3)
        assert [found.queued for found in counters.snapshot().values()] == [1_024] * 3


def test_34_concat_whose_first_input_is_silent_for_a_while() -> None:
    inputs, counters = inputs_of("bc", 5_120, 256), MergeCounters()
    leader = Input("a", 512, 256, gate_before=0)
    with watched() as waits, ThreadPoolExecutor(1) as pool:
        merge = concat({"a": leader, **inputs}, batch_rows=256, counters=counters)
        output = pool.submit(list, merge)
        waits.until(3)  # Two peers for room, and who takes for the first input.
        found = counters.snapshot()
        assert [found[name].queued for name in "abc"] == [0, 1_024, 1_024]
        assert [found[name].handed for name in "abc"] == [0, 0, 0]
        leader.gate.set()
        rows = rows_in([batch for _, batch in output.result()])
    expected = [("a", r) for r in range(1, 513)]
    expected += [(name, r) for name in "bc" for r in range(1, 5_121)]
    assert rows == expected


@pytest.mark.parametrize(
    ("names", "depth", "batch"),
    [
        pytest.param("abcd", 1, 1_024, id="4 inputs, depth 1, batches of 1024"),
        pytest.param("abcd", 16, 64, id="4 inputs, depth 16, batches of 64"),
        pytest.param("ab", 4, 1, id="2 inputs, depth 4, batches of one row"),
        pytest.param("a", 3, 7, id="1 input, depth 3, batches of 7"),
    ],
)
@pytest.mark.parametrize("merge", MERGES)
def test_35_a_sink_that_stops_lets_inputs_times_depth_plus_1_times_batch_be_taken(
    merge: Callable[..., Merged], names: str, depth: int, batch: int
) -> None:
    inputs = inputs_of(names, 100 * depth * batch, batch)
    with (
        watched() as waits,
        closing(merge(inputs, capacity=depth * batch, batch_rows=batch)) as out,
    ):
        for handed in range(1, 6):
            next(out)
            waits.until(len(names))
            taken = sum(each.taken for each in inputs.values())
            assert taken - handed * batch == len(names) * (depth + 1) * batch


def test_35_a_sink_with_a_thread_of_its_own_adds_its_channel_and_a_batch() -> None:
    inputs, counters = inputs_of("ab", 64_000, 64), MergeCounters()
    with watched() as waits:
        merge = live(inputs, capacity=1_024, batch_rows=64, counters=counters)
        with closing(streamed(merge, capacity=256)) as out:
            next(out)
            waits.until(3)  # Two inputs, and the merge for room before the sink.
            taken = sum(each.taken for each in inputs.values())
            assert taken - 64 == 2 * (1_024 + 64) + 256 + 64


def test_36_an_input_that_is_gated_delays_nobody_in_a_live_merge() -> None:
    gated = Input("b", 10, 1, gate_before=0)
    with closing(live({"a": Input("a", 3_000, 100), "b": gated})) as merge:
        first = [next(merge) for _ in range(30)]
        assert {name for name, _ in first} == {"a"}
        gated.gate.set()
        rest = list(merge)
    assert rows_in([batch for _, batch in rest]) == [("b", row) for row in range(1, 11)]
    assert rows_in([batch for _, batch in first]) == [("a", row) for row in range(1, 3_001)]


def test_37_four_inputs_of_different_length_take_turns_and_all_arrive() -> None:
    inputs = {name: Input(name, 10 * (at + 1), 1) for at, name in enumerate("abcd")}
    order: list[str] = []
    counters = MergeCounters()
    with watched() as waits, closing(live(inputs, capacity=2, counters=counters)) as merge:
        for name, _ in merge:
            order.append(name)
            # Who has not begun yet is about to, and is not listed.
            finished = sum(found.is_finished for found in counters.snapshot().values())
            waits.until(len(inputs) - finished)
    spans = [(order.index(name), len(order) - 1 - order[::-1].index(name)) for name in "abcd"]
    assert [order.count(name) for name in "abcd"] == [10, 20, 30, 40]
    assert all(begin < end for begin, _ in spans for _, end in spans)
    assert spans[3][1] >= len(order) // 2


def test_39_a_sink_that_streams_and_one_that_waits_see_the_same() -> None:
    seen = []
    sinks: list[Callable[[Merged], Iterable[Delivery]]] = [streamed, list]
    for sink in sinks:
        counters = MergeCounters()
        pairs = list(sink(concat(inputs_of("abc", 640, 64), counters=counters)))
        handed = {name: found.handed for name, found in counters.snapshot().items()}
        seen.append((rows_in([batch for _, batch in pairs]), handed))
    assert seen[0] == seen[1]
    assert seen[0][1] == {"a": 640, "b": 640, "c": 640}


# -- what comes out


def test_19_live_of_two_inputs_of_100() -> None:
    rows = rows_in([batch for _, batch in live(inputs_of("ab", 100, 5))])
    assert sorted(rows) == [(name, row) for name in "ab" for row in range(1, 101)]
    for name in "ab":
        assert [row for each, row in rows if each == name] == list(range(1, 101))


def test_ready_inputs_are_served_in_turn() -> None:
    inputs = inputs_of("abc", 10, 1)
    with watched() as waits, closing(live(inputs, capacity=2)) as merge:
        order = [next(merge)[0]]
        for _ in range(12):
            waits.until(3)
            order.append(next(merge)[0])
    # The first ones are as they became ready; from then on all of them are.
    assert all(len(set(turn)) == 3 for turn in zip(order[1:], order[2:], order[3:], strict=False))


@pytest.mark.parametrize("merge", MERGES)
def test_no_inputs_give_nothing(merge: Callable[..., Merged]) -> None:
    assert list(merge({})) == []
    assert list(merge({"a": lambda: iter([]), "b": partial(batches_of, "b", [0, 0])})) == []


def test_batches_are_cut_at_rows_bytes_and_capacity_and_never_copied() -> None:
    large = pa.record_batch({"row": range(5_000)})
    wide = pa.record_batch({"text": ["x" * 1_000] * 10})
    huge = pa.record_batch({"text": ["x" * 10_000]})
    inputs = {"large": [large], "wide": [wide], "huge": [huge]}
    opened: dict[str, OpenInput] = {name: partial(iter, each) for name, each in inputs.items()}
    handed = [batch for _, batch in concat(opened, capacity=4_096, batch_bytes=4_500)]
    assert [batch.num_rows for batch in handed] == [562] * 8 + [504] + [4, 4, 2] + [1]
    assert handed[0]["row"].buffers()[1].address == large["row"].buffers()[1].address
    for capacity, sizes in ((9_999, [2_048, 2_048, 904]), (2_000, [2_000, 2_000, 1_000])):
        cut = live({"large": lambda: iter([large])}, capacity=capacity)
        assert [batch.num_rows for _, batch in cut] == sizes


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.sweep(1)
def test_thousands_of_inputs_are_open_a_few_at_a_time(
    merge: Callable[..., Merged],
) -> None:
    lock = threading.Lock()
    is_open, most = 0, 0

    def opened(name: str) -> Iterator[pa.RecordBatch]:
        nonlocal is_open, most
        with lock:
            is_open += 1
            most = max(most, is_open)
        yield from batches_of(name, [1, 2])
        with lock:
            is_open -= 1

    names = [f"tenant-{index:04}" for index in range(3_000)]
    counters = MergeCounters()
    inputs = {name: partial(opened, name) for name in names}
    rows = rows_in([batch for _, batch in merge(inputs, width=5, counters=counters)])
    assert sorted(rows) == [(name, row) for name in names for row in (1, 2, 3)]
    assert 1 <= most <= 5
    assert all(found.is_finished and found.handed == 3 for found in counters.snapshot().values())


# -- counters


def test_counters_tell_what_waits_and_for_how_long() -> None:
    counters, now = MergeCounters(), [100.0]
    inputs = inputs_of("a", 60, 10)
    bounds = Bounds(capacity=20, batch_rows=10)
    with (
        watched() as waits,
        MergeReaders(inputs, bounds, counters=counters, clock=lambda: now[0]) as merge,
    ):
        waits.until(1)
        found = counters.snapshot()["a"]
        assert (found.queued, found.in_flight, found.handed) == (20, 30, 0)
        assert (found.queued_peak, found.in_flight_peak) == (20, 30)
        assert found.queued_bytes > 0
        now[0] = 107.5
        assert merge.take_ready() is not None
        waits.until(1)
        assert counters.snapshot()["a"].blocked_seconds == 7.5
        while merge.take_ready() is not None:
            pass
        found = counters.snapshot()["a"]
    assert (found.queued, found.queued_bytes, found.in_flight, found.handed) == (0, 0, 0, 60)
    assert (found.queued_peak, found.in_flight_peak) == (20, 30)
    assert found.is_finished


# -- failures


@pytest.mark.parametrize("merge", MERGES)
def test_an_input_that_fails_releases_the_others_and_is_named(
    merge: Callable[..., Merged],
) -> None:
    inputs = inputs_of("ab", 10_000, 10)
    with pytest.raises(ValueError, match="no such day") as caught:
        list(merge({**inputs, "c": broken(ValueError("no such day"), 3)}, capacity=10))
    assert caught.value.__notes__ == ["It is about the input 'c'."]
    assert all(each.is_closed for each in inputs.values())
    assert all(each.taken < 10_000 for each in inputs.values()) or merge is concat


def test_an_error_is_raised_before_what_others_have_queued() -> None:
    failing = broken(ValueError("broken"))
    inputs: dict[str, OpenInput] = {"a": Input("a", 100, 10), "b": failing}
    with MergeReaders(inputs, Bounds(capacity=20)) as merge:
        for thread in readers():
            thread.join()
        with pytest.raises(ValueError, match="broken"):
            merge.take_ready()


@pytest.mark.parametrize("name", ["east", ""], ids=["a named input", "the only input"])
def test_an_error_of_ours_keeps_its_class_its_hint_and_its_fields(name: str) -> None:
    error = DataError("a key is null.", hint="fix the row.", key="id")
    with pytest.raises(DataError) as caught:
        list(streamed(live({name: broken(error)})))
    assert caught.value.message == (f"input '{name}': " if name else "") + "a key is null."
    assert caught.value.hint == "fix the row."
    assert caught.value.fields == {"key": "id"} | ({"input": name} if name else {})


@pytest.mark.parametrize("error", [KeyboardInterrupt("now"), SystemExit(3), MemoryError("none")])
def test_whatever_ends_a_reader_is_raised_where_the_rows_are_taken(error: BaseException) -> None:
    with pytest.raises(type(error)):
        list(live({"a": broken(error), "b": Input("b", 10_000, 1)}))


def unopened() -> Iterator[pa.RecordBatch]:
    raise OSError("gone")


class Unclosed:
    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return batches_of("a", [1])

    def close(self) -> None:
        raise OSError("gone")


@pytest.mark.parametrize("open_input", [unopened, Unclosed], ids=["opened", "closed"])
def test_an_input_that_cannot_be_opened_or_closed_is_named(open_input: Any) -> None:
    with pytest.raises(OSError, match="gone") as caught:
        list(live({"a": open_input}))
    assert caught.value.__notes__ == ["It is about the input 'a'."]


def test_a_thread_that_cannot_be_started_releases_those_that_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def limited(self: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(live(inputs_of("abcd", 1_000, 10), capacity=10))
    assert len(started) == 2


# -- the end


@pytest.mark.parametrize("merge", MERGES)
def test_closing_ends_readers_that_wait_for_room(merge: Callable[..., Merged]) -> None:
    inputs = inputs_of("abc", 10_000, 10)
    with watched() as waits:
        out = merge(inputs, capacity=10)
        next(out)
        waits.until(3)
        out.close()
        waits.until(0)
    assert merge_threads() == []
    assert all(each.is_closed for each in inputs.values())


def test_closing_does_not_wait_for_a_silent_input_which_ends_when_it_speaks() -> None:
    silent = Input("b", 10, 1, gate_before=0)
    merge = live({"a": Input("a", 10, 1), "b": silent}, join_seconds=0.0)
    next(merge)
    passed(silent.at_gate)
    merge.close()
    threads = readers()
    assert len(threads) <= 2
    assert all(thread.daemon for thread in threads)
    silent.gate.set()
    for thread in threads:
        thread.join()
    assert silent.is_closed
    assert silent.taken <= 1


@pytest.mark.parametrize("merge", MERGES)
def test_a_merge_that_nobody_holds_any_more_ends_its_threads(
    merge: Callable[..., Merged],
) -> None:
    out = merge(inputs_of("abc", 10_000, 10), capacity=10)
    next(out)
    del out
    gc.collect()
    assert merge_threads() == []


def test_a_merge_may_be_closed_by_its_own_thread_which_has_the_lock() -> None:
    """As the garbage collector does: it runs in any thread, at any place."""
    merges: list[MergeReaders] = []

    def clock() -> float:
        merges[0].close()
        return 0.0

    inputs = inputs_of("a", 1_000, 10)
    merges.append(MergeReaders(inputs, Bounds(capacity=10), clock=clock))
    with merges[0]:
        for thread in readers():
            thread.join()
    assert all(each.is_closed for each in inputs.values())


def test_no_thread_runs_before_the_first_row_is_asked_for() -> None:
    inputs = inputs_of("ab", 100, 10)
    merge = live(inputs)
    assert merge_threads() == []
    merge.close()
    assert [each.taken for each in inputs.values()] == [0, 0]


@pytest.mark.parametrize("asked", ["any", "one"])
def test_who_waits_for_rows_is_woken_when_another_closes_the_merge(asked: str) -> None:
    silent = Input("a", 10, 1, gate_before=0)
    with watched() as waits, ThreadPoolExecutor(1) as pool:
        with MergeReaders({"a": silent}, Bounds(), join_seconds=0.0) as merge:
            waiting = pool.submit(
                merge.take_ready if asked == "any" else partial(merge.take_of, "a")
            )
            waits.until(1)
            merge.close()
            with pytest.raises(MergeCancellation):
                waiting.result()
        silent.gate.set()
        for thread in readers():
            thread.join()


def test_readers_work_in_the_context_of_the_caller() -> None:
    query: ContextVar[str] = ContextVar("query")
    query.set("nightly")
    seen = []

    def batches() -> Iterator[pa.RecordBatch]:
        seen.append(query.get())
        yield from batches_of("a", [1])

    list(live({"a": batches, "b": batches}))
    assert seen == ["nightly", "nightly"]


@pytest.mark.parametrize("name", ["width", "capacity", "batch_rows", "batch_bytes"])
def test_a_bound_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is at least 1, found 0"):
        Bounds(**{name: 0})
