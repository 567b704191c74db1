"""Memory that grows short: pausing with a hysteresis, whom it never pauses, and who spills."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pyarrow as pa
import pytest

from spark_upsert.merge.merged import concat, live
from spark_upsert.merge.readers import Bounds, Delivery, MergeCounters, MergeReaders, OpenInput
from spark_upsert.merge.spill import Holder, Holding, MemoryPressure, Relief, choose_spills
from tests.support.waiting import passed, watched


@pytest.mark.parametrize(
    ("was_paused", "used", "is_paused"),
    [
        pytest.param(False, 79, False, id="flowing, below the higher mark"),
        pytest.param(False, 80, False, id="flowing, at the higher mark"),
        pytest.param(False, 81, True, id="flowing, above the higher mark"),
        pytest.param(True, 75, True, id="paused, between the marks"),
        pytest.param(True, 70, True, id="paused, at the lower mark"),
        pytest.param(True, 69, False, id="paused, below the lower mark"),
        pytest.param(False, 75, False, id="flowing, between the marks"),
    ],
)
@pytest.mark.parametrize("relief", [Relief.PAUSE, Relief.BOTH], ids=["pause", "both"])
def test_readers_pause_above_one_mark_and_go_on_below_another(
    relief: Relief, was_paused: bool, used: int, is_paused: bool
) -> None:
    pressure = MemoryPressure(limit_bytes=100, relief=relief, is_paused=was_paused)
    assert pressure.after(used).is_paused is is_paused


def test_who_may_only_spill_is_never_paused() -> None:
    assert not MemoryPressure(limit_bytes=100, relief=Relief.SPILL).after(1_000).is_paused


def test_an_input_that_is_awaited_is_read_while_all_others_pause() -> None:
    paused = MemoryPressure(limit_bytes=100, is_paused=True)
    assert paused.may_read(is_awaited=True)
    assert not paused.may_read(is_awaited=False)
    assert MemoryPressure(limit_bytes=100).may_read(is_awaited=False)


@pytest.mark.parametrize(
    ("relief", "used", "expected"),
    [
        (Relief.SPILL, 80, 0),
        (Relief.SPILL, 81, 11),
        (Relief.BOTH, 200, 130),
        (Relief.PAUSE, 200, 0),
    ],
)
def test_what_is_spilled_goes_down_to_the_lower_mark(
    relief: Relief, used: int, expected: int
) -> None:
    assert MemoryPressure(limit_bytes=100, relief=relief).spill_bytes(used) == expected


def test_the_limit_itself_may_be_used() -> None:
    pressure = MemoryPressure(limit_bytes=100)
    assert [pressure.is_exceeded(used) for used in (100, 101)] == [False, True]
    with pytest.raises(ValueError, match="at least 1, found 0"):
        MemoryPressure(limit_bytes=0)


SORT = Holder(name="sort", holding=Holding.SORT, bytes=100)
SMALL, LARGE = Holder(name="small", bytes=10), Holder(name="large", bytes=50)
TWIN = Holder(name="twin", bytes=10)
NONE = Holder(name="none", bytes=0)


@pytest.mark.parametrize(
    ("needed", "expected"),
    [
        pytest.param(0, [], id="nothing is needed"),
        pytest.param(1, ["large"], id="of buffers the largest first"),
        pytest.param(51, ["large", "small"], id="then the next one, by its name"),
        pytest.param(61, ["large", "small", "twin"], id="then its twin"),
        pytest.param(71, ["large", "small", "twin", "sort"], id="sorts behind all buffers"),
        pytest.param(999, ["large", "small", "twin", "sort"], id="more than there is"),
    ],
)
def test_who_spills(needed: int, expected: list[str]) -> None:
    chosen = choose_spills([SORT, TWIN, NONE, SMALL, LARGE], needed)
    assert [holder.name for holder in chosen] == expected


BATCH = pa.record_batch({"row": pa.array(range(100), pa.int64())})
"""800 bytes."""


def test_all_inputs_together_pause_above_their_memory_and_go_on_as_it_is_taken() -> None:
    counters = MergeCounters()
    inputs = {name: partial(iter, [BATCH] * 20) for name in "abcd"}
    bounds = Bounds(batch_rows=100, memory_bytes=8_000)
    with watched() as waits, MergeReaders(inputs, bounds, counters=counters) as merge:

        def queued() -> int:
            waits.until(4)
            return sum(found.queued_bytes for found in counters.snapshot().values())

        assert queued() == 9 * 800  # The ninth batch went above 6 400.
        for _ in range(2):
            merge.take_ready()
        assert queued() == 7 * 800  # 5 600 is not below the lower mark.
        merge.take_ready()
        assert queued() == 9 * 800
        taken = 3
        while merge.take_ready() is not None:
            taken += 1
        assert taken == 80


@pytest.mark.parametrize("merge", [live, concat], ids=["live", "concat"])
def test_a_merge_whose_taker_stops_holds_no_more_than_its_memory(
    merge: Callable[..., Generator[Delivery, None, None]],
) -> None:
    counters = MergeCounters()
    inputs = {name: partial(iter, [BATCH] * 20) for name in "abcd"}
    merged = merge(inputs, batch_rows=100, memory_bytes=8_000, counters=counters)
    with watched() as waits, closing(merged):
        next(merged)
        waits.until(4)
        queued = sum(found.queued_bytes for found in counters.snapshot().values())
        # Nine, and ten of an input that was awaited; by rows alone it would be 40 batches.
        assert queued <= 19 * 800


def test_the_input_that_is_awaited_goes_on_although_its_peers_hold_all_the_memory() -> None:
    """Else nobody would ever make room: the first input waits for memory that its peers keep."""
    gate = threading.Event()

    def leader() -> Iterator[pa.RecordBatch]:
        passed(gate)
        yield from [BATCH] * 30

    inputs: dict[str, OpenInput] = {"a": leader}
    inputs |= {name: lambda: iter([BATCH] * 30) for name in "bc"}
    counters = MergeCounters()
    with watched() as waits, ThreadPoolExecutor(1) as pool:
        merge = concat(inputs, batch_rows=100, memory_bytes=3_000, counters=counters)
        output = pool.submit(list, merge)
        waits.until(3)  # Both peers, and who takes.
        gate.set()
        names = [name for name, _ in output.result(60)]
    assert names == ["a"] * 30 + ["b"] * 30 + ["c"] * 30


def test_closing_ends_readers_that_are_paused() -> None:
    inputs = {name: partial(iter, [BATCH] * 50) for name in "abc"}
    merge = live(inputs, batch_rows=100, memory_bytes=2_000)
    with watched() as waits, closing(merge):
        next(merge)
        waits.until(3)
