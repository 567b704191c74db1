"""The protocol of operators, by the one that keeps nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_upsert.task.operator import Operator, Streaming

BATCH = pa.record_batch({"n": [1, 2, 3]})


def head(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 1)


@pytest.fixture
def operator() -> Operator:
    return Streaming(BATCH.schema, head)


def test_it_takes_one_batch_until_its_output_was_taken(operator: Operator) -> None:
    assert operator.needs_input()
    operator.add_input(BATCH)
    assert not operator.needs_input()
    assert operator.output() == BATCH.slice(0, 1)
    assert operator.output() is None
    assert operator.needs_input()


@pytest.mark.parametrize("is_fed", [False, True], ids=["with nothing", "with a batch"])
def test_it_drains_what_was_not_taken(operator: Operator, is_fed: bool) -> None:
    if is_fed:
        operator.add_input(BATCH)
    assert operator.start_drain() is is_fed
    assert operator.is_drained() is not is_fed
    operator.output()
    assert operator.is_drained()
    assert operator.needs_input(), "the next barrier's rows come to the same operator"


def test_it_finishes_behind_its_last_output(operator: Operator) -> None:
    operator.add_input(BATCH)
    operator.no_more_input()
    assert not operator.is_finished()
    assert operator.output() is not None
    assert operator.is_finished()
    assert not operator.needs_input()


def test_it_waits_for_nobody_and_closes_twice(operator: Operator) -> None:
    operator.add_input(BATCH)
    operator.close()
    operator.close()
    assert operator.waiting_on() is None
