"""A function that takes batches by iterating, and is handed them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
import pytest

from spark_upsert.flow.operators import Coroutine


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number]})


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [each["n"][0].as_py() for each in batches]


def twice_and_a_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield batch(-1)
    for each in batches:
        yield from (each, each)
    yield batch(-2)


def test_what_follows_from_a_batch_comes_before_the_next_one() -> None:
    call = Coroutine(twice_and_a_last)
    found = [numbers(call.feed(batch(0))), numbers(call.feed(batch(1))), numbers(call.end())]
    assert found == [[-1, 0, 0], [1, 1], [-2]]


def test_without_a_batch_it_is_called_all_the_same() -> None:
    assert numbers(Coroutine(twice_and_a_last).end()) == [-1, -2]


def test_what_is_not_asked_for_is_passed_by() -> None:
    call = Coroutine(lambda batches: islice(batches, 1))
    assert [numbers(call.feed(batch(n))) for n in range(3)] == [[0], [], []]
    assert numbers(call.end()) == []


def test_its_errors_come_out_where_the_batch_was_handed_over() -> None:
    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise KeyError("second")

    call = Coroutine(fails)
    rows = call.feed(batch(0))
    assert next(rows)["n"][0].as_py() == 0
    with pytest.raises(KeyError, match="second"):
        next(rows)
    call.close()


@pytest.mark.parametrize("taken", [0, 1, 2], ids=["unasked", "in between", "while it waits"])
def test_closing_ends_it_where_it_waits(taken: int) -> None:
    has_ended = threading.Event()

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for each in batches:
                yield each
                yield each
        except Exception:  # noqa: BLE001  (what users write must not keep it alive)
            yield batch(-1)
        finally:
            has_ended.set()

    call = Coroutine(held)
    rows = call.feed(batch(0))
    assert numbers(islice(rows, taken)) == [0] * taken
    call.close()
    call.close()
    assert has_ended.is_set() == (taken > 0)
