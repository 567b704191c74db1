"""What a task says in the program's log of the inputs that it has read."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any

import pytest

from spark_upsert.merge.readers import InputCounters
from spark_upsert.streams.reads.packing import (
    BLOCKED_LOG_SECONDS,
    InputSplit,
    log_counters,
    read_pack,
)
from tests.support.inputs import told

PACK = tuple(InputSplit(name, 0) for name in "ab")


def read_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("merge read: ")]


def test_a_task_says_once_how_it_has_read_its_inputs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "spark_upsert")
    rows = sum(batch.num_rows for batch in read_pack(told({"a": [3], "b": [5]}), PACK, ()))
    [line] = read_of(caplog)
    assert rows == 8
    assert line.startswith("merge read: inputs=2 finished=2 rows=8 queued_peak=")
    assert " blocked_s=" in line


def test_a_task_that_is_stopped_says_it_too_and_one_that_merges_nothing_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "spark_upsert")
    assert list(read_pack(told({"a": [3]}), PACK[:1], ()))
    assert read_of(caplog) == []
    batches: Any = read_pack(told({"a": [3], "b": [5]}), PACK, ())
    with closing(batches):
        next(batches)
    assert len(read_of(caplog)) == 1


@pytest.mark.parametrize(
    ("blocked_s", "level"),
    [(BLOCKED_LOG_SECONDS - 1, logging.DEBUG), (BLOCKED_LOG_SECONDS, logging.INFO)],
    ids=["a short wait", "a long wait"],
)
def test_a_long_wait_for_the_sink_is_information(
    caplog: pytest.LogCaptureFixture, blocked_s: float, level: int
) -> None:
    caplog.set_level(logging.DEBUG, "spark_upsert")
    log_counters({"a": InputCounters(handed=2), "b": InputCounters(blocked_seconds=blocked_s)})
    [record] = caplog.records
    assert record.levelno == level
    assert record.getMessage().endswith(
        f"rows=2 queued_peak=0 blocked_s={blocked_s} most_blocked=b"
    )
