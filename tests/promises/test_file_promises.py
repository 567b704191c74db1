"""P5 for files that others write: none is lost in silence, and none is read twice."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from spark_upsert.errors import DataLossError
from spark_upsert.options.query import Merge, QueryOptions
from spark_upsert.streams.inputs.files import position as file_position
from tests.support.folders import DAY_US, MemoryFolder, csv, file_query, values
from tests.support.streams import Query


def delivered() -> tuple[MemoryFolder, Query]:
    """Return a folder, and a query that has read it: most of its files lie behind the window."""
    folder = MemoryFolder()
    for day, name in enumerate("abcdef"):
        folder.put(name, csv(name), day * DAY_US)
    query = file_query(folder, schema="v STRING", limits=QueryOptions(epochs_max=1))
    with patch.object(file_position, "WINDOW", 2):
        query.drain()
    return folder, query


def test_p4_a_file_that_is_begun_is_finished_first_whatever_comes() -> None:
    folder = MemoryFolder()
    folder.put("begun", csv("a", "b", "c"), DAY_US)
    order = QueryOptions(merge=Merge.ROUND_ROBIN, rows_max=2)
    query = file_query(folder, schema="v STRING", limits=order)
    query.plan()
    query.deliver()
    folder.put("late", csv("x", "y"), 0)
    query.restart()
    query.drain()
    assert values(query) == [*"abcxy"]


def test_p5_a_file_that_came_late_is_not_passed_over_in_silence() -> None:
    folder, query = delivered()
    folder.put("late", csv("late"), DAY_US)
    query.restart()
    with patch.object(file_position, "WINDOW", 2), pytest.raises(DataLossError):
        query.plan()


def test_p5_a_running_query_reads_late_files_and_each_once() -> None:
    folder, query = delivered()
    folder.put("late", csv("late"), DAY_US)
    with patch.object(file_position, "WINDOW", 2):
        query.drain()
        folder.put("last", csv("last"), 9 * DAY_US)
        query.drain()
        query.restart()
        query.drain()
    assert values(query) == [*"abcdef", "late", "last"]


def test_p5_a_file_that_is_replaced_is_not_read_in_silence() -> None:
    folder, query = delivered()
    folder.put("f", csv("f", "more"), 9 * DAY_US)
    with patch.object(file_position, "WINDOW", 2), pytest.raises(DataLossError):
        query.drain()


def test_p5_a_file_that_is_written_to_behind_the_plan_is_not_read_in_silence() -> None:
    folder, query = delivered()
    folder.put("g", csv("g"), 9 * DAY_US)
    query.plan()
    folder.put("g", csv("g", "more"), 10 * DAY_US)
    with pytest.raises(DataLossError):
        query.deliver()
