"""What holds of Python sources of others: each row once, in the order asked for, or an error.

Plain functions, as those of `test_promises`, and for the same reason.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyspark_upsertflow.python_source import KINDS
from spark_upsert.errors import DataLossError
from spark_upsert.options.inputs import ReadPlan
from spark_upsert.streams.planner.formats import plan_columns, stream_inputs
from spark_upsert.streams.planner.stream import Stream
from tests.support import python_sources
from tests.support.clocked import Now
from tests.support.streams import Query


@contextmanager
def sources(*classes: str, **more: str) -> Iterator[tuple[Query, list[Path]]]:
    """Yield a query over sources ``a``, ``b`` and so on, and the files that they read."""
    with tempfile.TemporaryDirectory() as root:
        names = "abc"[: len(classes)]
        given = {"inputs": ",".join(names), **more}
        for name, cls in zip(names, classes, strict=True):
            given[f"input.{name}.format"] = f"python:{python_sources.__name__}:{cls}"
            given[f"input.{name}.path"] = f"{root}/{name}"
            Path(root, name).touch()

        def start() -> Stream:
            plan = ReadPlan.parse(given)
            inputs = stream_inputs(plan, plan_columns(plan, KINDS), KINDS)
            return Stream(inputs, plan.query, clock=Now())

        yield Query(start), [Path(root, name) for name in names]


def write(path: Path, *texts: str) -> None:
    with path.open("a") as file:
        file.writelines(f"0,{text}\n" for text in texts)


def texts_of(query: Query) -> list[str]:
    return [row["text"] for batch in query.batches for row in batch]


def test_p1_a_batch_that_is_repeated_has_the_rows_of_its_time() -> None:
    with sources("Lines") as (query, [path]):
        for text in "abc":
            write(path, text)
            query.plan()
            write(path, text.upper())
            query.restart()
            query.drain()
        assert sorted(texts_of(query)) == sorted("aAbBcC")


def test_p1_a_source_that_forgets_what_it_holds_is_told_in_time() -> None:
    with sources("HeldLines") as (query, [path]):
        for text in "abc":
            write(path, text)
            query.plan()
            query.deliver()
        assert texts_of(query) == [*"abc"]


def test_p4_concat_takes_all_of_a_source_before_the_next_one() -> None:
    with sources("BoundedLines", "Lines", merge="concat") as (query, [first, second]):
        write(first, "a", "b", "c")
        write(second, "x", "y")
        query.drain()
        assert texts_of(query) == [*"abcxy"]


def test_p5_a_source_whose_offset_goes_back_loses_nothing_in_silence() -> None:
    with sources("ForgetfulLines") as (query, [path]):
        write(path, "a", "b", "c")
        query.drain()
        query.restart()
        with pytest.raises(DataLossError):
            query.plan()
